//! Stream capture: allocating and releasing must not break a graph that is being captured.

use vmm_sys::CUstreamCaptureMode;

use crate::driver::Driver;
use crate::raw;

/// While this lives, calls that a capture would forbid are allowed in this thread, so that
/// allocating or releasing memory leaves a capture that goes on here intact.
pub(crate) struct Relaxed<'a> {
    driver: &'a Driver,
    before: Option<CUstreamCaptureMode>,
}

impl<'a> Relaxed<'a> {
    pub(crate) fn enter(driver: &'a Driver) -> Self {
        let relaxed = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // A driver without this call has no capture that could be harmed.
        let before = match driver.in_own_process() {
            true => raw::exchange_capture_mode(driver.sys(), relaxed).ok(),
            false => None,
        };
        Relaxed { driver, before }
    }
}

impl Drop for Relaxed<'_> {
    fn drop(&mut self) {
        if let Some(mode) = self.before
            && self.driver.in_own_process()
            && let Err(error) = raw::exchange_capture_mode(self.driver.sys(), mode)
        {
            let what = "restoring the thread's stream capture mode";
            self.driver.report(crate::error::Error::driver(what, error));
        }
    }
}
