//! Devices: which there are, what they can do, and their primary contexts.

use std::fmt;
use std::sync::{Mutex, OnceLock, PoisonError};

use vmm_sys as sys;
use vmm_sys::{
    CUdevice, CUdevice_attribute, CUmemAllocationGranularity_flags, CUmemAllocationProp,
};

use crate::context::Current;
use crate::driver::Driver;
use crate::error::{Attempt, Error, Result};
use crate::properties::DeviceProperties;
use crate::raw::{self, RawContext};

pub use crate::uuid::Uuid;

/// One GPU as this process sees it.
///
/// Cloning is cheap. Two values are equal when they are the same device of this process.
#[derive(Clone)]
pub struct Device {
    driver: Driver,
    index: u16,
}

/// What the process keeps of one device for as long as the driver lives.
pub(crate) struct DeviceState {
    pub(crate) handle: CUdevice,
    pub(crate) uuid: Uuid,
    name: String,
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

/// Bytes of physical memory of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Bytes not in use by any process.
    pub free: usize,
    /// Bytes in all.
    pub total: usize,
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

impl Device {
    /// `index` is that of a device in the driver's list.
    pub(crate) fn new(driver: Driver, index: usize) -> Self {
        // No machine has 65 536 GPUs; the driver's list is cut there, see `Driver::new`.
        Device {
            driver,
            index: index as u16,
        }
    }

    pub(crate) fn index(&self) -> u16 {
        self.index
    }

    fn state(&self) -> &DeviceState {
        self.driver.state(self.ordinal())
    }

    pub(crate) fn handle(&self) -> CUdevice {
        self.state().handle
    }

    pub(crate) fn sys(&self) -> &sys::Driver {
        self.driver.sys()
    }

    /// The driver that this device belongs to.
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// The device's number in this process, which another process may give to another device.
    pub fn ordinal(&self) -> usize {
        usize::from(self.index)
    }

    /// The device's name in every process.
    pub fn uuid(&self) -> Uuid {
        self.state().uuid
    }

    /// The product name.
    #[doc(alias = "cuDeviceGetName")]
    pub fn name(&self) -> &str {
        &self.state().name
    }

    /// The PCI bus id, as in `0000:1b:00.0`.
    ///
    /// # Errors
    ///
    /// Those of `cuDeviceGetPCIBusId`.
    #[doc(alias = "cuDeviceGetPCIBusId")]
    pub fn pci_bus_id(&self) -> Result<String> {
        self.driver.check()?;
        raw::device_pci_bus_id(self.sys(), self.handle())
            .attempt(|| format!("asking for the PCI bus id of {self}"))
    }

    /// What the device says it can do. Asked once and kept.
    ///
    /// # Errors
    ///
    /// Those of `cuDeviceGetAttribute`.
    #[doc(alias = "cuDeviceGetAttribute")]
    pub fn properties(&self) -> Result<&DeviceProperties> {
        if let Some(properties) = self.state().properties.get() {
            return Ok(properties);
        }
        self.driver.check()?;
        let properties = DeviceProperties::query(self)?;
        Ok(self.state().properties.get_or_init(|| properties))
    }

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

    /// Total bytes of physical memory. Needs no context.
    ///
    /// # Errors
    ///
    /// Those of `cuDeviceTotalMem`.
    #[doc(alias = "cuDeviceTotalMem")]
    pub fn total_memory(&self) -> Result<usize> {
        self.driver.check()?;
        raw::device_total_memory(self.sys(), self.handle())
            .attempt(|| format!("asking for the memory of {self}"))
    }

    /// Whether this device can reach the memory of `other`.
    ///
    /// # Errors
    ///
    /// Those of `cuDeviceCanAccessPeer`.
    #[doc(alias = "cuDeviceCanAccessPeer")]
    pub fn can_access(&self, other: &Device) -> Result<bool> {
        self.driver.check()?;
        if self == other {
            return Ok(true);
        }
        raw::can_access_peer(self.sys(), self.handle(), other.handle())
            .attempt(|| format!("asking whether {self} reaches the memory of {other}"))
    }

    pub(crate) fn attribute(&self, attribute: CUdevice_attribute) -> Result<i32> {
        raw::device_attribute(self.sys(), self.handle(), attribute)
            .attempt(|| format!("asking for attribute {} of {self}", attribute.0))
    }

    /// The granularity of allocations with these properties; asked once for each kind and kept.
    pub(crate) fn granularity_of(
        &self,
        prop: &CUmemAllocationProp,
        recommended: bool,
    ) -> Result<usize> {
        let key = GranularityKey {
            location: crate::location::raw_location(prop),
            handle_types: i64::from(prop.requestedHandleTypes.0),
            flags: (
                prop.allocFlags.compressionType,
                prop.allocFlags.gpuDirectRDMACapable,
            ),
            recommended,
        };
        let known = self
            .state()
            .granularities
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(&(_, bytes)) = known.iter().find(|(other, _)| *other == key) {
            return Ok(bytes);
        }
        drop(known);
        let option = if recommended {
            CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
        } else {
            CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM
        };
        let attempt = || format!("asking for the allocation granularity of {self}");
        let bytes = raw::granularity(self.sys(), prop, option).attempt(attempt)?;
        if !bytes.is_power_of_two() {
            return Err(Error::new(
                crate::ErrorKind::Driver,
                attempt(),
                format!("the driver answered {bytes} bytes, which is not a power of two"),
            ));
        }
        let mut known = self
            .state()
            .granularities
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if !known.iter().any(|(other, _)| *other == key) {
            known.push((key, bytes));
        }
        Ok(bytes)
    }

    /// The primary context, retained once and kept until the driver goes.
    pub(crate) fn primary_context(&self) -> Result<RawContext> {
        self.driver.check()?;
        let primary = &self.state().primary;
        if let Some(context) = *primary.lock().unwrap_or_else(PoisonError::into_inner) {
            return Ok(context);
        }
        // Not under the lock: making a context takes long. A race retains twice and gives one back.
        let context = raw::primary_context_retain(self.sys(), self.handle())
            .attempt(|| format!("making the primary context of {self}"))?;
        let mut slot = primary.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(first) = *slot else {
            *slot = Some(RawContext(context));
            return Ok(RawContext(context));
        };
        drop(slot);
        raw::primary_context_release(self.sys(), self.handle())
            .attempt(|| format!("releasing the primary context of {self}"))?;
        Ok(first)
    }

    /// Whether a primary context of this device exists in this process, made by anyone.
    pub(crate) fn primary_context_is_active(&self) -> Result<bool> {
        raw::primary_context_is_active(self.sys(), self.handle())
            .attempt(|| format!("asking for the primary context of {self}"))
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        self.handle() == other.handle() && self.uuid() == other.uuid()
    }
}

impl Eq for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("ordinal", &self.index)
            .field("name", &self.name())
            .field("uuid", &self.uuid())
            .finish()
    }
}

/// `GPU 0`, with the ordinal of this process.
impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GPU {}", self.index)
    }
}
