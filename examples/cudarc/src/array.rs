//! A part of a buffer as cudarc sees memory: a pointer, a length and the stream it is used on.

use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop};
use vmm::{Buffer, Slice, Stream};

/// `T`s in a part of a buffer, used on one stream of cudarc's.
pub struct Array<T> {
    slice: Slice,
    stream: Arc<CudaStream>,
    item: PhantomData<T>,
}

impl<T> Array<T> {
    /// The bytes `range` of `buffer`; the memory stays mapped until what was submitted on `stream`
    /// is done, and cudarc's stream exists until then.
    pub fn new(
        mut buffer: Buffer,
        range: impl RangeBounds<usize>,
        stream: &Arc<CudaStream>,
    ) -> vmm::Result<Self> {
        // The two crates have types of their own for the one pointer.
        let raw = stream.cu_stream().cast();
        // SAFETY: cudarc destroys the stream with its last `Arc`, of which one is kept; it belongs to
        // the primary context of the device with the buffer's ordinal, as `main` made it.
        let kept = unsafe { Stream::from_raw_kept(buffer.device(), raw, stream.clone()) };
        buffer.set_stream(Some(&kept));
        Ok(Array {
            slice: buffer.slice(range)?,
            stream: stream.clone(),
            item: PhantomData,
        })
    }

    /// Have `stream` begin after what this array's stream does now, and the other way around when
    /// the returned value goes.
    fn hand_over<'a>(&self, stream: &'a CudaStream) -> SyncOnDrop<'a> {
        if stream.cu_stream() == self.stream.cu_stream() {
            return SyncOnDrop::Record(None);
        }
        stream.context().record_err(stream.join(&self.stream));
        SyncOnDrop::sync_stream(stream)
    }
}

impl<T> DeviceSlice<T> for Array<T> {
    fn len(&self) -> usize {
        self.slice.len() / size_of::<T>()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }
}

impl<T> DevicePtr<T> for Array<T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        (self.slice.address(), self.hand_over(stream))
    }
}

impl<T> DevicePtrMut<T> for Array<T> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        (self.slice.address(), self.hand_over(stream))
    }
}
