//! What the process keeps of one device for as long as the driver lives.

use std::sync::{Mutex, OnceLock, PoisonError};

use vmm_sys as sys;
use vmm_sys::{CUdevice, CUmemAllocationGranularity_flags, CUmemAllocationProp};

use crate::error::{Attempt, Result};
use crate::location::raw_location;
use crate::properties::DeviceProperties;
use crate::raw::{self, Call, RawContext};
use crate::uuid::Uuid;

/// Each answer is asked for once. The driver is given with every call: it owns this.
pub(crate) struct DeviceState {
    pub(crate) handle: CUdevice,
    pub(crate) uuid: Uuid,
    pub(crate) name: String,
    properties: OnceLock<DeviceProperties>,
    /// Granularities asked for so far: few, so a list.
    granularities: Mutex<Vec<(GranularityKey, usize)>>,
    primary: Mutex<Option<RawContext>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct GranularityKey {
    location: (i64, i32),
    handle_types: i64,
    flags: (u8, u8),
    recommended: bool,
}

impl DeviceState {
    pub(crate) fn query(d: &sys::Driver, ordinal: i32) -> Result<Self> {
        let attempt = || format!("asking for device {ordinal}");
        let handle = raw::device(d, ordinal).attempt(attempt)?;
        let uuid = raw::device_uuid(d, handle).attempt(attempt)?;
        Ok(DeviceState {
            handle,
            uuid: Uuid::from_bytes(uuid),
            name: raw::device_name(d, handle).attempt(attempt)?,
            properties: OnceLock::new(),
            granularities: Mutex::new(Vec::new()),
            primary: Mutex::new(None),
        })
    }

    pub(crate) fn properties(&self, d: &sys::Driver) -> Call<&DeviceProperties> {
        if let Some(properties) = self.properties.get() {
            return Ok(properties);
        }
        let properties = DeviceProperties::query(d, self.handle)?;
        Ok(self.properties.get_or_init(|| properties))
    }

    /// The granularity of allocations with these properties, for each kind of them.
    pub(crate) fn granularity(
        &self,
        d: &sys::Driver,
        prop: &CUmemAllocationProp,
        recommended: bool,
    ) -> Call<usize> {
        let key = GranularityKey {
            location: raw_location(prop),
            handle_types: i64::from(prop.requestedHandleTypes.0),
            flags: (
                prop.allocFlags.compressionType,
                prop.allocFlags.gpuDirectRDMACapable,
            ),
            recommended,
        };
        let list = || {
            self.granularities
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        };
        if let Some(&(_, bytes)) = list().iter().find(|(other, _)| *other == key) {
            return Ok(bytes);
        }
        let option = if recommended {
            CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
        } else {
            CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM
        };
        // Not under the lock: a race asks twice and keeps one.
        let bytes = raw::granularity(d, prop, option)?;
        let mut known = list();
        if !known.iter().any(|(other, _)| *other == key) {
            known.push((key, bytes));
        }
        Ok(bytes)
    }

    /// The primary context, retained once and kept until the driver goes.
    pub(crate) fn primary_context(&self, d: &sys::Driver) -> Call<RawContext> {
        let slot = || self.primary.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(context) = *slot() {
            return Ok(context);
        }
        // Not under the lock: making a context takes long. A race retains twice and gives one back.
        let context = raw::primary_context_retain(d, self.handle)?;
        let mut kept = slot();
        let Some(first) = *kept else {
            *kept = Some(RawContext(context));
            return Ok(RawContext(context));
        };
        drop(kept);
        raw::primary_context_release(d, self.handle)?;
        Ok(first)
    }

    /// Give back the primary context, if it was retained. The driver is going.
    pub(crate) fn release(&mut self, d: &sys::Driver) {
        let primary = self
            .primary
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        if primary.take().is_some() {
            // Nobody is left to report to: the hook lives in what is being dropped.
            let _ = raw::primary_context_release(d, self.handle);
        }
    }
}
