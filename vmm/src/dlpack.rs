//! A part of a buffer as a tensor of another framework, by [DLPack](https://dmlc.github.io/dlpack).

use dlpark::DlpackFlags;
use dlpark::ffi::{DLDataType, DLDevice, DLDeviceType};
use dlpark::metadata::Dynamic;
use dlpark::versioned::Dlpack;

use crate::error::{Error, Result};
use crate::location::Access;
use crate::slice::Slice;

impl Slice {
    /// This part as a compact, row-major DLPack tensor: no byte is copied, and the tensor owns this
    /// share of the memory. Whoever takes it gives it back by the tensor's deleter, on any thread.
    /// Behind the feature `dlpack`.
    ///
    /// `shape` is in elements of `dtype`, and may cover less than the part. A tensor of memory that
    /// the device only reads says so by its flag. Host memory is a tensor of pinned host memory.
    ///
    /// What was submitted on the buffer's recorded stream is finished when this returns. The deleter
    /// waits for the recorded stream as every drop does: where the consumer works on a stream of its
    /// own, record that one first, by [`Buffer::set_stream`](crate::Buffer::set_stream).
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for elements that are not whole bytes,
    /// a part that is not aligned for them, a shape that is negative or larger than the part, and
    /// memory without access, or of both kinds; those of [`Buffer::synchronize`](crate::Buffer::synchronize).
    #[expect(unsafe_code, reason = "a C structure is put together")]
    pub fn into_dlpack(self, dtype: DLDataType, shape: &[i64]) -> Result<Dlpack> {
        let attempt = || {
            format!(
                "making a tensor of {shape:?} elements of {} bytes",
                self.len()
            )
        };
        let wrong = |reason: &str| Error::invalid(attempt(), reason.to_owned());
        let bits = usize::from(dtype.bits) * usize::from(dtype.lanes);
        if bits == 0 || !bits.is_multiple_of(8) {
            return Err(wrong("the elements are not whole bytes"));
        }
        let element = bits / 8;
        let bytes = shape
            .iter()
            .try_fold(element, |bytes, &n| {
                usize::try_from(n).ok()?.checked_mul(bytes)
            })
            .filter(|&bytes| bytes <= self.len());
        if bytes.is_none() {
            return Err(wrong("the shape is negative or larger than the part"));
        }
        let scalar = usize::from(dtype.bits / 8).next_power_of_two();
        if !self.address().is_multiple_of(scalar as u64) {
            return Err(wrong(
                "the part does not begin at a multiple of the element size",
            ));
        }
        let (on_host, access) = self
            .kind()
            .ok_or_else(|| wrong("a part of it is host memory, and a part is device memory"))?;
        if access == Access::None {
            return Err(wrong("the device has no access to the memory"));
        }
        self.buffer().synchronize()?;
        let device = self.buffer().device();
        let device = match on_host {
            false => DLDevice::cuda(i32::from(device.index())),
            true => DLDevice {
                device_type: DLDeviceType::CUDAHOST,
                device_id: 0,
            },
        };
        let flags = match access {
            Access::Read => DlpackFlags::READ_ONLY,
            _ => DlpackFlags::empty(),
        };
        let (data, attempt) = (self.address() as *mut _, attempt());
        let refused = |reason: String| Error::invalid(attempt.clone(), reason);
        let mut tensor = Dynamic::compact(shape)
            .initialize(Box::new(self))
            .map_err(|error| refused(error.to_string()))?;
        tensor.set_data(data).set_dtype(dtype).set_device(device);
        tensor
            .set_flags(flags)
            .map_err(|error| refused(error.to_string()))?;
        // SAFETY: the tensor owns the slice, which keeps the memory mapped at its address; the shape
        // was checked against the slice's length, and the deleter drops it on whichever thread: a
        // slice is `Send`, and its drop does not unwind.
        Ok(unsafe { tensor.finish() })
    }

    /// Whether this part is host memory, and the least that the device may do in it; `None` where it
    /// is both kinds of memory.
    fn kind(&self) -> Option<(bool, Access)> {
        let buffer = self.buffer();
        let mut touched = buffer
            .touched(self.offset(), self.len())
            .filter_map(|link| {
                let mapping = link.mapping();
                let on_host = mapping.allocation()?.location().is_host();
                Some((on_host, mapping.access()?.of(buffer.device())))
            });
        let nothing = (buffer.location().is_host(), Access::ReadWrite);
        let first = touched.next().unwrap_or(nothing);
        touched.try_fold(first, |(on_host, least), (other, access)| {
            (on_host == other).then(|| (on_host, least.min(access)))
        })
    }
}
