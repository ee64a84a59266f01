//! From one handle to one chunk of memory.

use std::os::fd::{AsFd, OwnedFd};

use vmm::{Allocation, Device, Driver, FabricHandle};

use crate::error::{Error, ErrorKind, Result};
use crate::handle;
use crate::wire::{HandleKind, Place};

/// Imports chunks on the device that holds them.
pub(super) struct ChunkSource {
    device: Device,
    place: Place,
    emulator: bool,
}

impl ChunkSource {
    pub(super) fn new(driver: &Driver, device: &Device, place: Place) -> Self {
        ChunkSource {
            device: device.clone(),
            place,
            emulator: driver.is_emulator(),
        }
    }

    /// One chunk from each descriptor; `sizes` begins with that of the first.
    pub(super) fn import_fds(
        &self,
        fds: &[OwnedFd],
        sizes: &[u64],
        done: usize,
        total: usize,
    ) -> Result<Vec<Allocation>> {
        let import = |(index, (fd, &size)): (usize, (&OwnedFd, &u64))| {
            let attempt = || format!("importing chunk {} of {total}", done + index + 1);
            handle::check(fd, self.emulator, attempt)?;
            let chunk = Allocation::import_posix_fd(&self.device, fd.as_fd(), size as usize)
                .map_err(|error| Error::memory(attempt(), error))?;
            self.check_place(chunk, attempt)
        };
        fds.iter().zip(sizes).enumerate().map(import).collect()
    }

    pub(super) fn import_fabric(
        &self,
        handles: &[[u8; HandleKind::FABRIC_LEN]],
        sizes: &[u64],
    ) -> Result<Vec<Allocation>> {
        let total = handles.len();
        let import = |(index, (bytes, &size)): (usize, (&[u8; HandleKind::FABRIC_LEN], &u64))| {
            let handle = FabricHandle::from_bytes(*bytes);
            let attempt = || format!("importing chunk {} of {total}", index + 1);
            let chunk = Allocation::import_fabric(&self.device, &handle, size as usize)
                .map_err(|error| Error::memory(attempt(), error))?;
            self.check_place(chunk, attempt)
        };
        handles.iter().zip(sizes).enumerate().map(import).collect()
    }

    /// The driver says where memory lies; who sent it may have said otherwise. Which NUMA node it is can
    /// differ, since containers number theirs.
    fn check_place(&self, chunk: Allocation, attempt: impl Fn() -> String) -> Result<Allocation> {
        let stated_host = matches!(self.place, Place::HostNuma(_));
        if chunk.location().is_host() == stated_host {
            return Ok(chunk);
        }
        let (stated, found) = match stated_host {
            true => ("the host", "a device"),
            false => ("the device", "the host"),
        };
        let reason = format!("it is memory of {found}, and memory of {stated} was stated");
        Err(Error::new(ErrorKind::NotAHandle, attempt(), reason))
    }
}

pub(super) fn explain_map(attempt: String, error: vmm::Error) -> Error {
    match error.kind() {
        vmm::ErrorKind::InvalidArgument => Error::new(
            ErrorKind::NotAHandle,
            attempt,
            format!("the memory is not what was stated: {error}"),
        ),
        _ => Error::memory(attempt, error),
    }
}
