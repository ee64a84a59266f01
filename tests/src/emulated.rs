//! What only the emulator can do: count what is alive, and fail on demand.

use std::collections::BTreeMap;
use std::time::Duration;

pub use vmm_emulator::{Call, Calls, Failure as Failing, Misuse, Snapshot as Live};
use vmm_emulator::{Code, Emulator};
use vmm_sys::CUresult;

use crate::Failure;

/// What is alive in the emulated driver of this process.
pub fn live() -> Live {
    Emulator::current().snapshot()
}

/// What was done wrong since the process began.
pub fn misuse() -> Misuse {
    Emulator::current().misuse()
}

/// The `nth` of these calls from now on, counted from 1, answers `code` and does nothing.
pub fn fail(calls: Calls<'_>, nth: u64, code: CUresult) -> Failing {
    Emulator::current().fail_nth(calls, nth, Code(code.0.cast_signed()))
}

/// Each of these calls from now on answers `code` and does nothing.
pub fn fail_all(calls: Calls<'_>, code: CUresult) -> Failing {
    Emulator::current().fail_from(calls, 1, Code(code.0.cast_signed()))
}

/// What `work` gives, and how often it called each function; those that it did not call are left out.
pub fn calls_of<T>(work: impl FnOnce() -> T) -> (T, BTreeMap<&'static str, u64>) {
    let before = Emulator::current().all_calls();
    let result = work();
    let mut calls = Emulator::current().all_calls();
    for (name, earlier) in before {
        calls.entry(name).and_modify(|calls| *calls -= earlier);
    }
    calls.retain(|_, calls| *calls > 0);
    (result, calls)
}

/// Begins to write down every call.
pub fn start_trace() {
    Emulator::current().start_trace();
}

/// The calls since then, those that only ask for texts or versions left out.
pub fn take_trace() -> Vec<Call> {
    Emulator::current().take_trace()
}

/// How long a function takes, or for one that queues work on a stream, that work.
pub fn set_latency(function: &str, latency: Duration) {
    Emulator::current().latency(function, latency);
}

/// The table of the emulator, which has this many devices, or is as `VMM_EMULATOR_*` variables
/// say where there are any.
pub(crate) fn load(devices: usize) -> Result<vmm_sys::Driver, Failure> {
    let configured = std::env::vars_os().any(|(name, _)| {
        name.to_str()
            .is_some_and(|name| name.starts_with("VMM_EMULATOR_"))
    });
    if !configured {
        match vmm_emulator::Config::new().devices(devices).install() {
            // The case has configured it, or loads the driver a second time.
            Ok(_) | Err(vmm_emulator::InstallError::InUse) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(vmm_emulator::driver()?)
}
