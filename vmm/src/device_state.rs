//! What the process keeps of one device for as long as the driver lives.

use std::sync::{Mutex, OnceLock, PoisonError};

use vmm_sys as sys;
use vmm_sys::{CUdevice, CUmemAllocationGranularity_flags, CUmemAllocationProp};

use crate::error::{Attempt, Result};
use crate::location::raw_location;
use crate::properties::DeviceProperties;
use crate::raw::{self, Call, CopyStream, RawContext};
use crate::uuid::Uuid;

/// Each answer is asked for once. The driver is given with every call: it owns this.
pub(crate) struct DeviceState {
    pub(crate) handle: CUdevice,
    pub(crate) uuid: Uuid,
    pub(crate) name: String,
    properties: OnceLock<DeviceProperties>,
    /// Granularities asked for so far: few, so a list.
    granularities: Mutex<Vec<(GranularityKey, usize)>>,
    /// The devices whose memory it was asked about, and whether it reaches that.
    peers: Mutex<Vec<(CUdevice, bool)>>,
    primary: Mutex<Option<Primary>>,
}

/// The primary context, retained, and what this crate has in it.
#[derive(Clone, Copy)]
pub(crate) struct Primary {
    pub(crate) context: RawContext,
    pub(crate) copies: CopyStream,
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
            peers: Mutex::new(Vec::new()),
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

    /// Whether this device reaches the memory of `other`.
    pub(crate) fn can_access(&self, d: &sys::Driver, other: CUdevice) -> Call<bool> {
        let list = || self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&(_, reaches)) = list().iter().find(|(known, _)| *known == other) {
            return Ok(reaches);
        }
        let reaches = raw::can_access_peer(d, self.handle, other)?;
        let mut known = list();
        if !known.iter().any(|(device, _)| *device == other) {
            known.push((other, reaches));
        }
        Ok(reaches)
    }

    /// The primary context, retained once and kept until the driver goes.
    pub(crate) fn primary(&self, d: &sys::Driver) -> Call<Primary> {
        let slot = || self.primary.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(primary) = *slot() {
            return Ok(primary);
        }
        // Not under the lock: making a context takes long. A race makes two and gives one back.
        let primary = self.make_primary(d)?;
        let mut kept = slot();
        let Some(first) = *kept else {
            *kept = Some(primary);
            return Ok(primary);
        };
        drop(kept);
        self.give_back(d, primary)?;
        Ok(first)
    }

    fn make_primary(&self, d: &sys::Driver) -> Call<Primary> {
        let context = RawContext(raw::primary_context_retain(d, self.handle)?);
        let stream = || {
            raw::context_push(d, context.0)?;
            let stream = raw::stream_create(d);
            // The context below has to be the caller's again, whatever became of the stream.
            match (raw::context_pop(d), stream) {
                (Ok(_), stream) => stream,
                (Err(error), Ok(stream)) => {
                    raw::stream_destroy(d, stream)?;
                    Err(error)
                }
                (Err(_), Err(error)) => Err(error),
            }
        };
        match stream() {
            Ok(stream) => Ok(Primary {
                context,
                copies: CopyStream(stream),
            }),
            Err(error) => {
                raw::primary_context_release(d, self.handle)?;
                Err(error)
            }
        }
    }

    fn give_back(&self, d: &sys::Driver, primary: Primary) -> Call<()> {
        let destroyed = raw::stream_destroy(d, primary.copies.0);
        raw::primary_context_release(d, self.handle).and(destroyed)
    }

    /// Give back the primary context, if it was retained. The driver is going.
    pub(crate) fn release(&mut self, d: &sys::Driver) -> Call<()> {
        let slot = self
            .primary
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        match slot.take() {
            Some(primary) => self.give_back(d, primary),
            None => Ok(()),
        }
    }
}
