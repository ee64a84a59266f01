//! The program's bound for the size of files (`ulimit -f`), which is not meant for device memory.
//!
//! Ours lies in files, and growing or writing one beyond the bound would end the program by SIGXFSZ.
//! The soft bound is raised for that moment; at the hard one the call fails instead.

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::mem::MaybeUninit;

/// Does something that makes a file longer or writes to one. The caller holds the driver's lock: two
/// raised limits must not restore each other.
pub(crate) fn unbounded<T>(act: impl FnOnce() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    let before = getrlimit(Resource::Fsize);
    if before.current.is_none() {
        return act();
    }
    let raised = Rlimit {
        current: before.maximum,
        maximum: before.maximum,
    };
    let signal = Signal::block()?;
    let _ = setrlimit(Resource::Fsize, raised);
    let done = act();
    let _ = setrlimit(Resource::Fsize, before);
    if matches!(done, Err(Errno::FBIG)) {
        signal.take();
    }
    done
}

/// SIGXFSZ, blocked for this thread, which is the one that the kernel sends it to.
struct Signal {
    before: libc::sigset_t,
    was_blocked: bool,
}

impl Signal {
    fn block() -> rustix::io::Result<Self> {
        let mut before = MaybeUninit::uninit();
        // SAFETY: pointers to locals; `before` is written where the call succeeds.
        let failed =
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &only(), before.as_mut_ptr()) };
        if failed != 0 {
            return Err(Errno::from_raw_os_error(failed));
        }
        // SAFETY: as above.
        let before = unsafe { before.assume_init() };
        // SAFETY: a set that the system filled.
        let was_blocked = unsafe { libc::sigismember(&before, libc::SIGXFSZ) } == 1;
        Ok(Self {
            before,
            was_blocked,
        })
    }

    /// Takes away the one that was sent meanwhile, unless the program blocks it and waits for its own.
    fn take(&self) {
        let none = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        if !self.was_blocked {
            // SAFETY: pointers to locals, and null for what is not wanted.
            unsafe { libc::sigtimedwait(&only(), std::ptr::null_mut(), &none) };
        }
    }
}

impl Drop for Signal {
    fn drop(&mut self) {
        // SAFETY: a set that the system filled, and null for what is not wanted.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }
}

/// The set of this signal alone.
fn only() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the first call fills the set, the second adds a signal that there is.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGXFSZ);
        set.assume_init()
    }
}
