//! What went wrong, while doing what, and what to do about it.

use std::borrow::Cow;
use std::fmt;

use vmm_sys as sys;
use vmm_sys::CUresult;

/// The result of every fallible call in this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error: one sentence that says what was attempted, what the driver answered, and what to do.
///
/// Match on [`Error::kind`]; the text is for people and may change.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    /// What was being attempted, as a clause: "allocating 2097152 bytes on GPU 0".
    attempt: String,
    /// Why not, where no driver call says so.
    reason: Option<Cow<'static, str>>,
    driver: Option<sys::Error>,
    load: Option<sys::LoadError>,
    advice: Option<Cow<'static, str>>,
}

/// What kind of thing went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The driver could not be loaded or initialised.
    Load,
    /// This process is a child forked from the one that initialised the driver.
    Forked,
    /// A size, alignment, ordinal or option that cannot be right, refused before any driver call.
    InvalidArgument,
    /// A range that does not lie inside the buffer or slice.
    OutOfBounds,
    /// The device, the driver or the platform does not offer what was asked for.
    NotSupported,
    /// What was asked for exists but this process may not use it.
    NotPermitted,
    /// No such device in this process.
    NoDevice,
    /// Too little free physical memory.
    OutOfMemory,
    /// Too little free address space.
    OutOfAddressSpace,
    /// The process has no file descriptor left.
    FdLimit,
    /// The memory was not made shareable in this way.
    NotShareable,
    /// The memory is also held elsewhere, so that it cannot be given back.
    Aliased,
    /// The stream is being captured into a graph, where waiting is not possible.
    Capturing,
    /// The descriptor or handle is not one that the driver gave out.
    NotAHandle,
    /// A kernel or a copy failed earlier; the device's context is unusable from then on.
    ContextBroken,
    /// Any other answer of the driver: see [`Error::code`].
    Driver,
}

impl Error {
    pub(crate) fn new(
        kind: ErrorKind,
        attempt: impl Into<String>,
        reason: impl Into<Cow<'static, str>>,
    ) -> Self {
        Error(Box::new(Inner {
            kind,
            attempt: attempt.into(),
            reason: Some(reason.into()),
            driver: None,
            load: None,
            advice: None,
        }))
    }

    pub(crate) fn invalid(
        attempt: impl Into<String>,
        reason: impl Into<Cow<'static, str>>,
    ) -> Self {
        Error::new(ErrorKind::InvalidArgument, attempt, reason)
    }

    pub(crate) fn load(error: sys::LoadError) -> Self {
        Error(Box::new(Inner {
            kind: ErrorKind::Load,
            attempt: "loading the CUDA driver".into(),
            reason: None,
            driver: None,
            load: Some(error),
            advice: None,
        }))
    }

    pub(crate) fn driver(attempt: impl Into<String>, error: sys::Error) -> Self {
        let (kind, advice) = explain(&error);
        Error(Box::new(Inner {
            kind,
            attempt: attempt.into(),
            reason: None,
            driver: Some(error),
            load: None,
            advice: advice.map(Cow::Borrowed),
        }))
    }

    /// Replace what the code alone says by what is known here.
    pub(crate) fn because(mut self, kind: ErrorKind, advice: impl Into<Cow<'static, str>>) -> Self {
        self.0.kind = kind;
        self.0.advice = Some(advice.into());
        self
    }

    pub(crate) fn advise(mut self, advice: impl Into<Cow<'static, str>>) -> Self {
        self.0.advice = Some(advice.into());
        self
    }

    /// What kind of thing went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The driver's answer, where a driver call failed.
    pub fn code(&self) -> Option<CUresult> {
        self.0.driver.as_ref().and_then(sys::Error::code)
    }

    /// What was being attempted, as a clause without a full stop.
    pub fn attempt(&self) -> &str {
        &self.0.attempt
    }

    /// What to do about it, where that is known.
    pub fn advice(&self) -> Option<&str> {
        self.0.advice.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &self.0;
        f.write_str(&inner.attempt)?;
        if let Some(reason) = &inner.reason {
            write!(f, ": {reason}")?;
        }
        if let Some(error) = &inner.driver {
            write!(f, ": {error}")?;
        }
        if let Some(error) = &inner.load {
            write!(f, ": {error}")?;
        }
        if let Some(advice) = &inner.advice {
            write!(f, "; {advice}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("code", &self.code())
            .field("text", &self.to_string())
            .finish()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // The text already carries the driver's words, so a chain would say them twice.
        None
    }
}

/// Say what a driver call was for, when it fails.
pub(crate) trait Attempt<T> {
    fn attempt<S: Into<String>>(self, what: impl FnOnce() -> S) -> Result<T>;
}

impl<T> Attempt<T> for std::result::Result<T, sys::Error> {
    fn attempt<S: Into<String>>(self, what: impl FnOnce() -> S) -> Result<T> {
        self.map_err(|error| Error::driver(what(), error))
    }
}

fn explain(error: &sys::Error) -> (ErrorKind, Option<&'static str>) {
    let Some(code) = error.code() else {
        return (ErrorKind::NotSupported, Some("a newer driver is needed"));
    };
    match code {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => (
            ErrorKind::OutOfMemory,
            Some("free device memory (also in other processes) or ask for less"),
        ),
        CUresult::CUDA_ERROR_NOT_SUPPORTED => (ErrorKind::NotSupported, None),
        CUresult::CUDA_ERROR_NOT_PERMITTED => (ErrorKind::NotPermitted, None),
        CUresult::CUDA_ERROR_NO_DEVICE => (
            ErrorKind::NoDevice,
            Some("no GPU is visible to this process: see CUDA_VISIBLE_DEVICES and nvidia-smi"),
        ),
        CUresult::CUDA_ERROR_INVALID_DEVICE => (ErrorKind::NoDevice, None),
        CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE => (
            ErrorKind::NotPermitted,
            Some("another process has the GPU to itself: `nvidia-smi -c DEFAULT` lets all use it"),
        ),
        CUresult::CUDA_ERROR_SYSTEM_NOT_READY => (
            ErrorKind::Load,
            Some("on a machine with NVSwitch nvidia-fabricmanager has to run first"),
        ),
        CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => (
            ErrorKind::Load,
            Some("reboot after an update; in a container use the host's library"),
        ),
        CUresult::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE => (
            ErrorKind::Load,
            Some("take CUDA's compatibility library off LD_LIBRARY_PATH"),
        ),
        CUresult::CUDA_ERROR_OPERATING_SYSTEM => (
            ErrorKind::Driver,
            Some("the operating system refused: see `ulimit -n` for the limit of open files"),
        ),
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
        | CUresult::CUDA_ERROR_LAUNCH_FAILED
        | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
        | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
        | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
        | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
        | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
        | CUresult::CUDA_ERROR_INVALID_PC
        | CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
        | CUresult::CUDA_ERROR_ASSERT => (
            ErrorKind::ContextBroken,
            Some("earlier work on this device failed, and its context cannot be used any more"),
        ),
        CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
        | CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
        | CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED => (ErrorKind::Capturing, None),
        _ => (ErrorKind::Driver, None),
    }
}
