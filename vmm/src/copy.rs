//! Bytes in and out. Every range is checked here; none is a Rust reference to device memory.
//!
//! Copies and fills are in order with the work on the buffer's recorded stream where it has one, and
//! else on the device's default stream. The caller's current context is left alone. Over chunks of
//! several kinds of memory one call here is several of the driver's: see `pieces`.

use bytemuck::{AnyBitPattern, NoUninit};
use vmm_sys::CUresult;

use crate::buffer::Buffer;
use crate::capture::Relaxed;
use crate::context::Current;
use crate::device::Device;
use crate::error::{Attempt, Error, ErrorKind, Result};
use crate::location::Access;
use crate::order::After;
use crate::pieces;
use crate::raw::{self, CopyStream, On};
use crate::stream::Stream;

impl Buffer {
    /// Copy the bytes from `offset` on into `to`, and wait for them. Work that was put on other streams
    /// than the recorded one is the caller's to wait for: [`Stream::synchronize`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfBounds`]; [`ErrorKind::Capturing`] while the recorded stream is being
    /// captured; those of the driver, as for memory that the device has no access to.
    #[doc(alias = "cuMemcpyDtoH")]
    #[doc(alias = "cuMemcpyDtoHAsync")]
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        self.span(offset, to.len())?;
        self.read_pieces(offset, to, &self.cuts(offset, to.len()))
    }

    /// As [`Buffer::read`], for a range that is to be cut there: nowhere inside one chunk.
    pub(crate) fn read_pieces(&self, offset: usize, to: &mut [u8], cuts: &[usize]) -> Result<()> {
        let span = self.span(offset, to.len())?;
        if to.is_empty() {
            return Ok(());
        }
        let len = to.len();
        let attempt = format_args_for("reading", len, offset);
        let copy = |sys: &vmm_sys::Driver, on: Option<CopyStream>| {
            pieces::between(cuts, len).try_for_each(|(start, len)| {
                let to = to.get_mut(start..start + len).unwrap_or_default();
                raw::copy_to_host(sys, on, to, span.part(start, len))
            })
        };
        self.with_host(&attempt, copy)
            .map_err(|error| self.explain(error, offset, len, Access::Read))
    }

    /// Copy `from` to `offset`, and wait until it is there.
    ///
    /// # Errors
    ///
    /// As [`Buffer::read`].
    #[doc(alias = "cuMemcpyHtoD")]
    #[doc(alias = "cuMemcpyHtoDAsync")]
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        self.span(offset, from.len())?;
        self.write_pieces(offset, from, &self.cuts(offset, from.len()))
    }

    /// As [`Buffer::write`], for a range that is to be cut there: nowhere inside one chunk.
    pub(crate) fn write_pieces(&self, offset: usize, from: &[u8], cuts: &[usize]) -> Result<()> {
        let span = self.span(offset, from.len())?;
        if from.is_empty() {
            return Ok(());
        }
        let attempt = format_args_for("writing", from.len(), offset);
        let copy = |sys: &vmm_sys::Driver, on: Option<CopyStream>| {
            pieces::between(cuts, from.len()).try_for_each(|(start, len)| {
                let from = from.get(start..start + len).unwrap_or_default();
                raw::copy_from_host(sys, on, span.part(start, len), from)
            })
        };
        let result = self.with_host(&attempt, copy);
        if result.is_err() && self.stream.is_none() {
            // The driver may have taken the bytes before it failed.
            self.note(After::Default(self.kind.device.clone()));
        }
        result.map_err(|error| self.explain(error, offset, from.len(), Access::ReadWrite))
    }

    /// Copy values of a plain type from byte `offset` on, and wait for them.
    ///
    /// # Errors
    ///
    /// As [`Buffer::read`]; [`ErrorKind::InvalidArgument`] where `offset` is not aligned for the
    /// type.
    pub fn read_values<T: AnyBitPattern + NoUninit>(
        &self,
        offset: usize,
        to: &mut [T],
    ) -> Result<()> {
        check_aligned::<T>(offset, || offset.to_string())?;
        self.read(offset, bytemuck::cast_slice_mut(to))
    }

    /// Copy values of a plain type to byte `offset`, and wait until they are there.
    ///
    /// # Errors
    ///
    /// As [`Buffer::write`]; [`ErrorKind::InvalidArgument`] where `offset` is not aligned for the
    /// type.
    pub fn write_values<T: NoUninit>(&self, offset: usize, from: &[T]) -> Result<()> {
        check_aligned::<T>(offset, || offset.to_string())?;
        self.write(offset, bytemuck::cast_slice(from))
    }

    /// Set `len` bytes from `offset` on to `value`, on the recorded stream or the default stream.
    /// Returns when the work is in order there; it need not be finished.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfBounds`]; those of the driver.
    #[doc(alias = "cuMemsetD8")]
    pub fn fill(&self, offset: usize, len: usize, value: u8) -> Result<()> {
        match &self.stream {
            Some(stream) => self.fill_on(&stream.clone(), offset, len, value),
            None => self.fill_via(None, offset, len, value),
        }
    }

    /// As [`Buffer::fill`], on this stream. The memory is not unmapped before the work is finished.
    /// While the stream is being captured the work becomes part of a graph, and a graph keeps no memory
    /// mapped: keep the buffer for as long as it is launched.
    ///
    /// # Errors
    ///
    /// As [`Buffer::fill`].
    #[doc(alias = "cuMemsetD8Async")]
    pub fn fill_on(&self, stream: &Stream, offset: usize, len: usize, value: u8) -> Result<()> {
        self.fill_via(Some(stream), offset, len, value)
    }

    /// Copy `len` bytes from `offset` on to `to_offset` of another buffer, or of this one, on this
    /// buffer's recorded stream or the default stream. Returns when the work is in order there; it
    /// need not be finished. Ranges that overlap give undefined bytes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfBounds`]; those of the driver.
    #[doc(alias = "cuMemcpyDtoD")]
    pub fn copy_to(&self, offset: usize, to: &Buffer, to_offset: usize, len: usize) -> Result<()> {
        match &self.stream {
            Some(stream) => self.copy_to_on(&stream.clone(), offset, to, to_offset, len),
            None => self.copy_via(None, offset, to, to_offset, len),
        }
    }

    /// As [`Buffer::copy_to`], on this stream. Neither buffer is unmapped before the work is
    /// finished. While the stream is being captured it is as with [`Buffer::fill_on`].
    ///
    /// # Errors
    ///
    /// As [`Buffer::copy_to`].
    #[doc(alias = "cuMemcpyDtoDAsync")]
    pub fn copy_to_on(
        &self,
        stream: &Stream,
        offset: usize,
        to: &Buffer,
        to_offset: usize,
        len: usize,
    ) -> Result<()> {
        self.copy_via(Some(stream), offset, to, to_offset, len)
    }

    fn fill_via(
        &self,
        stream: Option<&Stream>,
        offset: usize,
        len: usize,
        value: u8,
    ) -> Result<()> {
        let span = self.span(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let attempt = format_args_for("filling", len, offset);
        let (device, on) = self.runner(stream, &attempt)?;
        let _current = Current::enter(device)?;
        let result = pieces::between(&self.cuts(offset, len), len)
            .try_for_each(|(start, len)| raw::fill(device.sys(), on, span.part(start, len), value));
        self.note(submitted(stream, device));
        result
            .attempt(attempt)
            .map_err(|error| self.explain(error, offset, len, Access::ReadWrite))
    }

    fn copy_via(
        &self,
        stream: Option<&Stream>,
        offset: usize,
        to: &Buffer,
        to_offset: usize,
        len: usize,
    ) -> Result<()> {
        let (from, onto) = (self.span(offset, len)?, to.span(to_offset, len)?);
        if len == 0 {
            return Ok(());
        }
        let attempt = format_args_for("copying", len, offset);
        let driver = self.kind.device.driver();
        driver.check_same(to.kind.device.driver(), &attempt)?;
        let (device, on) = self.runner(stream, &attempt)?;
        let _current = Current::enter(device)?;
        let cuts = pieces::merged(self.cuts(offset, len), to.cuts(to_offset, len));
        let result = pieces::between(&cuts, len).try_for_each(|(start, len)| {
            let (onto, from) = (onto.part(start, len), from.part(start, len));
            raw::copy(device.sys(), on, onto, from)
        });
        self.note(submitted(stream, device));
        to.note(submitted(stream, device));
        result
            .attempt(attempt)
            .map_err(|error| self.explain(error, offset, len, Access::Read))
            .map_err(|error| to.explain(error, to_offset, len, Access::ReadWrite))
    }

    /// Whose context work is submitted in, and where it runs. A stream may be another device's, which
    /// then needs access to the memory.
    fn runner<'a>(
        &'a self,
        stream: Option<&'a Stream>,
        attempt: impl FnOnce() -> String,
    ) -> Result<(&'a Device, On)> {
        let Some(stream) = stream else {
            return Ok((&self.kind.device, On::Default));
        };
        let driver = self.kind.device.driver();
        driver.check_same(stream.device().driver(), attempt)?;
        Ok((stream.device(), On::Stream(stream.raw())))
    }

    /// A copy from or to the host. Without a recorded stream it runs on the default stream. With one
    /// it runs after what was submitted there and before what follows, on a stream of this crate's
    /// own: on the caller's another thread might begin a capture between the copy and the wait for it.
    fn with_host(
        &self,
        attempt: &impl Fn() -> String,
        copy: impl FnOnce(&vmm_sys::Driver, Option<CopyStream>) -> raw::Call<()>,
    ) -> Result<()> {
        let driver = self.kind.device.driver();
        driver.check()?;
        let _relaxed = Relaxed::enter(driver);
        self.wait_for_earlier()?;
        let Some(stream) = &self.stream else {
            let _current = Current::enter(&self.kind.device)?;
            return copy(driver.sys(), None).attempt(attempt);
        };
        driver.check_same(stream.device().driver(), attempt)?;
        stream.synchronize().map_err(|error| match error.kind() {
            ErrorKind::Capturing => Error::new(
                ErrorKind::Capturing,
                attempt(),
                "the buffer's stream is being captured into a graph, and the copy has to be waited for",
            ),
            _ => error,
        })?;
        let current = Current::enter(stream.device())?;
        // The stream's value of the driver, since the copy stream is one of that.
        copy(stream.device().sys(), Some(current.copies())).attempt(attempt)
    }

    /// The driver has one answer to every wrong argument. Where the memory is not mapped for what was
    /// tried, that is why.
    fn explain(&self, error: Error, offset: usize, len: usize, needed: Access) -> Error {
        let least = self
            .touched(offset, len)
            .filter_map(|link| Some(link.mapping().access()?.of(&self.kind.device)))
            .min();
        match (error.code(), least) {
            (Some(CUresult::CUDA_ERROR_INVALID_VALUE), Some(least)) if least < needed => error
                .because(
                    ErrorKind::NotPermitted,
                    format!(
                        "the memory is mapped for access {least} of {}: access is chosen when memory \
                         is allocated or imported",
                        self.kind.device
                    ),
                ),
            _ => error,
        }
    }
}

/// That `offset` of a buffer is aligned for a type; `place` says it as the caller did.
pub(crate) fn check_aligned<T>(offset: usize, place: impl FnOnce() -> String) -> Result<()> {
    if offset.is_multiple_of(align_of::<T>()) {
        return Ok(());
    }
    let (name, align) = (std::any::type_name::<T>(), align_of::<T>());
    Err(Error::invalid(
        format!("touching values of {name} at offset {}", place()),
        format!("that is not a multiple of their alignment, {align} bytes"),
    ))
}

/// What a release has to wait for after work was submitted. It is noted after the call: the buffers
/// are borrowed until then, and a note made earlier could be waited for, and forgotten, before the
/// work is there. It is noted where the call failed, too, since the driver answers for earlier work
/// as well.
fn submitted(stream: Option<&Stream>, device: &Device) -> After {
    match stream {
        Some(stream) => After::Stream(stream.noted()),
        None => After::Default(device.clone()),
    }
}

fn format_args_for(verb: &'static str, len: usize, offset: usize) -> impl Fn() -> String {
    move || format!("{verb} {len} bytes at offset {offset}")
}
