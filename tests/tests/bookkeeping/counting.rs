//! What is allocated, and which driver calls are made, between two moments of a thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use crate::numbers::{self, KINDS};

struct Counting;

thread_local! {
    // Each thread for itself: the test runner's own thread allocates while a test runs.
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    static BYTES: Cell<usize> = const { Cell::new(0) };
    static FREED: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        BYTES.set(BYTES.get() + layout.size());
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        FREED.set(FREED.get() + layout.size());
        // SAFETY: the caller's, and what `alloc` gave came from there.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What happened between two moments.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    pub allocations: usize,
    pub bytes: usize,
    /// Bytes that are still allocated.
    pub kept: isize,
    pub calls: [u64; KINDS],
}

pub fn cost<T>(work: impl FnOnce() -> T) -> (T, Cost) {
    let read = || {
        (
            ALLOCATIONS.get(),
            BYTES.get(),
            FREED.get(),
            numbers::calls(),
        )
    };
    let before = read();
    let value = work();
    let after = read();
    let bytes = after.1 - before.1;
    let cost = Cost {
        allocations: after.0 - before.0,
        bytes,
        kept: bytes as isize - (after.2 - before.2) as isize,
        calls: std::array::from_fn(|call| after.3[call] - before.3[call]),
    };
    (value, cost)
}
