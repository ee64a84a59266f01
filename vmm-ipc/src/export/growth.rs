//! What a shared buffer grows by: taken in here, sent to those that have what came before.

use std::os::fd::OwnedFd;

use vmm::{Buffer, Chunk};

use super::exporter::MIXED;
use super::{Export, duplicate, fabric_handles};
use crate::channel::{Channel, Deadline};
use crate::error::{Error, ErrorKind, Result};
use crate::fd_limit;
use crate::wire::{HandleKind, Message, Place, Update, UpdateFields};

const NOTHING_NEW: &str = "it has no chunks beyond those that were exported";

impl Export {
    /// Take in what the buffer has grown by: only the new chunks are exported. The importers hear of
    /// it by [`Export::send_updates`]. Waits for the work on the buffer's recorded stream first, so
    /// that importers see what was written.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] where `grown` did not grow from what is exported; as
    /// [`Exporter::export`](crate::Exporter::export) otherwise. Nothing has changed then.
    pub fn grow(&mut self, grown: &Buffer) -> Result<&Update> {
        let attempt = || {
            format!(
                "exporting what a buffer has grown by, to {} bytes",
                grown.len()
            )
        };
        let new = self.new_chunks(grown, attempt)?;
        let had = self.descriptor.sizes().len();
        let by_fd = self.descriptor.handle_kind() == HandleKind::PosixFd;
        if by_fd {
            fd_limit::check(new.len(), attempt)?;
        }
        grown
            .synchronize()
            .map_err(|error| Error::memory(attempt(), error))?;
        let fields = UpdateFields {
            id: self.descriptor.id(),
            generation: self.generation() + 1,
            granularity: self.descriptor.granularity(),
            first_chunk: had as u32,
            mapped_before: self.descriptor.mapped_len(),
            len: grown.len() as u64,
        };
        let sizes = new.iter().map(|chunk| chunk.size as u64).collect();
        let fabric = if by_fd {
            Vec::new()
        } else {
            fabric_handles(new.iter().copied())?
        };
        let update =
            Update::new(fields, sizes, fabric).map_err(|error| Error::wire(attempt(), error))?;
        self.descriptor
            .mapped_after(&update)
            .map_err(|error| Error::wire(attempt(), error))?;
        if by_fd {
            let total = new.len();
            for chunk in &new {
                if let Err(error) = self.export_chunk(chunk.allocation, total) {
                    self.fds.truncate(had);
                    return Err(error);
                }
            }
        }
        if let Err(error) = self.descriptor.apply(&update) {
            self.fds.truncate(had);
            return Err(Error::wire(attempt(), error));
        }
        self.descriptor.raise_capacity(grown.capacity() as u64);
        if let Some(origin) = &mut self.origin {
            origin.take_in(grown);
        }
        self.updates.push(update);
        let last = self.updates.last();
        last.ok_or_else(|| Error::new(ErrorKind::InvalidArgument, attempt(), NOTHING_NEW))
    }

    /// What `grown` has beyond what is exported, if that is how it begins.
    fn new_chunks<'a>(
        &self,
        grown: &'a Buffer,
        attempt: impl Fn() -> String,
    ) -> Result<Vec<Chunk<'a>>> {
        let wrong =
            |reason: &'static str| Error::new(ErrorKind::InvalidArgument, attempt(), reason);
        let Some(origin) = &self.origin else {
            return Err(
                wrong("a buffer that was imported grows by what its exporter sends")
                    .advise("call `Imported::export_growth` once that has grown"),
            );
        };
        if !origin.begins(grown) {
            return Err(wrong("its first chunks are not those that were exported")
                .advise("grow the buffer that was exported, or export this one anew"));
        }
        if (grown.len() as u64) < self.descriptor.len() {
            return Err(wrong("it is shorter than what was exported")
                .advise("grow the buffer that was exported, or export this one anew"));
        }
        let new: Vec<_> = grown.chunks_from(self.descriptor.sizes().len()).collect();
        if new.is_empty() {
            return Err(wrong(NOTHING_NEW));
        }
        let refuse = |reason| Err(Error::new(ErrorKind::NotShareable, attempt(), reason));
        if new.iter().any(|chunk| chunk.allocation.is_imported()) {
            return refuse("a new chunk was imported, and the driver does not export that again");
        }
        let host = matches!(self.descriptor.place(), Place::HostNuma(_));
        if new
            .iter()
            .any(|chunk| chunk.allocation.location().is_host() != host)
        {
            return refuse(MIXED);
        }
        Ok(new)
    }

    /// Whether what the buffer grows by comes from its exporter.
    pub(crate) fn is_relay(&self) -> bool {
        self.origin.is_none()
    }

    /// Take in the next updates, which came from the exporter, with their descriptors.
    pub(crate) fn pass_on(&mut self, updates: &[Update], fds: &[OwnedFd]) -> Result<()> {
        let id = self.descriptor.id();
        let attempt = || format!("passing on what buffer {id} has grown by");
        let mut fds = duplicate(fds, attempt)?.into_iter();
        for update in updates {
            self.descriptor
                .apply(update)
                .map_err(|error| Error::wire(attempt(), error))?;
            let (first, end) = self.span(update);
            self.fds.extend(fds.by_ref().take(end - first));
            self.updates.push(update.clone());
        }
        Ok(())
    }

    /// The updates since `generation`, in order: what an importer of that generation lacks. None where
    /// this export does not have all of them, as one that is [passed on](crate::Imported::export) or put
    /// together from parts does not have those from before.
    pub fn updates_since(&self, generation: u64) -> &[Update] {
        since(&self.updates, generation)
    }

    /// The bytes of the update to `generation` and duplicates of its file descriptors, for a transport
    /// of the caller's. See [`Update::decode`] and [`Imported::extend`](crate::Imported::extend).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfOrder`] where that update is not here; [`ErrorKind::FdLimit`].
    pub fn update_to_parts(&self, generation: u64) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
        let attempt = || "duplicating the handles of an update".to_owned();
        let known = generation.checked_sub(1);
        let Some(update) = known.and_then(|before| self.updates_since(before).first()) else {
            let reason = format!("there is no update to generation {generation} here");
            return Err(Error::new(ErrorKind::OutOfOrder, attempt(), reason));
        };
        let (first, end) = self.span(update);
        let fds = self.fds.get(first..end).unwrap_or_default();
        Ok((update.encode(), duplicate(fds, attempt)?))
    }

    /// Send every update since `generation` to an importer that has that one, and wait until it is
    /// mapped there, at the same address where the importer has the room. Returns the generation that
    /// the importer has then. As [`Export::send`], this does not wait for work that came after
    /// [`Export::grow`].
    ///
    /// Each generation is a round trip of its own, and the channel's timeout is for all of them
    /// together. An importer that is so many generations behind that most of the buffer is new to it is
    /// served faster by [`Export::send`]: that packs as many file descriptors as fit into each message
    /// and waits for one answer. The importer takes that by
    /// [`ImportOptions::receive`](crate::ImportOptions::receive), as another buffer at another address.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfOrder`] where the updates since then are not here: [`Export::send`] the whole
    /// buffer. As [`Export::send`] otherwise; [`Error::reached`] is the generation that the importer has
    /// then: where it refused, that is where to go on.
    pub fn send_updates(&self, channel: &mut Channel, generation: u64) -> Result<u64> {
        let updates = self.updates_since(generation);
        if updates.is_empty() && generation != self.generation() {
            let attempt = format!("sending what buffer {} has grown by", self.descriptor.id());
            let reason = format!(
                "generation {} is here, without the updates since generation {generation}",
                self.generation()
            );
            return Err(Error::new(ErrorKind::OutOfOrder, attempt, reason)
                .advise("send the whole buffer, by `Export::send`")
                .after(generation));
        }
        let deadline = channel.deadline();
        let mut reached = generation;
        for update in updates {
            self.send_update(channel, update, deadline)
                .map_err(|error| error.after(reached))?;
            reached = update.generation();
        }
        Ok(reached)
    }

    fn send_update(
        &self,
        channel: &mut Channel,
        update: &Update,
        deadline: Deadline,
    ) -> Result<()> {
        let message = Message::Update(update.clone());
        self.begin(channel, &message, update.generation(), deadline)?;
        let (first, end) = self.span(update);
        let sent = self.send_batches(channel, first, end, deadline);
        self.conclude(channel, update.generation(), deadline, sent)
    }

    /// Which of the file descriptors are an update's.
    fn span(&self, update: &Update) -> (usize, usize) {
        let first = update.first_chunk() as usize;
        match self.descriptor.handle_kind() {
            HandleKind::PosixFd => (first, first + update.sizes().len()),
            HandleKind::Fabric => (0, 0),
        }
    }
}

/// Of updates that follow one another, those after `generation`; none where the next one is not there.
pub(crate) fn since(updates: &[Update], generation: u64) -> &[Update] {
    let index = |first: &Update| generation.checked_add(1)?.checked_sub(first.generation());
    let first = updates.first().and_then(index);
    first
        .and_then(|first| updates.get(usize::try_from(first).ok()?..))
        .unwrap_or_default()
}
