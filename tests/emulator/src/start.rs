//! `cuInit`: the configuration is in force from here on, and the process owns the driver.

use crate::code::{Code, Result};
use crate::core::{self, Locked};
use crate::count;
use std::ffi::c_uint;

/// What `cuInit` does.
pub(crate) fn initialise(flags: c_uint) -> Result {
    if core::is_forked() {
        return Err(Code::NOT_INITIALIZED);
    }
    if flags != 0 {
        return Err(Code::INVALID_VALUE);
    }
    if core::is_ready() {
        return Ok(());
    }
    if let Err(sentence) = core::config() {
        count::say(format_args!("vmm-emulator: {sentence}\n"));
        return Err(Code::INVALID_VALUE);
    }
    let core = Locked::new();
    if core.devices.is_empty() {
        return Err(Code::NO_DEVICE);
    }
    if core.config.report && !core::is_ready() {
        count::report_at_exit();
    }
    core::own();
    Ok(())
}
