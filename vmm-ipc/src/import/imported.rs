//! A buffer of another process, as long as it is mapped: it grows with the original, and can be
//! passed on.

use std::fmt;
use std::os::fd::OwnedFd;

use vmm::{Allocation, Buffer};

use super::chunks::{ChunkSource, explain_map};
use super::transfer::{Expected, Transfer};
use super::{check_fds, check_limits, out_of_place};
use crate::channel::{Channel, Deadline};
use crate::error::{Error, ErrorKind, Result};
use crate::export::{Export, duplicate, since};
use crate::handle;
use crate::limits::Limits;
use crate::wire::{BufferId, Descriptor, HandleKind, Message, Update};

/// A buffer of another process, mapped in this one.
///
/// What it maps stays valid, readable and writable when the exporter exits.
pub struct Imported {
    pub(super) buffer: Buffer,
    pub(super) descriptor: Descriptor,
    /// One for each chunk, if they were to be kept.
    pub(super) fds: Option<Vec<OwnedFd>>,
    pub(super) limits: Limits,
    /// What it has grown by since it was imported, to be passed on with it.
    pub(super) updates: Vec<Update>,
}

impl Imported {
    /// The memory, as any other buffer.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// The memory alone. Handles that were kept are closed.
    pub fn into_buffer(self) -> Buffer {
        self.buffer
    }

    /// The buffer in words, as of the generation that is mapped.
    pub fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// The random name of the buffer.
    pub fn id(&self) -> BufferId {
        self.descriptor.id()
    }

    /// How often the buffer had grown when it was mapped last.
    pub fn generation(&self) -> u64 {
        self.descriptor.generation()
    }

    /// How many file descriptors are kept to pass the buffer on.
    pub fn open_fds(&self) -> usize {
        self.fds.as_ref().map_or(0, Vec::len)
    }

    /// What the buffer is shared on with: duplicates of the handles that it was imported from, since
    /// the driver does not export imported memory. What the buffer grows by later is taken in by
    /// [`Imported::export_growth`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotShareable`] where the handles were not kept; [`ErrorKind::FdLimit`].
    pub fn export(&self) -> Result<Export> {
        let attempt = || format!("passing on buffer {}", self.id());
        if self.descriptor.handle_kind() == HandleKind::Fabric {
            return Ok(Export::relay(self.descriptor.clone(), Vec::new()));
        }
        let Some(fds) = &self.fds else {
            let reason =
                "its handles were not kept, and the driver does not export imported memory";
            return Err(Error::new(ErrorKind::NotShareable, attempt(), reason)
                .advise("import it with `ImportOptions::keep_handles(true)`"));
        };
        let fds = duplicate(fds, attempt)?;
        Ok(Export::relay(self.descriptor.clone(), fds))
    }

    /// Have an [`Imported::export`] of this buffer take in what it has grown by since. Those that it is
    /// passed on to hear of it by [`Export::send_updates`]. Returns how many updates there were.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] for another export; [`ErrorKind::FdLimit`]. The export is as it was
    /// then.
    pub fn export_growth(&self, export: &mut Export) -> Result<usize> {
        let wrong = |reason: &'static str| {
            let attempt = format!("passing on what buffer {} has grown by", self.id());
            Error::new(ErrorKind::InvalidArgument, attempt, reason)
                .advise("name what `Imported::export` of this import gave")
        };
        if !export.is_relay() || export.descriptor().id() != self.id() {
            return Err(wrong("the export is not of this import"));
        }
        let has = export.generation();
        if has == self.generation() {
            return Ok(0);
        }
        let updates = since(&self.updates, has);
        let Some(next) = updates.first() else {
            return Err(wrong("the export is of another generation than came here"));
        };
        let fds = match self.descriptor.handle_kind() {
            HandleKind::Fabric => &[],
            HandleKind::PosixFd => {
                let kept = self.fds.as_deref().unwrap_or_default();
                kept.get(next.first_chunk() as usize..)
                    .ok_or_else(|| wrong("the handles of this import were not kept"))?
            }
        };
        export.pass_on(updates, fds)?;
        Ok(updates.len())
    }

    /// Wait for the next update on the channel that the buffer came by, map it, and tell the
    /// exporter. The address stays the same where there is room.
    ///
    /// # Errors
    ///
    /// As [`ImportOptions::receive`](crate::ImportOptions::receive); [`ErrorKind::Retired`] where the exporter
    /// says that nothing more of a buffer will come, this one or another ([`Error::buffer`]), after
    /// which the channel can go on; [`ErrorKind::OutOfOrder`] for an update that was missed or
    /// repeated, after which a new offer helps. The buffer is as it was then.
    pub fn receive_update(&mut self, channel: &mut Channel) -> Result<()> {
        let received = channel.receive()?;
        match received.message {
            Message::Update(update) => self.receive_offered_update(channel, &update),
            other => Err(out_of_place(channel, &other, "an update")),
        }
    }

    /// As [`Imported::receive_update`], for an update that was received already.
    ///
    /// # Errors
    ///
    /// As [`Imported::receive_update`].
    pub fn receive_offered_update(&mut self, channel: &mut Channel, update: &Update) -> Result<()> {
        let deadline = Deadline::after(self.limits.time);
        let mut transfer = Transfer::new(Expected::of_update(update), deadline);
        let mut kept = Vec::new();
        let buffer = channel.exchange(|channel| {
            let result = self.check_update(update, 0).and_then(|()| {
                let mut memory = Vec::new();
                // As with an offer, those that are not kept are open a batch at a time.
                transfer.run(channel, |fds| {
                    memory.extend(self.import_next(update, &fds, memory.len())?);
                    if self.fds.is_some() {
                        kept.extend(fds);
                    }
                    Ok(())
                })?;
                if update.handle_kind() == HandleKind::Fabric {
                    memory = self.import_next(update, &[], 0)?;
                }
                self.extended(update, memory)
            });
            transfer.answer(channel, update.id(), update.generation(), result)
        })?;
        self.take_in(update, buffer, kept)
    }

    /// Map what the buffer has grown by, from an update and its file descriptors that came some
    /// other way. The buffer that was there stays valid for whoever has an alias of it.
    ///
    /// # Errors
    ///
    /// As [`Imported::receive_update`], less the exchange.
    pub fn extend(&mut self, update: &Update, fds: Vec<OwnedFd>) -> Result<()> {
        self.check_update(update, fds.len())?;
        let expected = Expected::of_update(update);
        handle::check_count("extending a buffer", fds.len(), expected.fds)?;
        let memory = self.import_next(update, &fds, 0)?;
        let buffer = self.extended(update, memory)?;
        self.take_in(update, buffer, fds)
    }

    /// Whether an update follows what is here, and its descriptors, of which so many are open already,
    /// can be.
    fn check_update(&self, update: &Update, already_open: usize) -> Result<()> {
        let attempt = || {
            format!(
                "extending buffer {} to generation {}",
                self.id(),
                update.generation()
            )
        };
        let wrong = |reason: String| Err(Error::new(ErrorKind::OutOfOrder, attempt(), reason));
        if update.id() != self.id() {
            return wrong(format!("the update is of buffer {}", update.id()));
        }
        let have = self.generation();
        if update.generation() <= have {
            return wrong(format!(
                "generation {have} is mapped already: the update is a repetition"
            ));
        }
        if update.generation() != have + 1 {
            let reason = format!("generation {have} is mapped, so updates in between were missed");
            return wrong(reason).map_err(|error| error.advise("ask the exporter for a new offer"));
        }
        let had = self.descriptor.sizes().len();
        let follows = update.first_chunk() as usize == had
            && update.mapped_before() == self.descriptor.mapped_len()
            && update.granularity() == self.descriptor.granularity()
            && update.handle_kind() == self.descriptor.handle_kind();
        if !follows {
            return wrong("it does not begin where the mapped chunks end".into());
        }
        if update.len() < self.descriptor.len() {
            let (now, then) = (self.descriptor.len(), update.len());
            return wrong(format!("the buffer has {now} bytes and would have {then}"));
        }
        let mapped = self
            .descriptor
            .mapped_after(update)
            .map_err(|error| Error::wire(attempt(), error))?;
        check_limits(&self.limits, had + update.sizes().len(), mapped, attempt)?;
        match update.handle_kind() {
            HandleKind::PosixFd => {
                let chunks = update.sizes().len();
                check_fds(chunks, self.fds.is_some(), already_open, attempt)
            }
            HandleKind::Fabric => Ok(()),
        }
    }

    /// The memory of the next chunks of an update, of which `done` are imported; of all of them where
    /// fabric handles travel.
    fn import_next(
        &self,
        update: &Update,
        fds: &[OwnedFd],
        done: usize,
    ) -> Result<Vec<Allocation>> {
        let device = self.buffer.device();
        let chunks = ChunkSource::new(device.driver(), device, self.descriptor.place());
        let had = self.descriptor.sizes().len();
        let total = had + update.sizes().len();
        match update.handle_kind() {
            HandleKind::PosixFd => {
                let sizes = update.sizes().get(done..).unwrap_or_default();
                chunks.import_fds(fds, sizes, had + done, total)
            }
            HandleKind::Fabric => chunks.import_fabric(update.fabric_handles(), update.sizes()),
        }
    }

    /// The buffer with the new chunks.
    fn extended(&self, update: &Update, memory: Vec<Allocation>) -> Result<Buffer> {
        let had = self.descriptor.sizes().len();
        let total = had + update.sizes().len();
        self.buffer
            .extend(memory, update.len() as usize)
            .map_err(|error| {
                explain_map(
                    format!("mapping chunks {} to {total} of {total}", had + 1),
                    error,
                )
            })
    }

    /// Become what the update makes of this.
    fn take_in(&mut self, update: &Update, buffer: Buffer, fds: Vec<OwnedFd>) -> Result<()> {
        self.descriptor
            .apply(update)
            .map_err(|error| Error::wire(format!("extending buffer {}", update.id()), error))?;
        self.buffer = buffer;
        if let Some(kept) = &mut self.fds {
            kept.extend(fds);
        }
        // Without handles there is nothing to pass on.
        if self.fds.is_some() || update.handle_kind() == HandleKind::Fabric {
            self.updates.push(update.clone());
        }
        Ok(())
    }
}

impl fmt::Debug for Imported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Imported")
            .field("descriptor", &self.descriptor)
            .field("buffer", &self.buffer)
            .field("kept", &self.open_fds())
            .finish_non_exhaustive()
    }
}
