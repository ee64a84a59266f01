//! Whether a process can hold as many more file descriptors as an operation takes.

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::error::{Error, ErrorKind, Result};

/// Below this many it is not worth looking: the system says so itself, and a look costs more.
const FEW: usize = 32;

/// Refuse ahead what would run into the limit halfway.
pub(crate) fn check(needed: usize, attempt: impl FnOnce() -> String) -> Result<()> {
    if needed <= FEW {
        return Ok(());
    }
    let Some(limit) = getrlimit(Resource::Nofile).current else {
        return Ok(());
    };
    // Those above the limit, which are counted as well, only leave more room than this.
    if open().is_some_and(|open| open.saturating_add(needed as u64) <= limit) {
        return Ok(());
    }
    let Some(left) = left(limit) else {
        // Without /proc nobody can tell, and the operation finds out by itself.
        return Ok(());
    };
    if needed as u64 <= left {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::FdLimit,
        attempt(),
        format!("it takes {needed} file descriptors, and {left} of the process's {limit} are left"),
    )
    .advise(ADVICE))
}

/// What to do about it.
pub(crate) const ADVICE: &str =
    "raise the limit with `ulimit -n`, or allocate fewer and larger chunks";

/// Say how many are needed and left, where an error is about that.
pub(crate) fn explain(error: Error, needed: usize) -> Error {
    match error.kind() {
        ErrorKind::FdLimit => {
            let files = in_words();
            error.advise(format!("{needed} more are needed, and {files}"))
        }
        _ => error,
    }
}

/// How many are left of how many.
pub(crate) fn in_words() -> String {
    let limit = getrlimit(Resource::Nofile).current;
    match limit.and_then(|limit| Some((limit, left(limit)?))) {
        Some((limit, left)) => format!("{left} of the process's {limit} open files are left"),
        None => "how many open files are left is not known".to_owned(),
    }
}

/// How many are open, where the kernel says so (Linux from 6.2 on): far cheaper than a list where there
/// are thousands, and no descriptor is needed to ask.
fn open() -> Option<u64> {
    let folder = rustix::fs::stat("/proc/self/fd").ok()?;
    u64::try_from(folder.st_size).ok().filter(|&open| open > 0)
}

/// How many numbers below `limit` are free. The limit is on numbers, so what has a higher one (from
/// before the limit was lowered) takes nothing away.
fn left(limit: u64) -> Option<u64> {
    let entries = match std::fs::read_dir("/proc/self/fd") {
        Ok(entries) => entries,
        // There is not even one left to look with.
        Err(error) if error.raw_os_error() == Some(Errno::MFILE.raw_os_error()) => return Some(0),
        Err(_) => return None,
    };
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let below = numbers.filter(|&number: &u64| number < limit).count() as u64;
    // One of them reads the folder, where that has a number below the limit.
    Some(limit.saturating_sub(below.saturating_sub(1)))
}
