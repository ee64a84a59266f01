//! The exporting side: what is shared, and the file descriptors that stand for it.

mod exchange;
mod exporter;
mod growth;
mod origin;

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use vmm::Allocation;

use self::exporter::Anchor;
pub use self::exporter::Exporter;
pub(crate) use self::growth::since;
use self::origin::Origin;
use crate::channel::Channel;
use crate::error::{Error, Result};
use crate::fd_limit;
use crate::handle;
use crate::wire::{Descriptor, HandleKind, Message, Update};

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
    /// By what a grown buffer is recognised. `None` for a relay.
    origin: Option<Origin>,
    anchor: Option<Arc<Anchor>>,
}

impl Export {
    /// An export of handles that came from another process.
    pub(crate) fn relay(descriptor: Descriptor, fds: Vec<OwnedFd>) -> Self {
        Export {
            descriptor,
            fds,
            updates: Vec::new(),
            origin: None,
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
    /// caller's. See [`ImportOptions::import_parts`](crate::ImportOptions::import_parts). For what the
    /// buffer grows by, see [`Export::update_to_parts`]. As [`Export::send`], this does not wait for
    /// work that came after the export.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::FdLimit`](crate::ErrorKind::FdLimit).
    pub fn to_parts(&self) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
        let attempt = || "duplicating the handles of a buffer".to_owned();
        Ok((self.descriptor.encode(), duplicate(&self.fds, attempt)?))
    }

    /// The other way: an export from a descriptor's bytes and its file descriptors, which came by a
    /// transport of the caller's. It can be sent on, also by a process that has no CUDA; to map it,
    /// see [`ImportOptions::import_parts`](crate::ImportOptions::import_parts).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Protocol`](crate::ErrorKind::Protocol) for bytes that are no descriptor, or another number of file
    /// descriptors than it has chunks.
    pub fn from_parts(bytes: &[u8], fds: Vec<OwnedFd>) -> Result<Self> {
        let attempt = "putting together a descriptor and its handles";
        let descriptor = Descriptor::decode(bytes).map_err(|error| Error::wire(attempt, error))?;
        let expected = handle::fds_of(descriptor.handle_kind(), descriptor.sizes().len());
        handle::check_count(attempt, fds.len(), expected)?;
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
    /// What was written before [`Exporter::export`] (or [`Export::grow`]) is there when the importer
    /// has the buffer. This call does not wait for what the buffer's stream was given since: where the
    /// importer is to see that too, call [`Buffer::synchronize`](vmm::Buffer::synchronize) first.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Refused`](crate::ErrorKind::Refused) with the importer's reason, after which the channel goes on unless
    /// [`Channel::is_broken`];
    /// [`ErrorKind::Timeout`](crate::ErrorKind::Timeout), [`ErrorKind::Hangup`](crate::ErrorKind::Hangup), [`ErrorKind::Protocol`](crate::ErrorKind::Protocol).
    pub fn send(&self, channel: &mut Channel) -> Result<()> {
        let deadline = channel.deadline();
        let offer = Message::Offer(self.descriptor.clone());
        self.begin(channel, &offer, self.generation(), deadline)?;
        let sent = self.send_batches(channel, 0, self.fds.len(), deadline);
        self.conclude(channel, self.generation(), deadline, sent)
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

pub(crate) fn duplicate(fds: &[OwnedFd], attempt: impl Fn() -> String) -> Result<Vec<OwnedFd>> {
    fd_limit::check(fds.len(), &attempt)?;
    fds.iter()
        .map(|fd| {
            rustix::io::fcntl_dupfd_cloexec(fd, 0).map_err(|errno| Error::os(attempt(), errno))
        })
        .collect()
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
