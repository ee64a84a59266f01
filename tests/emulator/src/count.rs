//! What is alive, and what was done wrong.

use crate::core::Locked;
use std::fmt;
use std::io::Write as _;

/// Everything that a process can leave behind. Compare two of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// Handle values that can still be released.
    pub handles: usize,
    /// Releases that those take.
    pub handle_references: usize,
    /// Mappings.
    pub mappings: usize,
    /// Address reservations.
    pub reservations: usize,
    /// Distinct physical allocations that handles, mappings or descriptors of this process keep.
    pub allocations: usize,
    /// Their size in bytes.
    pub bytes: u64,
    /// Descriptors of this process, exported or received, that refer to emulated memory. Where the
    /// process can open none to look, the number is that of the snapshot before.
    pub exported_fds: usize,
    /// Contexts.
    pub contexts: usize,
    /// Streams made by the program.
    pub streams: usize,
    /// Events.
    pub events: usize,
}

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
    /// Frees that were not the exact pair of a reservation, or came too early.
    pub bad_free: u64,
    /// Captures that a call made invalid.
    pub captures_invalidated: u64,
}

pub(crate) fn snapshot() -> Snapshot {
    let mut core = Locked::new();
    let (handles, handle_references) = core.memory.counts();
    let (reservations, mappings) = core.space.counts();
    let (allocations, bytes) = core.memory.physical();
    let (streams, events) = core.streams.counts();
    Snapshot {
        handles,
        handle_references,
        mappings,
        reservations,
        allocations,
        bytes,
        exported_fds: core.memory.exported_fds(),
        contexts: core.contexts.alive(),
        streams,
        events,
    }
}

pub(crate) fn misuse() -> Misuse {
    Locked::new().misuse.clone()
}

/// Writes on standard error, where that can be: `eprint!` would panic, here under functions of C.
pub(crate) fn say(text: fmt::Arguments<'_>) {
    let _ = std::io::stderr().write_fmt(text);
}

/// Prints the report on standard error when the process exits.
pub(crate) fn report_at_exit() {
    unsafe extern "C" {
        // Of the C library, which every program with threads on Linux already has.
        safe fn atexit(function: extern "C" fn()) -> std::ffi::c_int;
    }
    extern "C" fn report() {
        // A forked child that exits has nothing of its own to report.
        if crate::core::is_ready() {
            say(format_args!("{}{}", snapshot(), misuse()));
        }
    }
    if atexit(report) != 0 {
        say(format_args!("vmm-emulator: no report at exit\n"));
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "vmm-emulator: handles {} (references {})",
            self.handles, self.handle_references
        )?;
        writeln!(
            f,
            "vmm-emulator: mappings {}, reservations {}",
            self.mappings, self.reservations
        )?;
        writeln!(
            f,
            "vmm-emulator: allocations {} ({} bytes)",
            self.allocations, self.bytes
        )?;
        writeln!(f, "vmm-emulator: exported fds {}", self.exported_fds)?;
        writeln!(
            f,
            "vmm-emulator: contexts {}, streams {}, events {}",
            self.contexts, self.streams, self.events
        )
    }
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
