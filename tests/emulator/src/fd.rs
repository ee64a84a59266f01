//! Descriptors of our own, kept out of the program's way.
//!
//! A real driver's allocations take no descriptor of the process, and creating or importing works
//! at the limit. Ours take one each, so they are made above the soft limit, which is raised for
//! that moment where the hard limit allows.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors start here where the soft limit says nothing useful.
const LOWEST: u64 = 4096;

/// Makes a descriptor with `open` and moves it to a number above the program's own.
/// The caller holds the driver's lock: two raised limits must not restore each other.
pub(crate) fn open_high(
    open: impl FnOnce() -> rustix::io::Result<OwnedFd>,
) -> rustix::io::Result<OwnedFd> {
    let raised = Raised::new();
    let low = open()?;
    raised.move_up(low.as_fd()).or(Ok(low))
}

/// A second descriptor of `fd`, above the program's own.
pub(crate) fn dup_high(fd: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    let raised = Raised::new();
    raised.move_up(fd).or_else(|_| fcntl_dupfd_cloexec(fd, 0))
}

/// Does something that takes a descriptor for a moment, also at the program's limit.
/// The caller holds the driver's lock, as for `open_high`.
pub(crate) fn with_room<T>(act: impl FnOnce() -> T) -> T {
    let _raised = Raised::new();
    act()
}

struct Raised {
    before: Rlimit,
    soft: u64,
    hard: u64,
}

impl Raised {
    fn new() -> Self {
        let before = getrlimit(Resource::Nofile);
        let soft = before.current.unwrap_or(u64::MAX);
        let hard = before.maximum.unwrap_or(u64::MAX);
        if soft < hard {
            let raised = Rlimit {
                current: before.maximum,
                maximum: before.maximum,
            };
            // Where this fails we stay inside the program's limit.
            let _ = setrlimit(Resource::Nofile, raised);
        }
        Self { before, soft, hard }
    }

    fn move_up(&self, fd: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
        let lowest = if self.soft < self.hard {
            self.soft
        } else {
            LOWEST.min(self.soft / 2)
        };
        let lowest = i32::try_from(lowest).map_err(|_| Errno::MFILE)?;
        fcntl_dupfd_cloexec(fd, lowest)
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        if self.soft < self.hard {
            let _ = setrlimit(Resource::Nofile, self.before);
        }
    }
}
