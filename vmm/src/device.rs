//! Devices: which there are, how to find one, and what it can do.

use std::fmt;

use vmm_sys as sys;
use vmm_sys::{CUdevice, CUmemAllocationProp, CUresult};

use crate::device_state::{DeviceState, Primary};
use crate::driver::Driver;
use crate::error::{Attempt, Error, ErrorKind, Result};
use crate::properties::DeviceProperties;
use crate::raw;
use crate::uuid::Uuid;

/// One GPU as this process sees it.
///
/// Cloning is cheap. Two values are equal when they are the same device of this process.
#[derive(Clone)]
pub struct Device {
    driver: Driver,
    index: u16,
}

/// Finding devices.
impl Driver {
    /// Every device this process sees, by ordinal.
    pub fn devices(&self) -> Vec<Device> {
        (0..self.device_count())
            .map(|index| Device::new(self.clone(), index))
            .collect()
    }

    /// The device with this ordinal. Ordinals differ between processes: see [`Driver::device_by_uuid`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoDevice`] where there is none.
    #[doc(alias = "cuDeviceGet")]
    pub fn device(&self, ordinal: usize) -> Result<Device> {
        self.check()?;
        if ordinal < self.device_count() {
            return Ok(Device::new(self.clone(), ordinal));
        }
        Err(self.no_device(format!("looking for device {ordinal}")))
    }

    /// The device with this UUID, which is the same in every process.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoDevice`] where this process does not see it.
    #[doc(alias = "cuDeviceGetUuid")]
    pub fn device_by_uuid(&self, uuid: Uuid) -> Result<Device> {
        self.check()?;
        match self.states().iter().position(|device| device.uuid == uuid) {
            Some(index) => Ok(Device::new(self.clone(), index)),
            None => Err(self.no_device(format!("looking for device {uuid}"))),
        }
    }

    /// The device at this PCI bus id, as in `0000:1b:00.0`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] for a text that is no bus id, [`ErrorKind::NoDevice`] where this
    /// process does not see the device.
    #[doc(alias = "cuDeviceGetByPCIBusId")]
    pub fn device_by_pci_bus_id(&self, id: &str) -> Result<Device> {
        self.check()?;
        let attempt = || format!("looking for the device at PCI bus id {id}");
        let text = std::ffi::CString::new(id)
            .map_err(|_| Error::invalid(attempt(), "the text holds a zero byte"))?;
        let handle = raw::device_by_pci_bus_id(self.sys(), &text).map_err(|error| {
            let error = Error::driver(attempt(), error);
            match error.code() {
                Some(CUresult::CUDA_ERROR_INVALID_VALUE) => error.because(
                    ErrorKind::InvalidArgument,
                    "a PCI bus id is of the form 0000:1b:00.0",
                ),
                _ => error.because(ErrorKind::NoDevice, HIDDEN),
            }
        })?;
        match self.device_by_handle(handle) {
            Some(index) => Ok(Device::new(self.clone(), usize::from(index))),
            None => Err(self.no_device(attempt())),
        }
    }

    fn no_device(&self, attempt: String) -> Error {
        let seen = match self.device_count() {
            0 => "this process sees no device".to_owned(),
            1 => "this process sees one device, ordinal 0".to_owned(),
            n => format!("this process sees {n} devices, ordinals 0 to {}", n - 1),
        };
        Error::new(ErrorKind::NoDevice, attempt, seen).advise(HIDDEN)
    }
}

const HIDDEN: &str = "a GPU can be hidden by CUDA_VISIBLE_DEVICES or by the container";

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
        self.driver.check()?;
        self.state()
            .properties(self.sys())
            .attempt(|| format!("asking for the attributes of {self}"))
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

    /// Whether this device can reach the memory of `other`. Asked once for each device and kept.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] for devices of two driver libraries; those of
    /// `cuDeviceCanAccessPeer`.
    #[doc(alias = "cuDeviceCanAccessPeer")]
    pub fn can_access(&self, other: &Device) -> Result<bool> {
        self.driver.check()?;
        if self == other {
            return Ok(true);
        }
        let attempt = || format!("asking whether {self} reaches the memory of {other}");
        self.driver.check_same(&other.driver, attempt)?;
        self.state()
            .can_access(self.sys(), other.handle())
            .attempt(attempt)
    }

    /// Why memory of `holder` cannot be mapped for this device.
    pub(crate) fn cannot_reach(&self, holder: &Device) -> String {
        format!("{self} cannot reach the memory of {holder}: there is no peer access between them")
    }

    /// The granularity of allocations with these properties; asked once for each kind and kept.
    pub(crate) fn granularity_of(
        &self,
        prop: &CUmemAllocationProp,
        recommended: bool,
    ) -> Result<usize> {
        let attempt = || format!("asking for the allocation granularity of {self}");
        let bytes = self
            .state()
            .granularity(self.sys(), prop, recommended)
            .attempt(attempt)?;
        if !bytes.is_power_of_two() {
            let reason = format!("the driver answered {bytes} bytes, which is not a power of two");
            return Err(Error::new(ErrorKind::Driver, attempt(), reason));
        }
        Ok(bytes)
    }

    /// The primary context, retained once and kept until the driver goes.
    pub(crate) fn primary(&self) -> Result<Primary> {
        self.driver.check()?;
        self.state()
            .primary(self.sys())
            .attempt(|| format!("making the primary context of {self}"))
    }

    /// Whether a primary context of this device exists in this process, made by anyone.
    pub(crate) fn primary_context_is_active(&self) -> Result<bool> {
        raw::primary_context_is_active(self.sys(), self.handle())
            .attempt(|| format!("asking for the primary context of {self}"))
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        self.handle() == other.handle()
            && self.uuid() == other.uuid()
            && self.driver.is_same(&other.driver)
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
