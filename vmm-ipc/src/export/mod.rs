//! The exporting side: what is shared, and the file descriptors that stand for it.

mod exporter;

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use vmm::{Allocation, Buffer};

use self::exporter::Anchor;
pub use self::exporter::Exporter;
use crate::channel::{Channel, Deadline, unexpected};
use crate::error::{Error, ErrorKind, Result};
use crate::fd_limit;
use crate::wire::{Descriptor, HandleKind, Message, Place, Update, UpdateFields, WireError};

/// File descriptors sent with one message while a buffer is first shared: enough to make the sends
/// few, and few enough that the importer maps some while the exporter exports the next.
pub(crate) const BATCH: usize = 128;

/// A buffer as it is shared: its descriptor, and one handle for each chunk, exported once however
/// many importers there are.
///
/// It keeps the memory alive by its handles, also when the buffer is gone. Drop it, or
/// [`Export::retire`] it, when no more importers come; those that have mapped the buffer keep it.
pub struct Export {
    descriptor: Descriptor,
    /// One for each chunk; empty where fabric handles travel.
    fds: Vec<OwnedFd>,
    updates: Vec<Update>,
    /// The memory of the last chunk, by which a grown buffer is recognised. `None` for a relay.
    last: Option<Allocation>,
    anchor: Option<Arc<Anchor>>,
}

/// How far a transfer has come: given to a progress callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Chunks that are through.
    pub done: usize,
    /// Chunks in all.
    pub total: usize,
}

impl Progress {
    pub(crate) fn new(done: usize, total: usize) -> Self {
        Progress { done, total }
    }
}

impl Export {
    /// An export of handles that came from another process.
    pub(crate) fn relay(descriptor: Descriptor, fds: Vec<OwnedFd>) -> Self {
        Export {
            descriptor,
            fds,
            updates: Vec::new(),
            last: None,
            anchor: None,
        }
    }

    /// The buffer in words.
    pub fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// How often the buffer has grown since it was exported.
    pub fn generation(&self) -> u64 {
        self.descriptor.generation()
    }

    /// The file descriptors, one for each chunk in address order; none where fabric handles travel.
    pub fn fds(&self) -> impl ExactSizeIterator<Item = BorrowedFd<'_>> {
        self.fds.iter().map(OwnedFd::as_fd)
    }

    /// The descriptor's bytes and duplicates of the file descriptors, for a transport of the
    /// caller's. See [`ImportOptions::import_parts`](crate::ImportOptions::import_parts).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::FdLimit`].
    pub fn to_parts(&self) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
        let attempt = || "duplicating the handles of a buffer".to_owned();
        fd_limit::check(self.fds.len(), attempt)?;
        let duplicate = |fd: &OwnedFd| {
            rustix::io::fcntl_dupfd_cloexec(fd, 0).map_err(|errno| Error::os(attempt(), errno))
        };
        let fds = self.fds.iter().map(duplicate).collect::<Result<_>>()?;
        Ok((self.descriptor.encode(), fds))
    }

    /// The other way: an export from a descriptor's bytes and its file descriptors, which came by a
    /// transport of the caller's. It can be sent on, also by a process that has no CUDA; to map it,
    /// see [`ImportOptions::import_parts`](crate::ImportOptions::import_parts).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Protocol`] for bytes that are no descriptor, or another number of file
    /// descriptors than it has chunks.
    pub fn from_parts(bytes: &[u8], fds: Vec<OwnedFd>) -> Result<Self> {
        let attempt = "putting together a descriptor and its handles";
        let descriptor = Descriptor::decode(bytes).map_err(|error| Error::wire(attempt, error))?;
        let expected = match descriptor.handle_kind() {
            HandleKind::PosixFd => descriptor.sizes().len(),
            HandleKind::Fabric => 0,
        };
        if fds.len() != expected {
            let came = fds.len();
            let reason = format!("{came} file descriptors came, and {expected} belong here");
            return Err(Error::new(ErrorKind::Protocol, attempt, reason));
        }
        Ok(Self::relay(descriptor, fds))
    }

    /// The descriptor's bytes and the file descriptors themselves, and with them the ownership.
    pub fn into_parts(self) -> (Vec<u8>, Vec<OwnedFd>) {
        (self.descriptor.encode(), self.fds)
    }

    /// Send the whole buffer to an importer, and wait until it is mapped there. The file descriptors
    /// stay open here until then at least, which spares the importer the cost of closing the last
    /// ones.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Refused`] with the importer's reason, after which the channel can go on;
    /// [`ErrorKind::Timeout`], [`ErrorKind::Hangup`], [`ErrorKind::Protocol`].
    pub fn send(&self, channel: &mut Channel) -> Result<()> {
        let deadline = channel.deadline();
        channel.send_by(&Message::Offer(self.descriptor.clone()), &[], deadline)?;
        let sent = self.send_batches(channel, 0, self.fds.len(), deadline);
        self.conclude(channel, self.generation(), deadline, sent)
    }

    /// Take in what the buffer has grown by: only the new chunks are exported. The importers hear of
    /// it by [`Export::send_updates`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] where `grown` did not grow from what is exported; as
    /// [`Exporter::export`] otherwise. Nothing has changed then.
    pub fn grow(&mut self, grown: &Buffer) -> Result<&Update> {
        let attempt = || {
            format!(
                "exporting what a buffer has grown by, to {} bytes",
                grown.len()
            )
        };
        let wrong =
            |reason: &'static str| Error::new(ErrorKind::InvalidArgument, attempt(), reason);
        let had = self.descriptor.sizes().len();
        if self.last.is_none() {
            return Err(wrong(
                "a buffer that was imported grows by what its exporter sends",
            ));
        }
        // From the last chunk that is exported: what lies before it is not looked at, since a grown
        // buffer shares the whole of what comes before a chunk that it shares.
        let mut chunks = grown.chunks_from(had - 1);
        let continues = self
            .last
            .as_ref()
            .zip(chunks.next())
            .is_some_and(|(last, chunk)| {
                let end = (chunk.offset + chunk.size) as u64;
                last.is_same(chunk.allocation) && end == self.descriptor.mapped_len()
            });
        if !continues {
            return Err(wrong("its first chunks are not those that were exported")
                .advise("grow the buffer that was exported, or export this one anew"));
        }
        if (grown.len() as u64) < self.descriptor.len() {
            return Err(wrong("it is shorter than what was exported")
                .advise("grow the buffer that was exported, or export this one anew"));
        }
        let new: Vec<_> = chunks.collect();
        if new.is_empty() {
            return Err(wrong("it has no chunks beyond those that were exported"));
        }
        if new.iter().any(|chunk| chunk.allocation.is_imported()) {
            let reason = "a new chunk was imported, and the driver does not export that again";
            return Err(Error::new(ErrorKind::NotShareable, attempt(), reason));
        }
        let host = matches!(self.descriptor.place(), Place::HostNuma(_));
        if new
            .iter()
            .any(|chunk| chunk.allocation.location().is_host() != host)
        {
            return Err(Error::new(
                ErrorKind::NotShareable,
                attempt(),
                exporter::MIXED,
            ));
        }
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
        self.last = new.last().map(|chunk| chunk.allocation.clone());
        self.updates.push(update);
        self.updates
            .last()
            .ok_or_else(|| wrong("it has no chunks beyond those that were exported"))
    }

    /// The updates since `generation`, in order: what an importer of that generation lacks.
    pub fn updates_since(&self, generation: u64) -> &[Update] {
        let first = self
            .updates
            .partition_point(|update| update.generation() <= generation);
        self.updates.get(first..).unwrap_or_default()
    }

    /// Send every update since `generation` to an importer that has that one, and wait until it is
    /// mapped there, at the same address where the importer has the room. Returns the generation that
    /// the importer has then.
    ///
    /// # Errors
    ///
    /// As [`Export::send`]. [`Error::reached`] is the generation that the importer has then: where it
    /// refused, that is where to go on.
    pub fn send_updates(&self, channel: &mut Channel, generation: u64) -> Result<u64> {
        let deadline = channel.deadline();
        let mut reached = generation;
        for update in self.updates_since(generation) {
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
        channel.send_by(&Message::Update(update.clone()), &[], deadline)?;
        let first = update.first_chunk() as usize;
        let end = match self.descriptor.handle_kind() {
            HandleKind::PosixFd => first + update.sizes().len(),
            HandleKind::Fabric => first,
        };
        let sent = self.send_batches(channel, first, end, deadline);
        self.conclude(channel, update.generation(), deadline, sent)
    }

    fn send_batches(
        &self,
        channel: &mut Channel,
        mut first: usize,
        end: usize,
        deadline: Deadline,
    ) -> Result<()> {
        while first < end {
            let next = (first + BATCH).min(end);
            self.send_handles(channel, first, next, deadline)?;
            first = next;
        }
        Ok(())
    }

    /// End an exchange: hear what the importer says, or tell it that there is no more where not all
    /// could be sent.
    fn conclude(
        &self,
        channel: &mut Channel,
        generation: u64,
        deadline: Deadline,
        sent: Result<()>,
    ) -> Result<()> {
        if let Err(error) = sent {
            let id = self.descriptor.id();
            if channel
                .send_by(&Message::Retired { id }, &[], deadline)
                .is_err()
            {
                channel.break_off();
            }
            return Err(error);
        }
        let answer = self.await_answer(channel, generation, deadline);
        if let Err(error) = &answer
            && error.kind() != ErrorKind::Refused
        {
            // An answer that comes late would be taken for the one to the next question.
            channel.break_off();
        }
        answer
    }

    /// Tell an importer that nothing more of this buffer will come.
    ///
    /// # Errors
    ///
    /// As [`Channel::send`].
    pub fn send_retirement(&self, channel: &mut Channel) -> Result<()> {
        channel.send(
            &Message::Retired {
                id: self.descriptor.id(),
            },
            &[],
        )
    }

    /// Close every file descriptor. Importers that have mapped the buffer keep it.
    pub fn retire(self) {
        drop(self);
    }

    fn export_and_send(
        &mut self,
        buffer: &Buffer,
        channel: &mut Channel,
        deadline: Deadline,
    ) -> Result<()> {
        let (mut first, total) = (0, buffer.chunk_count());
        for (index, chunk) in buffer.chunks().enumerate() {
            self.export_chunk(chunk.allocation, total)?;
            let end = index + 1;
            if end - first == BATCH || end == total {
                self.send_handles(channel, first, end, deadline)?;
                first = end;
            }
        }
        Ok(())
    }

    fn export_chunk(&mut self, chunk: &Allocation, total: usize) -> Result<()> {
        if self.descriptor.handle_kind() == HandleKind::Fabric {
            return Ok(());
        }
        let fd = chunk.export_posix_fd().map_err(|error| {
            let done = self.fds.len();
            let attempt = format!("exporting chunk {} of {total}", done + 1);
            fd_limit::explain(Error::memory(attempt, error), total.saturating_sub(done))
        })?;
        self.fds.push(fd);
        Ok(())
    }

    fn send_handles(
        &self,
        channel: &mut Channel,
        first: usize,
        end: usize,
        deadline: Deadline,
    ) -> Result<()> {
        let Some(fds) = self.fds.get(first..end).filter(|fds| !fds.is_empty()) else {
            return Ok(());
        };
        let fds: Vec<_> = fds.iter().map(OwnedFd::as_fd).collect();
        let (first, count) = (first as u32, fds.len() as u32);
        let message = Message::Handles {
            id: self.descriptor.id(),
            first,
            count,
        };
        channel.send_by(&message, &fds, deadline)
    }

    fn await_answer(
        &self,
        channel: &mut Channel,
        generation: u64,
        deadline: Deadline,
    ) -> Result<()> {
        let received = channel.receive_by(deadline)?;
        let attempt = || format!("sharing buffer {}", self.descriptor.id());
        let about = match &received.message {
            Message::Accepted { id, generation } | Message::Refused { id, generation, .. } => {
                (*id, *generation)
            }
            other => return Err(unexpected(other, "an acceptance")),
        };
        if about != (self.descriptor.id(), generation) {
            let other = WireError::Unexpected {
                found: "an answer about another buffer or generation",
                expected: "the one about this",
            };
            return Err(Error::wire(attempt(), other));
        }
        match received.message {
            Message::Refused { refusal, .. } => Err(Error::refused(attempt(), refusal)),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Export")
            .field("descriptor", &self.descriptor)
            .field("fds", &self.fds.len())
            .field("anchored", &self.anchor.is_some())
            .finish_non_exhaustive()
    }
}

fn fabric_handles<'a>(
    chunks: impl ExactSizeIterator<Item = vmm::Chunk<'a>>,
) -> Result<Vec<[u8; HandleKind::FABRIC_LEN]>> {
    let total = chunks.len();
    chunks
        .enumerate()
        .map(|(index, chunk)| match chunk.allocation.export_fabric() {
            Ok(handle) => Ok(*handle.as_bytes()),
            Err(error) => Err(Error::memory(
                format!("exporting chunk {} of {total}", index + 1),
                error,
            )),
        })
        .collect()
}
