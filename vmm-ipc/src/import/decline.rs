//! Saying no to what was received and is not wanted.

use super::transfer::{Expected, Transfer};
use crate::channel::Channel;
use crate::error::Result;
use crate::wire::{BufferId, Descriptor, Refusal, Update};

/// Say no to an offer that [`Channel::receive`] gave, so that the exporter knows why and the channel
/// goes on. The handles that follow the offer are received and closed.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let mut channel = vmm_ipc::Channel::connect("/run/weights")?;
/// use vmm_ipc::wire::{Message, Reason, Refusal};
///
/// if let Message::Offer(offer) = channel.receive()?.message {
///     let refusal = Refusal::new(Reason::Other, "these weights are here already");
///     vmm_ipc::decline_offer(&mut channel, &offer, refusal)?;
/// }
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// [`ErrorKind::Timeout`](crate::ErrorKind::Timeout), [`ErrorKind::Hangup`](crate::ErrorKind::Hangup),
/// [`ErrorKind::Protocol`](crate::ErrorKind::Protocol); the channel is broken off then.
pub fn decline_offer(channel: &mut Channel, offer: &Descriptor, refusal: Refusal) -> Result<()> {
    let (id, generation) = (offer.id(), offer.generation());
    decline(channel, Expected::of_offer(offer), id, generation, refusal)
}

/// Say no to an update that [`Channel::receive`] gave. As [`decline_offer`] otherwise; later updates of
/// the buffer are out of order then, and a new offer helps.
///
/// # Errors
///
/// As [`decline_offer`].
pub fn decline_update(channel: &mut Channel, update: &Update, refusal: Refusal) -> Result<()> {
    let (id, generation) = (update.id(), update.generation());
    decline(
        channel,
        Expected::of_update(update),
        id,
        generation,
        refusal,
    )
}

fn decline(
    channel: &mut Channel,
    expected: Expected,
    id: BufferId,
    generation: u64,
    refusal: Refusal,
) -> Result<()> {
    // As long as a message may have it.
    let refusal = Refusal::new(refusal.reason, &refusal.text);
    let transfer = Transfer::new(expected, channel.deadline());
    channel.exchange(|channel| {
        transfer
            .refuse(channel, id, generation, refusal)
            .map_err(|error| channel.break_off_after(error))
    })
}
