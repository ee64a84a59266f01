//! From one handle to one chunk of memory.

use std::os::fd::{AsFd, OwnedFd};

use vmm::{Allocation, Device, Driver, FabricHandle};

use crate::error::{Error, ErrorKind, Result};
use crate::handle;
use crate::wire::HandleKind;

/// Imports chunks on the device that holds them.
pub(super) struct ChunkSource {
    device: Device,
    emulator: bool,
}

impl ChunkSource {
    pub(super) fn new(driver: &Driver, device: &Device) -> Self {
        ChunkSource {
            device: device.clone(),
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
            Allocation::import_posix_fd(&self.device, fd.as_fd(), size as usize)
                .map_err(|error| Error::memory(attempt(), error))
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
            Allocation::import_fabric(&self.device, &handle, size as usize).map_err(|error| {
                Error::memory(format!("importing chunk {} of {total}", index + 1), error)
            })
        };
        handles.iter().zip(sizes).enumerate().map(import).collect()
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
