//! What only the emulator can do: count what is alive, and fail on demand.

use std::time::Duration;

use vmm_sys::CUresult;

use crate::Failure;

/// What is alive in the emulated driver of this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Live {
    /// Address reservations.
    pub reservations: usize,
}

/// What is alive now.
pub fn live() -> Live {
    Live::default()
}

/// Which calls a failure counts.
pub enum Calls<'a> {
    /// Those of one function.
    Of(&'a str),
    /// Those of any function from this thread.
    AnyHere,
}

/// A failure that lasts until it is dropped.
pub struct Failing;

impl Failing {
    /// How many calls it has refused.
    pub fn fired(&self) -> u64 {
        0
    }
}

/// Refuses the `nth` call from now on, counted from 1.
pub fn fail(_calls: Calls<'_>, _nth: u64, _code: CUresult) -> Failing {
    Failing
}

/// Refuses every call from now on.
pub fn fail_all(_calls: Calls<'_>, _code: CUresult) -> Failing {
    Failing
}

/// A call in a trace.
#[derive(Debug)]
pub struct Call {
    /// The C name.
    pub function: &'static str,
    /// Whether the answer was success.
    pub succeeded: bool,
}

/// Begins to write down every call.
pub fn start_trace() {}

/// The calls since then.
pub fn take_trace() -> Vec<Call> {
    Vec::new()
}

/// How long a function takes, or the work that it puts on a stream.
pub fn set_latency(_function: &str, _latency: Duration) {}

/// Installs the emulator with this many devices and gives its table.
pub(crate) fn load(_devices: usize) -> Result<vmm_sys::Driver, Failure> {
    Err(Failure::new("the emulator is not there yet"))
}
