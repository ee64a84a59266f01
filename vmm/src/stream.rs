//! Streams, as far as memory needs them: what a release waits for.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};

use vmm_sys::{CUresult, CUstream, CUstreamCaptureStatus};

use crate::capture::Relaxed;
use crate::context::Current;
use crate::device::Device;
use crate::error::{Attempt, Error, ErrorKind, Result};
use crate::raw::{self, RawStream};

/// A stream of a device, to order copies on and to record in a buffer.
///
/// Cloning shares the one stream. A stream made here is destroyed with its last clone.
#[derive(Clone)]
#[doc(alias = "CUstream")]
pub struct Stream {
    inner: Arc<Inner>,
    /// Alive as long as any `Stream` of this stream is: what is noted for a release has none.
    held: Arc<()>,
}

/// A stream, as something to wait for. It keeps the stream, but puts no work on it.
#[derive(Clone)]
pub(crate) struct Noted {
    inner: Arc<Inner>,
    held: Weak<()>,
}

struct Inner {
    /// Before the device, whose driver may be the last that is left.
    owner: Owner,
    device: Device,
    raw: RawStream,
}

/// Who destroys the stream.
enum Owner {
    /// This value, when it goes.
    Here,
    /// Somebody else, later than the last use here: the caller has promised it.
    Elsewhere,
    /// What is kept here for that long.
    Kept { _keeper: Keeper },
}

/// Somebody's value, dropped without a panic: it goes in the drop of a buffer.
struct Keeper(Option<Box<dyn Send + Sync>>);

impl Drop for Keeper {
    fn drop(&mut self) {
        let value = self.0.take();
        if let Err(thrown) = catch_unwind(AssertUnwindSafe(move || drop(value))) {
            std::mem::forget(thrown);
        }
    }
}

impl Stream {
    /// A new stream in the primary context of `device`, which does not synchronise with the default
    /// stream.
    ///
    /// # Errors
    ///
    /// Those of `cuDevicePrimaryCtxRetain` and `cuStreamCreate`.
    #[doc(alias = "cuStreamCreate")]
    pub fn new(device: &Device) -> Result<Self> {
        let _current = Current::enter(device)?;
        let raw = raw::stream_create(device.sys())
            .attempt(|| format!("creating a stream on {device}"))?;
        Ok(Stream::of(Inner {
            device: device.clone(),
            raw,
            owner: Owner::Here,
        }))
    }

    /// A stream that something else owns: an engine, a framework. [`Stream::from_raw_kept`] is
    /// easier to use right.
    ///
    /// # Safety
    ///
    /// `stream` is a stream of the primary context of `device`, or the handle of its legacy default
    /// stream (1; null too, unless the driver was loaded with
    /// [per-thread default streams](vmm_sys::LoadOptions::per_thread_default_stream)). Not that of
    /// the per-thread default stream, which is another stream in each thread.
    ///
    /// It is not destroyed while a clone of the returned value is left, nor while a buffer, a slice or a
    /// sleeping buffer has it recorded, nor while any memory is mapped that a buffer had which recorded
    /// it, or that a copy or fill on it touched: a buffer that goes first leaves word of it to those
    /// that share the memory.
    #[expect(unsafe_code, reason = "the caller vouches for the handle")]
    pub unsafe fn from_raw(device: &Device, stream: CUstream) -> Self {
        Stream::foreign(device, stream, Owner::Elsewhere)
    }

    /// A stream that `keeper` owns, such as the `Arc` in which a framework holds its stream. The
    /// keeper is dropped with the last clone of the returned value and the last buffer and copy that
    /// recorded it or share memory with one that did, so the stream cannot go too early. Memory keeps
    /// every such stream that was ever recorded for it until it is unmapped, since nobody can ask
    /// another's stream whether it is done without harm to a capture: record one of a few, and not a
    /// new one for each piece of work.
    ///
    /// # Safety
    ///
    /// `stream` is a stream of the primary context of `device`, and it is not destroyed before
    /// `keeper` is dropped.
    #[expect(unsafe_code, reason = "the caller vouches for the handle")]
    pub unsafe fn from_raw_kept(
        device: &Device,
        stream: CUstream,
        keeper: impl Send + Sync + 'static,
    ) -> Self {
        let _keeper = Keeper(Some(Box::new(keeper)));
        Stream::foreign(device, stream, Owner::Kept { _keeper })
    }

    fn foreign(device: &Device, stream: CUstream, owner: Owner) -> Self {
        Stream::of(Inner {
            device: device.clone(),
            raw: RawStream(stream),
            owner,
        })
    }

    fn of(inner: Inner) -> Self {
        Stream {
            inner: Arc::new(inner),
            held: Arc::new(()),
        }
    }

    /// The driver's handle, to launch kernels with. It is valid while this value lives.
    pub fn as_raw(&self) -> CUstream {
        self.inner.raw.0
    }

    /// Give up this value, and hear what went wrong where it was the last and the stream could not be
    /// destroyed. Buffers in whose memory it has worked hold it too, until that work is waited for.
    ///
    /// # Errors
    ///
    /// Those of `cuStreamDestroy`.
    #[doc(alias = "cuStreamDestroy")]
    pub fn close(self) -> Result<()> {
        self.inner.device.driver().check()?;
        match Arc::into_inner(self.inner) {
            Some(mut inner) => inner.destroy(),
            None => Ok(()),
        }
    }

    /// The device that the stream belongs to.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Wait until all work submitted so far is done.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Capturing`] while the stream is being captured into a graph, without harm to the
    /// capture; the error of earlier work that failed.
    #[doc(alias = "cuStreamSynchronize")]
    pub fn synchronize(&self) -> Result<()> {
        self.inner.synchronize()
    }

    /// Whether work submitted now would be captured into a graph instead of run.
    ///
    /// # Errors
    ///
    /// Those of `cuStreamIsCapturing`.
    #[doc(alias = "cuStreamIsCapturing")]
    #[doc(alias = "cuThreadExchangeStreamCaptureMode")]
    pub fn is_capturing(&self) -> Result<bool> {
        self.inner.device.driver().check()?;
        let _current = Current::enter(&self.inner.device)?;
        is_capturing(&self.inner.device, self.inner.raw)
    }

    pub(crate) fn raw(&self) -> RawStream {
        self.inner.raw
    }

    /// The stream as something to wait for.
    pub(crate) fn noted(&self) -> Noted {
        Noted {
            inner: Arc::clone(&self.inner),
            held: Arc::downgrade(&self.held),
        }
    }
}

impl Noted {
    /// Whether the stream exists for as long as this value.
    pub(crate) fn is_kept(&self) -> bool {
        !matches!(self.inner.owner, Owner::Elsewhere)
    }

    /// Whether nobody can put work on the stream any more, and none is left on it.
    pub(crate) fn is_over(&self) -> bool {
        // Of another stream somebody may have the handle: asking can break a capture that begins.
        if !matches!(self.inner.owner, Owner::Here) || self.held.strong_count() > 0 {
            return false;
        }
        let device = &self.inner.device;
        let _relaxed = Relaxed::enter(device.driver());
        let Ok(_current) = Current::enter(device) else {
            return false;
        };
        // One that went in the middle of a capture is in that until it ends, and is not to be asked.
        is_capturing(device, self.inner.raw).is_ok_and(|capturing| !capturing)
            && raw::stream_is_idle(device.sys(), self.inner.raw)
    }

    pub(crate) fn is(&self, other: &Noted) -> bool {
        self.inner.raw.0 == other.inner.raw.0 && self.inner.device == other.inner.device
    }

    /// As [`Stream::synchronize`].
    pub(crate) fn wait(&self) -> Result<()> {
        self.inner.synchronize()
    }
}

/// Wait for the default stream of `device`, if any work can have been put there.
pub(crate) fn synchronize_default(device: &Device) -> Result<()> {
    // Without a context there is no stream, and making one only to wait for nothing is dear.
    if !device.primary_context_is_active()? {
        return Ok(());
    }
    let _relaxed = Relaxed::enter(device.driver());
    let _current = Current::enter(device)?;
    wait(device, RawStream::legacy(), "the default stream")
}

fn wait(device: &Device, stream: RawStream, name: &str) -> Result<()> {
    if is_capturing(device, stream)? {
        return Err(Error::new(
            ErrorKind::Capturing,
            format!("waiting for {name} of {device}"),
            "it is being captured into a graph, and waiting would invalidate the capture",
        )
        .advise("end the capture first, or release and wait from outside it"));
    }
    raw::stream_synchronize(device.sys(), stream)
        .attempt(|| format!("waiting for {name} of {device}"))
}

fn is_capturing(device: &Device, stream: RawStream) -> Result<bool> {
    match raw::stream_capture_status(device.sys(), stream) {
        Ok(status) => Ok(status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE),
        // Asked of the default stream while another stream of the context is being captured.
        Err(error) if error.code() == Some(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) => {
            Ok(true)
        }
        Err(error) => Err(Error::driver(
            format!("asking for a capture on {device}"),
            error,
        )),
    }
}

impl Inner {
    fn synchronize(&self) -> Result<()> {
        self.device.driver().check()?;
        // Another stream's capture forbids the wait otherwise, and is broken by it.
        let _relaxed = Relaxed::enter(self.device.driver());
        let _current = Current::enter(&self.device)?;
        wait(&self.device, self.raw, "a stream")
    }

    fn destroy(&mut self) -> Result<()> {
        if !matches!(self.owner, Owner::Here) || !self.device.driver().in_own_process() {
            return Ok(());
        }
        self.owner = Owner::Elsewhere;
        raw::stream_destroy(self.device.sys(), self.raw)
            .attempt(|| format!("destroying a stream on {}", self.device))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.device.driver().in_own_process() {
            // A framework's stream is the parent's to destroy as well.
            std::mem::forget(std::mem::replace(&mut self.owner, Owner::Elsewhere));
            return;
        }
        if let Err(error) = self.destroy() {
            self.device.driver().report(error);
        }
    }
}

impl fmt::Debug for Noted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Noted({:?})", self.inner.raw.0)
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("device", &self.inner.device.ordinal())
            .field("raw", &self.as_raw())
            .finish()
    }
}
