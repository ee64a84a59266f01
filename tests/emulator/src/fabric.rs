//! Fabric handles: 64 bytes that name a memory file of a living process.
//!
//! Nothing is left behind when the exporter dies: the bytes then name nothing.

use crate::code::{Code, Result};
use crate::physical::Physical;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags, open};

const MAGIC: [u8; 16] = *b"vmm-emulator fab";

pub(crate) type Handle = [u8; 64];

pub(crate) fn export(physical: &Physical) -> Result<Handle> {
    let mut handle = [0; 64];
    let process = rustix::process::getpid().as_raw_nonzero().get();
    let parts: [&[u8]; 4] = [
        &MAGIC,
        &physical.record.id,
        &process.to_le_bytes(),
        &physical.file().as_raw_fd().to_le_bytes(),
    ];
    let bytes = parts.into_iter().flatten();
    for (place, byte) in handle.iter_mut().zip(bytes) {
        *place = *byte;
    }
    Ok(handle)
}

/// `INVALID_VALUE` for bytes that name no memory, or none any more.
pub(crate) fn import(handle: &Handle) -> Result<OwnedFd> {
    let (magic, rest) = handle.split_at(16);
    let (id, rest) = rest.split_at(16);
    let (process, rest) = rest.split_at(4);
    let (number, padding) = rest.split_at(4);
    if magic != MAGIC || padding.iter().any(|byte| *byte != 0) {
        return Err(Code::INVALID_VALUE);
    }
    let int = |bytes: &[u8]| {
        bytes
            .try_into()
            .map(i32::from_le_bytes)
            .map_err(|_| Code::INVALID_VALUE)
    };
    let path = format!("/proc/{}/fd/{}", int(process)?, int(number)?);
    let fd = open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|_| Code::INVALID_VALUE)?;
    let (_, record) = Physical::inspect(fd.as_fd()).map_err(|_| Code::INVALID_VALUE)?;
    if record.id.as_slice() != id {
        return Err(Code::INVALID_VALUE);
    }
    Ok(fd)
}
