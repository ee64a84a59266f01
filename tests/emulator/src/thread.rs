//! Which thread calls.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// A thread of this process; no two have the same one, not even one after the other.
///
/// Unlike `std::thread::current`, asking cannot fail: a thread that ends may still call the driver
/// from destructors of C, when what the standard library knew of it is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Thread(u64);

static MADE: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// 0 before the first question. It owns nothing, so it is there as long as the thread.
    static THIS: Cell<u64> = const { Cell::new(0) };
}

impl Thread {
    /// The calling thread.
    pub fn current() -> Self {
        if THIS.get() == 0 {
            THIS.set(MADE.fetch_add(1, Ordering::Relaxed) + 1);
        }
        Self(THIS.get())
    }
}
