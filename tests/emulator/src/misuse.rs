//! What was done wrong.

use std::fmt;

/// How often the program did what it must not. The driver's answer came as well, if it has one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Misuse {
    /// Work and copies that met reserved addresses without memory, and work that found no access when
    /// its time came.
    pub use_after_unmap: u64,
    /// Mappings that were unmapped while queued work still used them.
    pub unmap_under_work: u64,
    /// Releases of a handle that was no longer, or never, one.
    pub bad_release: u64,
    /// Frees that were not the exact pair of a reservation, came too early, or were of no memory from
    /// `cuMemAlloc` or `cuMemAllocHost`.
    pub bad_free: u64,
    /// Captures that a call made invalid.
    pub captures_invalidated: u64,
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "vmm-emulator: misuse: use after unmap {}, unmap under work {}, bad release {}, bad free {}, captures invalidated {}",
            self.use_after_unmap,
            self.unmap_under_work,
            self.bad_release,
            self.bad_free,
            self.captures_invalidated
        )
    }
}
