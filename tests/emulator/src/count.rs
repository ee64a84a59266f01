//! What is alive.

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

/// Writes on standard error, where that can be: `eprint!` would panic, here under functions of C.
pub(crate) fn say(text: fmt::Arguments<'_>) {
    let _ = std::io::stderr().write_fmt(text);
}

/// Prints the report on standard error when the process exits.
pub(crate) fn report_at_exit() {
    extern "C" fn report() {
        // A forked child that exits has nothing of its own to report.
        if crate::core::is_ready() {
            let misuse = Locked::new().misuse.clone();
            say(format_args!("{}{misuse}", snapshot()));
        }
    }
    // SAFETY: the function takes nothing and stays where it is: the library is never unloaded.
    if unsafe { libc::atexit(report) } != 0 {
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
