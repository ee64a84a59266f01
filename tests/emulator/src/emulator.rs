//! The emulator as a Rust program sees it.

use crate::api::Out;
use crate::api::entry::cuGetProcAddress_v2;
use crate::calls::Calls;
use crate::code::Code;
use crate::config::Config;
use crate::core::{Locked, install};
use crate::count::{self, Snapshot};
use crate::fault::{self, Call, Failure};
use crate::misuse::Misuse;
use crate::names::check_function;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};
use std::fmt;
use std::time::Duration;

/// The process's emulated driver, to look into and to make fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Emulator;

/// Why a configuration was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum InstallError {
    /// The emulator of this process was configured or used before.
    InUse,
    /// The configuration makes no sense; the text says what.
    Invalid(String),
}

impl fmt::Display for InstallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse => f.write_str("the emulator of this process is already in use: install it once, before the first call, \
                 and share it between tests"),
            Self::Invalid(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for InstallError {}

impl Config {
    /// Makes this the machine that the process's emulator pretends to be.
    ///
    /// # Errors
    /// [`InstallError::InUse`] after the first call or another `install`.
    pub fn install(self) -> Result<Emulator, InstallError> {
        self.check().map_err(InstallError::Invalid)?;
        if install(self) {
            Ok(Emulator)
        } else {
            Err(InstallError::InUse)
        }
    }
}

impl Emulator {
    /// The emulator as it is configured, by the environment if by nobody else.
    pub fn current() -> Self {
        Self
    }

    /// The table of this driver.
    ///
    /// # Errors
    /// The configured driver version lacks a function that `vmm-sys` requires.
    pub fn driver(self) -> Result<vmm_sys::Driver, vmm_sys::LoadError> {
        driver()
    }

    /// The `nth` of these calls from now, counted from 1, answers `code` and does nothing.
    ///
    /// # Panics
    /// The failure makes no sense: call 0, the code of success, a function that no driver has.
    #[track_caller]
    pub fn fail_nth(self, calls: Calls<'_>, nth: u64, code: Code) -> Failure {
        insist(calls.check(nth, code));
        fault::fail(calls, nth, true, code)
    }

    /// The `nth` of these calls from now and every one after it answer `code` and do nothing.
    ///
    /// # Panics
    /// As [`Emulator::fail_nth`] does.
    #[track_caller]
    pub fn fail_from(self, calls: Calls<'_>, nth: u64, code: Code) -> Failure {
        insist(calls.check(nth, code));
        fault::fail(calls, nth, false, code)
    }

    /// How long a function takes; for one that only queues work on a stream, how long the work
    /// takes: a day at most. Zero ends it.
    ///
    /// # Panics
    /// No driver has such a function.
    #[track_caller]
    pub fn latency(self, function: &str, latency: Duration) {
        insist(check_function(function));
        fault::set_latency(function, latency);
    }

    /// Lets no stream finish anything until the guard is dropped, and every other one that there is.
    pub fn hold_streams(self) -> Held {
        Locked::new().hold_streams(true);
        Held(())
    }

    /// How often a function was called in this process, failures included.
    ///
    /// # Panics
    /// No driver has such a function.
    #[track_caller]
    pub fn calls(self, function: &str) -> u64 {
        insist(check_function(function));
        fault::calls().get(function).copied().unwrap_or(0)
    }

    /// The same of every function that was called.
    pub fn all_calls(self) -> BTreeMap<&'static str, u64> {
        fault::calls()
    }

    /// Begins to write every call down, anew.
    pub fn start_trace(self) {
        fault::start_trace();
    }

    /// Ends the trace and gives the calls in the order in which they returned.
    pub fn take_trace(self) -> Vec<Call> {
        fault::take_trace()
    }

    /// What is alive.
    pub fn snapshot(self) -> Snapshot {
        count::snapshot()
    }

    /// What was done wrong so far.
    pub fn misuse(self) -> Misuse {
        Locked::new().misuse.clone()
    }
}

/// A test that asks for what makes no sense would pass and prove nothing.
#[track_caller]
fn insist(sense: Result<(), String>) {
    if let Err(what) = sense {
        panic!("{what}");
    }
}

/// Streams stand still while this lives.
#[derive(Debug)]
#[must_use = "the streams go on when this is dropped"]
pub struct Held(());

impl Drop for Held {
    fn drop(&mut self) {
        Locked::new().hold_streams(false);
    }
}

/// The driver's table, resolved in this very library: nothing is loaded.
///
/// # Errors
/// The configured driver version lacks a function that `vmm-sys` requires.
pub fn driver() -> Result<vmm_sys::Driver, vmm_sys::LoadError> {
    // SAFETY: the function is a driver's `cuGetProcAddress` and lives as long as the program.
    unsafe { vmm_sys::Driver::from_get_proc_address(get_proc_address) }
}

/// `cuGetProcAddress` in the form of CUDA 12.0 (five arguments).
///
/// # Safety
/// `symbol` is a C string; `function` and `status` are valid for a write, or `status` is null.
pub unsafe extern "C" fn get_proc_address(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: vmm_sys::cuuint64_t,
    status: *mut vmm_sys::CUdriverProcAddressQueryResult,
) -> vmm_sys::CUresult {
    // SAFETY: the caller's, which are the same.
    let code = unsafe {
        let (function, status) = (Out::new(function), Out::new(status.cast()));
        cuGetProcAddress_v2(symbol, function, version, flags, status)
    };
    vmm_sys::CUresult(code.0.cast_unsigned())
}
