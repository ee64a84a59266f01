//! Physical memory: one handle, released once.

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use vmm_sys::{CUmemAllocationProp, CUresult};

use crate::device::Device;
use crate::driver::Driver;
use crate::error::{Attempt, Error, ErrorKind, Result};
use crate::location::{HandleTypes, Location};
use crate::raw::{self, PhysicalHandle, Prop};

/// Physical memory that the driver gave out: a chunk of one size, at no address yet.
///
/// Cloning shares the one handle. The handle is released when the last clone goes; the memory itself
/// goes when also the last mapping of it, in any buffer, and the last handle exported from it, in
/// any process, are gone.
#[derive(Clone)]
#[doc(alias = "CUmemGenericAllocationHandle")]
pub struct Allocation(Arc<Physical>);

struct Physical {
    driver: Driver,
    /// The device's ordinal. Chunks are many, so it is kept small.
    device: u16,
    /// `None` only while it is being released.
    handle: Option<PhysicalHandle>,
    size: usize,
    location: Location,
    handle_types: HandleTypes,
    imported: bool,
}

/// What an [`Allocation`] is known by without being kept: see [`Allocation::id`].
#[derive(Clone)]
pub struct AllocationId(Weak<Physical>);

impl PartialEq for AllocationId {
    fn eq(&self, other: &Self) -> bool {
        // As long as one of them lives, no other allocation takes that place.
        self.0.ptr_eq(&other.0)
    }
}

impl Eq for AllocationId {}

impl fmt::Debug for AllocationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AllocationId({:p})", self.0.as_ptr())
    }
}

/// The 64 bytes by which another process of the same NVLink or IMEX domain imports memory.
///
/// They are data: whoever knows them can ask the driver for the memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[doc(alias = "CUmemFabricHandle")]
pub struct FabricHandle([u8; FabricHandle::LEN]);

impl FabricHandle {
    /// The length of a fabric handle in bytes.
    pub const LEN: usize = raw::FABRIC_BYTES;

    /// From the bytes that [`FabricHandle::as_bytes`] gave in another process.
    pub const fn from_bytes(bytes: [u8; FabricHandle::LEN]) -> Self {
        FabricHandle(bytes)
    }

    /// The bytes, to send to another process.
    pub const fn as_bytes(&self) -> &[u8; FabricHandle::LEN] {
        &self.0
    }
}

impl fmt::Debug for FabricHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Whoever knows the bytes can import the memory, so they stay out of logs.
        f.write_str("FabricHandle(..)")
    }
}

/// Everything that decides what memory is allocated.
#[derive(Clone, Debug)]
pub(crate) struct Blueprint {
    pub(crate) device: Device,
    pub(crate) location: Location,
    pub(crate) handle_types: HandleTypes,
    pub(crate) prop: Prop,
    size: usize,
}

impl Blueprint {
    pub(crate) fn new(
        device: &Device,
        location: Location,
        handle_types: HandleTypes,
        prop: CUmemAllocationProp,
    ) -> Self {
        Blueprint {
            device: device.clone(),
            location,
            handle_types,
            prop: Prop(prop),
            size: 0,
        }
    }

    /// The same, for chunks of `size` bytes: a multiple of the granularity.
    pub(crate) fn of_size(&self, size: usize) -> Self {
        Blueprint {
            size,
            ..self.clone()
        }
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    pub(crate) fn allocate(&self) -> Result<Allocation> {
        let Blueprint {
            device,
            location,
            handle_types,
            prop,
            size,
        } = self;
        let handle = raw::create(device.sys(), *size, &prop.0).map_err(|error| {
            let code = error.code();
            let what = format!(
                "allocating {size} bytes of {location} memory on {device} (handle types: {handle_types})"
            );
            let error = Error::driver(what, error);
            let fabric = handle_types.contains(HandleTypes::FABRIC);
            match code {
                Some(CUresult::CUDA_ERROR_NOT_PERMITTED) if fabric => {
                    error.because(ErrorKind::NotPermitted, no_imex_channel())
                }
                Some(CUresult::CUDA_ERROR_INVALID_VALUE | CUresult::CUDA_ERROR_NOT_SUPPORTED) => {
                    error.because(
                        ErrorKind::NotSupported,
                        "this driver does not offer that combination of location, handle types and \
                         options",
                    )
                }
                _ => error,
            }
        })?;
        Ok(Allocation(Arc::new(Physical {
            driver: device.driver().clone(),
            device: device.index(),
            handle: Some(handle),
            size: *size,
            location: *location,
            handle_types: *handle_types,
            imported: false,
        })))
    }
}

impl Allocation {
    /// Import the memory behind a file descriptor that another process (or this one) exported.
    ///
    /// The descriptor is borrowed: it stays open, stays the caller's, and can be imported again.
    /// The driver does not say how large the memory is, so the exporter has to; a wrong `size` is
    /// found out when the memory is mapped. `device` is whom the memory is for: it may lie on another one
    /// that this process sees, which [`Allocation::device`] then tells.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotAHandle`] where the descriptor did not come from the driver;
    /// [`ErrorKind::NoDevice`] where the memory lies on a GPU that this process does not see;
    /// [`ErrorKind::InvalidArgument`] for a size that no allocation can have.
    #[doc(alias = "cuMemImportFromShareableHandle")]
    pub fn import_posix_fd(device: &Device, fd: BorrowedFd<'_>, size: usize) -> Result<Self> {
        device.driver().check()?;
        let what = || format!("importing {size} bytes on {device} from a file descriptor");
        check_import_size(size, what)?;
        let handle = raw::import_fd(device.sys(), fd)
            .map_err(|error| explain_import(Error::driver(what(), error)))?;
        Self::imported(device, handle, size, what)
    }

    /// Import the memory behind a fabric handle that a process of this NVLink or IMEX domain
    /// exported. As [`Allocation::import_posix_fd`] otherwise.
    ///
    /// # Errors
    ///
    /// As [`Allocation::import_posix_fd`]; [`ErrorKind::NotPermitted`] where this process has no
    /// IMEX channel.
    #[doc(alias = "cuMemImportFromShareableHandle")]
    pub fn import_fabric(device: &Device, fabric: &FabricHandle, size: usize) -> Result<Self> {
        device.driver().check()?;
        let what = || format!("importing {size} bytes on {device} from a fabric handle");
        check_import_size(size, what)?;
        let handle = raw::import_fabric(device.sys(), &fabric.0)
            .map_err(|error| explain_import(Error::driver(what(), error)))?;
        Self::imported(device, handle, size, what)
    }

    fn imported(
        device: &Device,
        handle: PhysicalHandle,
        size: usize,
        what: impl Fn() -> String,
    ) -> Result<Self> {
        let mut physical = Physical {
            driver: device.driver().clone(),
            device: device.index(),
            handle: Some(handle),
            size,
            location: Location::Device,
            handle_types: HandleTypes::NONE,
            imported: true,
        };
        // From here on `physical` owns the handle, so a failure below gives it back.
        let prop = match &physical.handle {
            Some(handle) => raw::properties(device.sys(), handle).attempt(&what)?,
            None => CUmemAllocationProp::default(),
        };
        physical.location = Location::from_raw(&prop.location).ok_or_else(|| {
            Error::new(
                ErrorKind::NotSupported,
                what(),
                "the memory is of an unknown location type",
            )
        })?;
        if physical.location == Location::Device {
            // The driver knows which device holds the memory, and refuses that of a hidden one.
            let holder = device.driver().device_by_handle(prop.location.id());
            physical.device = holder.ok_or_else(|| {
                let reason = format!(
                    "the driver says that it lies on device {}",
                    prop.location.id()
                );
                Error::new(ErrorKind::NoDevice, what(), reason)
            })?;
        }
        Ok(Allocation(Arc::new(physical)))
    }

    /// Export the memory as a new file descriptor, close-on-exec, that any process given it can
    /// import. An open descriptor keeps the memory alive, also when every process that used CUDA on
    /// it has exited.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotShareable`] for memory that was not allocated with
    /// [`HandleTypes::POSIX_FD`], or that was itself imported (the driver refuses that: pass on the
    /// descriptor it was imported from); [`ErrorKind::FdLimit`] where the process has no descriptor
    /// left.
    #[doc(alias = "cuMemExportToShareableHandle")]
    pub fn export_posix_fd(&self) -> Result<OwnedFd> {
        let handle = self.exportable(HandleTypes::POSIX_FD)?;
        raw::export_fd(self.0.driver.sys(), handle).map_err(|error| {
            let code = error.code();
            let error = Error::driver(self.exporting(HandleTypes::POSIX_FD), error);
            match code {
                Some(CUresult::CUDA_ERROR_OPERATING_SYSTEM) => error.because(
                    ErrorKind::FdLimit,
                    "the process is probably at its limit of open files: raise it with `ulimit -n`",
                ),
                _ => error,
            }
        })
    }

    /// Export the memory as 64 bytes that a process of this NVLink or IMEX domain can import.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotShareable`] for memory that was not allocated with [`HandleTypes::FABRIC`],
    /// or that was itself imported; [`ErrorKind::NotPermitted`] where this process has no IMEX
    /// channel.
    #[doc(alias = "cuMemExportToShareableHandle")]
    pub fn export_fabric(&self) -> Result<FabricHandle> {
        let handle = self.exportable(HandleTypes::FABRIC)?;
        let bytes = raw::export_fabric(self.0.driver.sys(), handle).map_err(|error| {
            let code = error.code();
            let error = Error::driver(self.exporting(HandleTypes::FABRIC), error);
            match code {
                Some(CUresult::CUDA_ERROR_NOT_PERMITTED) => {
                    error.because(ErrorKind::NotPermitted, no_imex_channel())
                }
                _ => error,
            }
        })?;
        Ok(FabricHandle(bytes))
    }

    fn exportable(&self, kind: HandleTypes) -> Result<&PhysicalHandle> {
        self.0.driver.check()?;
        let refuse = |reason: &'static str, advice: &'static str| {
            Err(Error::new(ErrorKind::NotShareable, self.exporting(kind), reason).advise(advice))
        };
        if self.0.imported {
            return refuse(
                "the memory was imported, and the driver does not export imported memory",
                "pass on the handle that it was imported from",
            );
        }
        match &self.0.handle {
            Some(handle) if self.0.handle_types.contains(kind) => Ok(handle),
            _ => refuse(
                "the memory was not allocated with that handle type",
                "ask for it when allocating: `Allocator::builder(..).handle_types(..)`",
            ),
        }
    }

    fn exporting(&self, kind: HandleTypes) -> String {
        format!(
            "exporting {} bytes on {} as {kind}",
            self.0.size,
            self.device()
        )
    }

    /// Bytes: a multiple of the granularity.
    pub fn size(&self) -> usize {
        self.0.size
    }

    /// The device that holds the memory, or for host memory the device it was allocated for.
    pub fn device(&self) -> Device {
        Device::new(self.0.driver.clone(), usize::from(self.0.device))
    }

    pub(crate) fn driver(&self) -> &Driver {
        &self.0.driver
    }

    /// Where the memory lies.
    pub fn location(&self) -> Location {
        self.0.location
    }

    /// The ways in which the memory can be exported: none for memory that was imported.
    pub fn handle_types(&self) -> HandleTypes {
        self.0.handle_types
    }

    /// Whether the memory came from a handle that was exported, by another process or this one.
    pub fn is_imported(&self) -> bool {
        self.0.imported
    }

    /// What to know this allocation by without keeping it: equal for its clones, and for no other
    /// allocation of this process, also not for one that comes after it is gone.
    pub fn id(&self) -> AllocationId {
        AllocationId(Arc::downgrade(&self.0))
    }

    /// Whether both values are the same memory by the same handle.
    pub fn is_same(&self, other: &Allocation) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether compression was granted, as the driver says it.
    ///
    /// # Errors
    ///
    /// Those of `cuMemGetAllocationPropertiesFromHandle`.
    #[doc(alias = "cuMemGetAllocationPropertiesFromHandle")]
    pub fn is_compressed(&self) -> Result<bool> {
        self.0.driver.check()?;
        match &self.0.handle {
            Some(handle) => {
                let prop = raw::properties(self.0.driver.sys(), handle)
                    .attempt(|| format!("asking for the properties of {self:?}"))?;
                Ok(prop.allocFlags.compressionType != 0)
            }
            None => Ok(false),
        }
    }

    /// Whether nobody else holds this handle.
    pub(crate) fn is_unique(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// How to make memory like this again.
    pub(crate) fn blueprint(&self) -> Result<Blueprint> {
        let attempt = || format!("asking for the properties of {self:?}");
        let handle = self.0.handle.as_ref();
        let prop = match handle.map(|handle| raw::properties(self.0.driver.sys(), handle)) {
            Some(prop) => prop.attempt(attempt)?,
            None => CUmemAllocationProp::default(),
        };
        Ok(Blueprint {
            device: self.device(),
            location: self.0.location,
            handle_types: self.0.handle_types,
            prop: Prop(prop),
            size: self.0.size,
        })
    }

    /// Give up this value, and hear what went wrong where it was the last and the handle could not be
    /// released. Buffers in which the memory is mapped hold it, too.
    ///
    /// # Errors
    ///
    /// Those of `cuMemRelease`.
    #[doc(alias = "cuMemRelease")]
    pub fn close(self) -> Result<()> {
        self.0.driver.check()?;
        self.let_go()
    }

    /// As [`Allocation::close`], by whoever knows which process this is.
    pub(crate) fn let_go(self) -> Result<()> {
        match Arc::into_inner(self.0) {
            Some(mut physical) => physical.release(),
            None => Ok(()),
        }
    }

    /// Whether both are memory of one kind: of one device, or of one place of the host.
    pub(crate) fn lies_with(&self, other: &Allocation) -> bool {
        let (a, b) = (&self.0, &other.0);
        a.location == b.location && a.device == b.device && a.driver.is_same(&b.driver)
    }

    pub(crate) fn map_at(&self, address: u64) -> raw::Call<()> {
        match &self.0.handle {
            Some(handle) => raw::map(self.0.driver.sys(), address, self.0.size, handle),
            // Not reachable: the handle is only taken by the release that consumes the last clone.
            None => Ok(()),
        }
    }
}

impl Physical {
    fn release(&mut self) -> Result<()> {
        let Some(handle) = self.handle.take() else {
            return Ok(());
        };
        if !self.driver.in_own_process() {
            return Ok(());
        }
        raw::release(self.driver.sys(), handle).attempt(|| {
            format!(
                "releasing {} bytes of memory on GPU {}",
                self.size, self.device
            )
        })
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        if let Err(error) = self.release() {
            self.driver.report(error);
        }
    }
}

impl fmt::Debug for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allocation")
            .field("size", &self.0.size)
            .field("device", &self.0.device)
            .field("location", &self.0.location)
            .field("handle_types", &self.0.handle_types)
            .field("imported", &self.0.imported)
            .finish()
    }
}

fn check_import_size(size: usize, what: impl Fn() -> String) -> Result<()> {
    if size == 0 {
        return Err(Error::invalid(what(), "an allocation is not empty"));
    }
    Ok(())
}

fn explain_import(error: Error) -> Error {
    match error.code() {
        Some(CUresult::CUDA_ERROR_UNKNOWN | CUresult::CUDA_ERROR_INVALID_HANDLE) => error.because(
            ErrorKind::NotAHandle,
            "this is the driver's answer to a descriptor that it did not export",
        ),
        Some(CUresult::CUDA_ERROR_INVALID_DEVICE) => error.because(
            ErrorKind::NoDevice,
            "the memory lies on a GPU that is hidden from this process: see CUDA_VISIBLE_DEVICES",
        ),
        Some(CUresult::CUDA_ERROR_NOT_PERMITTED) => {
            error.because(ErrorKind::NotPermitted, no_imex_channel())
        }
        _ => error,
    }
}

/// The reason for which drivers refuse fabric handles although the attribute promises them.
fn no_imex_channel() -> String {
    const CHANNELS: &str = "/dev/nvidia-caps-imex-channels";
    match std::fs::read_dir(CHANNELS).map(|entries| entries.count()) {
        Ok(0) | Err(_) => format!(
            "fabric handles need an IMEX channel and {CHANNELS}/channel0 is missing here: the \
             administrator creates it (nvidia-modprobe -c 0, or the module option \
             NVreg_CreateImexChannel0=1) and a container must be given it"
        ),
        Ok(n) => format!(
            "fabric handles need an IMEX channel: {CHANNELS} holds {n}, so check that this user may \
             open them and that nvidia-imex runs"
        ),
    }
}
