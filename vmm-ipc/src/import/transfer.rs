//! File descriptors arriving for an offer or an update, and the answer to it.

use std::os::fd::OwnedFd;

use crate::channel::{Arrival, Channel, Deadline, unexpected};
use crate::error::{Error, ErrorKind, Result};
use crate::handle;
use crate::wire::{BufferId, Descriptor, Message, Refusal, Update};

/// What is to arrive for one offer or update.
pub(super) struct Expected {
    id: BufferId,
    first: u32,
    pub(super) fds: usize,
}

impl Expected {
    pub(super) fn of_offer(descriptor: &Descriptor) -> Self {
        Expected {
            id: descriptor.id(),
            first: 0,
            fds: handle::fds_of(descriptor.handle_kind(), descriptor.sizes().len()),
        }
    }

    pub(super) fn of_update(update: &Update) -> Self {
        Expected {
            id: update.id(),
            first: update.first_chunk(),
            fds: handle::fds_of(update.handle_kind(), update.sizes().len()),
        }
    }
}

/// File descriptors arriving for one offer or update.
pub(super) struct Transfer {
    expected: Expected,
    arrived: usize,
    deadline: Deadline,
    stage: Stage,
}

/// How far the exchange has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The exporter sends, and waits for an answer then.
    Sending,
    /// The exporter gave up, and waits for nothing.
    GivenUp,
    /// What came was not what belongs there, or nothing came.
    OutOfStep,
}

impl Transfer {
    pub(super) fn new(expected: Expected, deadline: Deadline) -> Self {
        Transfer {
            expected,
            arrived: 0,
            deadline,
            stage: Stage::Sending,
        }
    }

    /// Receive all that is still to arrive and give it to `take`, batch by batch.
    pub(super) fn run(
        &mut self,
        channel: &mut Channel,
        mut take: impl FnMut(Vec<OwnedFd>) -> Result<()>,
    ) -> Result<()> {
        self.each(channel, |arrival| take(arrival.whole()?.fds))
    }

    /// The same for messages whose descriptors may have been cut off.
    fn each(
        &mut self,
        channel: &mut Channel,
        mut take: impl FnMut(Arrival) -> Result<()>,
    ) -> Result<()> {
        while self.arrived < self.expected.fds {
            let arrival = self.next(channel).inspect_err(|_| {
                if self.stage == Stage::Sending {
                    self.stage = Stage::OutOfStep;
                }
            })?;
            take(arrival)?;
        }
        Ok(())
    }

    fn next(&mut self, channel: &mut Channel) -> Result<Arrival> {
        let arrival = channel.arrive_by(self.deadline)?;
        let attempt = || format!("receiving the handles of buffer {}", self.expected.id);
        let (id, first, count) = match &arrival.message {
            Message::Handles { id, first, count } => (*id, *first, *count as usize),
            Message::Retired { id } if *id == self.expected.id => {
                self.stage = Stage::GivenUp;
                return Err(
                    Error::new(ErrorKind::Hangup, attempt(), "the exporter gave up")
                        .advise("its own error says why"),
                );
            }
            other => return Err(unexpected(other, "handles")),
        };
        let next = u64::from(self.expected.first) + self.arrived as u64;
        let left = self.expected.fds - self.arrived;
        if id != self.expected.id || u64::from(first) != next {
            let reason = format!("handles from chunk {first} on came where chunk {next} is next");
            return Err(Error::new(ErrorKind::Protocol, attempt(), reason));
        }
        if count == 0 || count > left {
            return Err(handle::wrong_count("receiving handles", count, left));
        }
        self.arrived += count;
        Ok(arrival)
    }

    /// Tell the exporter how it went.
    pub(super) fn answer<T>(
        self,
        channel: &mut Channel,
        id: BufferId,
        generation: u64,
        result: Result<T>,
    ) -> Result<T> {
        match result {
            Ok(value) => {
                channel
                    .send_by(&Message::Accepted { id, generation }, &[], self.deadline)
                    .map_err(|error| channel.break_off_after(error))?;
                Ok(value)
            }
            Err(error) => {
                // The error is this side's; that the peer does not hear of it is not.
                match self.refuse(channel, id, generation, error.to_refusal()) {
                    Ok(()) => Err(error),
                    Err(_) => Err(channel.break_off_after(error)),
                }
            }
        }
    }

    /// Tell the exporter that nothing comes of it, where it still waits to be told. On an error the
    /// two are out of step.
    pub(super) fn refuse(
        mut self,
        channel: &mut Channel,
        id: BufferId,
        generation: u64,
        refusal: Refusal,
    ) -> Result<()> {
        // What is on its way comes first, so that the channel is in step afterwards.
        let drained = match self.stage {
            Stage::Sending => self.each(channel, |_| Ok(())),
            Stage::GivenUp => return Ok(()),
            Stage::OutOfStep => {
                let reason = "what came was not what belongs there";
                return Err(Error::new(ErrorKind::Protocol, "refusing a buffer", reason));
            }
        };
        if self.stage == Stage::GivenUp {
            return Ok(());
        }
        drained?;
        let message = Message::Refused {
            id,
            generation,
            refusal,
        };
        channel.send_by(&message, &[], self.deadline)
    }
}
