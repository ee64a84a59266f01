//! The initialised driver of this process.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use vmm_sys as sys;
use vmm_sys::CUresult;

use crate::close_error::CloseError;
use crate::device_state::DeviceState;
use crate::error::{Attempt, Error, ErrorKind, Result};
use crate::raw;

/// The CUDA driver, loaded and initialised in this process.
///
/// Cloning is cheap, and every device, allocation and buffer holds the driver, so the library stays
/// loaded for as long as anything of it lives. Loading twice is harmless: the driver is one per
/// process.
///
/// A process forked from this one cannot use the driver (nothing of CUDA survives a fork): there
/// every call answers [`ErrorKind::Forked`] and drops do nothing.
#[derive(Clone)]
pub struct Driver(Arc<Inner>);

struct Inner {
    sys: Arc<sys::Driver>,
    /// The process that initialised the driver; a forked child has another.
    process: u32,
    hook: Mutex<Option<Hook>>,
    devices: Vec<DeviceState>,
}

/// What to do where a fork came between.
const SPAWN: &str =
    "start the child with exec (spawn instead of fork), or fork before loading the driver";

type Hook = Arc<dyn Fn(&ReleaseError) + Send + Sync>;

/// A failure where no caller is there to receive it: in a drop.
///
/// See [`Driver::on_release_error`].
#[derive(Debug)]
pub struct ReleaseError {
    error: Error,
}

impl ReleaseError {
    /// What went wrong, and what could not be given back.
    pub fn error(&self) -> &Error {
        &self.error
    }
}

impl fmt::Display for ReleaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl Driver {
    /// Load and initialise the system's driver: `libcuda.so.1`, or what `VMM_LIBCUDA` names.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Load`] with the paths tried or the symbols missing; [`ErrorKind::NoDevice`]
    /// where the driver sees no GPU.
    #[doc(alias = "cuInit")]
    pub fn load() -> Result<Self> {
        Driver::new(sys::Driver::load().map_err(Error::load)?)
    }

    /// Load and initialise the driver at `path`.
    ///
    /// # Errors
    ///
    /// As [`Driver::load`].
    ///
    /// # Safety
    ///
    /// The library's code runs in this process: it must be a CUDA driver, or behave as one.
    #[expect(unsafe_code, reason = "the caller vouches for the library")]
    pub unsafe fn load_from(path: impl AsRef<Path>) -> Result<Self> {
        // SAFETY: passed on to the caller.
        let sys = unsafe { sys::Driver::load_from(path) };
        Driver::new(sys.map_err(Error::load)?)
    }

    /// Initialise a driver that [`vmm_sys`] loaded.
    ///
    /// # Errors
    ///
    /// Those of `cuInit`, and of asking for the devices.
    pub fn new(sys: sys::Driver) -> Result<Self> {
        raw::init(&sys).map_err(|error| {
            let error = Error::driver("initialising the CUDA driver", error);
            match error.code() {
                // That is the answer in a process forked from one that had initialised it.
                Some(CUresult::CUDA_ERROR_NOT_INITIALIZED) => {
                    error.because(ErrorKind::Forked, SPAWN)
                }
                _ => error,
            }
        })?;
        let count = raw::device_count(&sys).attempt(|| "counting the devices")?;
        let count = count.min(i32::from(u16::MAX));
        let devices = (0..count)
            .map(|n| DeviceState::query(&sys, n))
            .collect::<Result<_>>()?;
        let process = std::process::id();
        Ok(Driver(Arc::new(Inner {
            sys: Arc::new(sys),
            process,
            hook: Mutex::new(None),
            devices,
        })))
    }

    /// Give up this value, and hear what went wrong where it was the last and a primary context could
    /// not be given back. Every device, allocation, buffer and stream holds the driver, too.
    ///
    /// # Errors
    ///
    /// Those of `cuDevicePrimaryCtxRelease` and `cuStreamDestroy`.
    #[doc(alias = "cuDevicePrimaryCtxRelease")]
    pub fn close(self) -> std::result::Result<(), CloseError> {
        if let Err(error) = self.check() {
            return Err(CloseError::from_list(vec![error]));
        }
        let failed = Arc::into_inner(self.0).map(|mut inner| inner.release());
        match failed {
            Some(failed) if !failed.is_empty() => Err(CloseError::from_list(failed)),
            _ => Ok(()),
        }
    }

    /// The CUDA version the driver implements, as CUDA writes it: 13000 is 13.0.
    #[doc(alias = "cuDriverGetVersion")]
    pub fn version(&self) -> i32 {
        self.0.sys.version()
    }

    /// Whether this is the software driver of this project and not a GPU's.
    pub fn is_emulator(&self) -> bool {
        self.0.sys.is_emulator()
    }

    /// The driver's own calls, for what this crate does not offer.
    pub fn sys(&self) -> &sys::Driver {
        &self.0.sys
    }

    /// How many devices this process sees.
    #[doc(alias = "cuDeviceGetCount")]
    pub fn device_count(&self) -> usize {
        self.0.devices.len()
    }

    /// Hear of failures that happen in drops, where no caller can.
    ///
    /// The hook runs on the thread that drops, replaces the one before, and must not block. Without
    /// one such failures are silent (and are `tracing` warnings under that feature). What belongs to
    /// the end of the process, or to a forked child, is never reported.
    pub fn on_release_error(&self, hook: impl Fn(&ReleaseError) + Send + Sync + 'static) {
        // In a forked child nothing is reported, and a thread that is not there may hold the lock.
        if !self.in_own_process() {
            return;
        }
        let mut slot = self.0.hook.lock().unwrap_or_else(PoisonError::into_inner);
        let before = slot.replace(Arc::new(hook));
        drop(slot);
        drop(before);
    }

    /// The index of the device that the driver calls by this handle.
    pub(crate) fn device_by_handle(&self, handle: vmm_sys::CUdevice) -> Option<u16> {
        let index = self
            .0
            .devices
            .iter()
            .position(|device| device.handle == handle)?;
        u16::try_from(index).ok()
    }

    /// Every device this process sees, by ordinal.
    pub(crate) fn states(&self) -> &[DeviceState] {
        &self.0.devices
    }

    #[expect(clippy::indexing_slicing, reason = "see below")]
    pub(crate) fn state(&self, index: usize) -> &DeviceState {
        // A `Device` is only made with the index of a device in this list, which never changes.
        &self.0.devices[index]
    }

    /// Refuse to go on in a forked child, where every call would fail without a reason.
    pub(crate) fn check(&self) -> Result<()> {
        if self.in_own_process() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Forked,
            "using the CUDA driver in a forked child",
            "this process was forked after the driver was initialised, and CUDA does not survive a \
             fork",
        )
        .advise(SPAWN))
    }

    pub(crate) fn in_own_process(&self) -> bool {
        self.0.process == std::process::id()
    }

    /// That both are one driver: no handle of one gets into a call of the other.
    pub(crate) fn check_same(
        &self,
        other: &Driver,
        attempt: impl FnOnce() -> String,
    ) -> Result<()> {
        match self.is_same(other) {
            true => Ok(()),
            false => Err(Error::invalid(
                attempt(),
                "what is to meet comes from two driver libraries",
            )
            .advise("load one `vmm::Driver`, and clone it where it is needed")),
        }
    }

    /// Whether both are one driver, however often it was loaded.
    pub(crate) fn is_same(&self, other: &Driver) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.sys().is_same_library(other.sys())
    }

    /// Tell the hook of a failure in a drop.
    pub(crate) fn report(&self, error: Error) {
        self.0.report(error);
    }
}

impl Inner {
    /// Give back the primary contexts. What fails is returned.
    fn release(&mut self) -> Vec<Error> {
        let sys = &self.sys;
        let give_back = |device: &mut DeviceState| {
            let result = device.release(sys);
            result
                .attempt(|| format!("giving back the primary context of {}", device.name))
                .err()
        };
        self.devices.iter_mut().filter_map(give_back).collect()
    }

    fn report(&self, error: Error) {
        let gone = error.code() == Some(CUresult::CUDA_ERROR_DEINITIALIZED);
        if gone || self.process != std::process::id() {
            return;
        }
        let event = ReleaseError { error };
        // By whoever collects the traces of the program, which is as little to be trusted as a hook.
        #[cfg(feature = "tracing")]
        call_in_a_drop(|| tracing::warn!(error = %event, "could not release"));
        let hook = self
            .hook
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if let Some(hook) = hook {
            call_in_a_drop(move || {
                hook(&event);
                drop(hook);
            });
        }
    }
}

/// A panic out of a drop would abort the process, and what was thrown can panic as well.
fn call_in_a_drop(call: impl FnOnce()) {
    if let Err(thrown) = catch_unwind(AssertUnwindSafe(call)) {
        std::mem::forget(thrown);
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("version", &self.version())
            .field("devices", &self.device_count())
            .field("emulator", &self.is_emulator())
            .finish()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // Nor is the library unloaded in a forked child: its destructors are the parent's.
            std::mem::forget(Arc::clone(&self.sys));
            return;
        }
        for error in self.release() {
            self.report(error);
        }
    }
}
