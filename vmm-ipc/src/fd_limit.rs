//! Whether a process can hold as many more file descriptors as an operation takes.

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
    // One of the entries is the descriptor that reads the folder.
    let open = match std::fs::read_dir("/proc/self/fd") {
        Ok(entries) => entries.count().saturating_sub(1) as u64,
        // Without /proc nobody can tell, and the operation finds out by itself.
        Err(_) => return Ok(()),
    };
    let left = limit.saturating_sub(open);
    if needed as u64 <= left {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::FdLimit,
        attempt(),
        format!("it takes {needed} file descriptors, and {left} of the process's {limit} are left"),
    )
    .advise("raise the limit with `ulimit -n`, or allocate fewer and larger chunks"))
}
