//! Descriptors of our own, kept out of the program's way.
//!
//! A real driver's allocations take no descriptor of the process, and creating or importing works
//! at the limit. Ours take one each, so they are made above the soft limit, which is raised for
//! that moment where the hard limit allows.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::path::{Path, PathBuf};

/// Descriptors start here where the soft limit says nothing useful.
const LOWEST: u64 = 4096;
/// As many as the kernel lets a process have by default (`fs.nr_open`).
const MOST: usize = 1 << 20;
/// Others may close descriptors meanwhile, so the kernel is asked again after so many.
const STEP: usize = 1024;
const OPEN: &str = "/proc/self/fd";

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

/// The descriptors of this process, as paths. Listing them takes one.
pub(crate) fn listed() -> Option<Vec<PathBuf>> {
    let entries = std::fs::read_dir(OPEN).ok()?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()).ok());
    paths.collect()
}

/// The same by one number after the other, which takes none: until all are found that the kernel says
/// are open. `None` where it does not say (before Linux 6.2).
pub(crate) fn asked_for() -> Option<Vec<PathBuf>> {
    let is_open = |path: &PathBuf| std::fs::read_link(path).is_ok();
    let mut found = Vec::new();
    for number in 0..MOST {
        if number.is_multiple_of(STEP) {
            let open = usize::try_from(rustix::fs::stat(OPEN).ok()?.st_size).ok()?;
            if open == 0 {
                return None;
            }
            // One that was closed meanwhile is not among those that are open.
            if found.len() >= open {
                found.retain(is_open);
            }
            if found.len() >= open {
                return Some(found);
            }
        }
        let path = Path::new(OPEN).join(number.to_string());
        if is_open(&path) {
            found.push(path);
        }
    }
    None
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn asking_for_the_numbers_finds_what_listing_finds() {
        let high = open_high(|| rustix::io::dup(std::io::stderr())).unwrap();
        let own = Path::new(OPEN).join(rustix::fd::AsRawFd::as_raw_fd(&high).to_string());
        // The list has the descriptor that it took; other tests open and close theirs.
        let listed = BTreeSet::from_iter(listed().unwrap());
        assert!(listed.contains(&own));
        let tells = rustix::fs::stat(OPEN).unwrap().st_size > 0;
        let found = asked_for();
        assert_eq!(found.is_some(), tells);
        assert!(found.is_none_or(|found| found.contains(&own)));
    }
}
