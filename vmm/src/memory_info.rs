//! How much memory a device has left.

use crate::context::Current;
use crate::device::Device;
use crate::error::{Attempt, Result};
use crate::raw;

/// Bytes of physical memory of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Bytes not in use by any process.
    pub free: usize,
    /// Bytes in all.
    pub total: usize,
}

impl Device {
    /// Free and total bytes of physical memory. Makes the device's primary context if there is none.
    ///
    /// # Errors
    ///
    /// Those of `cuDevicePrimaryCtxRetain` and `cuMemGetInfo`.
    #[doc(alias = "cuMemGetInfo")]
    pub fn memory_info(&self) -> Result<MemoryInfo> {
        let _current = Current::enter(self)?;
        let (free, total) = raw::memory_info(self.sys())
            .attempt(|| format!("asking for the free memory of {self}"))?;
        Ok(MemoryInfo { free, total })
    }
}
