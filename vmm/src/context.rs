//! A device's primary context, current for the length of a call.

use crate::device::Device;
use crate::error::{Attempt, Result};
use crate::raw::{self, CopyStream};

/// While this lives, the device's primary context is the thread's current one; then the caller's is
/// again, whatever it was.
pub(crate) struct Current<'a> {
    device: &'a Device,
    copies: CopyStream,
}

impl<'a> Current<'a> {
    pub(crate) fn enter(device: &'a Device) -> Result<Self> {
        let primary = device.primary()?;
        raw::context_push(device.sys(), primary.context.0)
            .attempt(|| format!("entering the primary context of {device}"))?;
        Ok(Current {
            device,
            copies: primary.copies,
        })
    }

    /// The stream of this crate's own in the context.
    pub(crate) fn copies(&self) -> CopyStream {
        self.copies
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        if let Err(error) = raw::context_pop(self.device.sys()) {
            let what = format!("leaving the primary context of {}", self.device);
            self.device
                .driver()
                .report(crate::error::Error::driver(what, error));
        }
    }
}
