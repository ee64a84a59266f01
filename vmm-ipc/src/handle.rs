//! Descriptors that came from a peer, before the driver is asked: how many there have to be, and what
//! they can be.

use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::{AtFlags, FileType, StatxFlags, statx};

use crate::error::{Error, ErrorKind, Result};
use crate::wire::HandleKind;

/// What the emulator calls the memory files that stand for its handles.
const EMULATOR_FILE: &str = "/memfd:vmm-emulator";

/// Refuse a descriptor that no driver gives out, by the name of what it is.
///
/// The driver answers CUDA_ERROR_UNKNOWN to all of them. What is a character device may still not be
/// a handle: only the driver can tell.
pub(crate) fn check(fd: impl AsFd, emulator: bool, attempt: impl Fn() -> String) -> Result<()> {
    let fd = fd.as_fd();
    // What the kernel knows is enough: whoever serves the file (FUSE, a network) may never answer.
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat =
        statx(fd, "", flags, StatxFlags::TYPE).map_err(|errno| Error::os(attempt(), errno))?;
    let what = match FileType::from_raw_mode(stat.stx_mode.into()) {
        FileType::CharacterDevice => match stat.stx_rdev_major {
            1 => "a memory device such as /dev/null",
            4 | 5 | 136..=143 => "a terminal",
            _ if emulator => "a device, and the software emulator's handles are memory files",
            _ => return Ok(()),
        },
        FileType::RegularFile if emulator && is_emulator_file(fd.as_raw_fd()) => return Ok(()),
        FileType::RegularFile => "a file",
        FileType::Directory => "a directory",
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        FileType::BlockDevice => "a block device",
        _ => "something without a file type, as an event or a poll descriptor is",
    };
    Err(Error::new(
        ErrorKind::NotAHandle,
        attempt(),
        format!("the descriptor is {what}, not memory that a CUDA driver exported"),
    ))
}

fn is_emulator_file(number: i32) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{number}"));
    link.is_ok_and(|target| target.to_string_lossy().starts_with(EMULATOR_FILE))
}

/// How many file descriptors so many chunks come with.
pub(crate) fn fds_of(kind: HandleKind, chunks: usize) -> usize {
    match kind {
        HandleKind::PosixFd => chunks,
        HandleKind::Fabric => 0,
    }
}

/// Refuse another number of file descriptors than there is to be.
pub(crate) fn check_count(attempt: &'static str, found: usize, expected: usize) -> Result<()> {
    match found == expected {
        true => Ok(()),
        false => Err(wrong_count(attempt, found, expected)),
    }
}

pub(crate) fn wrong_count(attempt: &'static str, found: usize, expected: usize) -> Error {
    let reason = format!("{found} file descriptors came, and {expected} belong here");
    Error::new(ErrorKind::Protocol, attempt, reason)
}
