//! The only door to the driver: every unsafe call of this crate is here.
//!
//! Each function takes proof of what the driver cannot check by itself. A [`PhysicalHandle`] comes
//! from the driver and is consumed by its release, so a stale or invented handle (which crashes the
//! real driver) cannot be passed. A [`Span`] is a range that was bounds checked against a live
//! mapping. Host memory travels as slices. What remains (sizes, flags, devices) the driver answers
//! with an error code.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use vmm_sys as sys;
use vmm_sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUmemAccessDesc, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemGenericAllocationHandle,
    CUmemRangeHandleType, CUresult, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus,
};

pub(crate) type Call<T> = Result<T, sys::Error>;

/// One reference to physical memory, as the driver gave it out; released exactly once.
#[derive(Debug)]
pub(crate) struct PhysicalHandle(CUmemGenericAllocationHandle);

/// One reserved range, as the driver gave it out; freed exactly once, with its exact pair.
#[derive(Debug)]
pub(crate) struct AddressPair {
    pub(crate) base: u64,
    pub(crate) size: usize,
}

/// A range of addresses that lies inside mappings kept alive for `'a`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span<'a> {
    address: u64,
    len: usize,
    alive: PhantomData<&'a ()>,
}

impl<'a> Span<'a> {
    /// `keeper` is what holds the mappings; the caller has checked that the range is inside them.
    pub(crate) fn inside<T>(_keeper: &'a T, address: u64, len: usize) -> Self {
        Span {
            address,
            len,
            alive: PhantomData,
        }
    }

    /// The `len` bytes from `start` on, as far as they lie inside this range.
    pub(crate) fn part(self, start: usize, len: usize) -> Self {
        let start = start.min(self.len);
        Span {
            address: self.address + start as u64,
            len: len.min(self.len - start),
            alive: PhantomData,
        }
    }
}

/// The bytes of a fabric handle.
pub(crate) const FABRIC_BYTES: usize = 64;

pub(crate) fn init(d: &sys::Driver) -> Call<()> {
    // SAFETY: flags must be zero; nothing else is asked of the caller.
    unsafe { d.cuInit(0) }
}

pub(crate) fn device_count(d: &sys::Driver) -> Call<c_int> {
    let mut count = 0;
    // SAFETY: the out pointer is a live local.
    unsafe { d.cuDeviceGetCount(&mut count) }?;
    Ok(count)
}

pub(crate) fn device(d: &sys::Driver, ordinal: c_int) -> Call<CUdevice> {
    let mut device = CUdevice::default();
    // SAFETY: the out pointer is a live local; the driver checks the ordinal.
    unsafe { d.cuDeviceGet(&mut device, ordinal) }?;
    Ok(device)
}

pub(crate) fn device_uuid(d: &sys::Driver, device: CUdevice) -> Call<[u8; 16]> {
    let mut uuid = sys::CUuuid::default();
    // SAFETY: the out pointer is a live local; the driver checks the device.
    match unsafe { d.cuDeviceGetUuid_v2(&mut uuid, device) } {
        // Before CUDA 11.4 there are no MIG instances to tell apart.
        Err(error) if error.code().is_none() => {
            // SAFETY: as above.
            unsafe { d.cuDeviceGetUuid(&mut uuid, device) }?;
        }
        result => result?,
    }
    // Of C's `char`, which has a sign or none.
    Ok(uuid.bytes.map(|byte| byte.to_ne_bytes()[0]))
}

pub(crate) fn device_name(d: &sys::Driver, device: CUdevice) -> Call<String> {
    let mut text = [0 as c_char; 256];
    // SAFETY: the driver writes at most 256 bytes, terminated, into a live local of that length.
    unsafe { d.cuDeviceGetName(text.as_mut_ptr(), 256, device) }?;
    Ok(terminated(&text))
}

pub(crate) fn device_pci_bus_id(d: &sys::Driver, device: CUdevice) -> Call<String> {
    let mut text = [0 as c_char; 64];
    // SAFETY: the driver writes at most 64 bytes, terminated, into a live local of that length.
    unsafe { d.cuDeviceGetPCIBusId(text.as_mut_ptr(), 64, device) }?;
    Ok(terminated(&text))
}

pub(crate) fn device_by_pci_bus_id(d: &sys::Driver, id: &CStr) -> Call<CUdevice> {
    let mut device = CUdevice::default();
    // SAFETY: the out pointer is a live local and the text is terminated.
    unsafe { d.cuDeviceGetByPCIBusId(&mut device, id.as_ptr()) }?;
    Ok(device)
}

pub(crate) fn device_total_memory(d: &sys::Driver, device: CUdevice) -> Call<usize> {
    let mut bytes = 0;
    // SAFETY: the out pointer is a live local; the driver checks the device.
    unsafe { d.cuDeviceTotalMem(&mut bytes, device) }?;
    Ok(bytes)
}

pub(crate) fn device_attribute(
    d: &sys::Driver,
    device: CUdevice,
    attribute: CUdevice_attribute,
) -> Call<c_int> {
    let mut value = 0;
    // SAFETY: the out pointer is a live local; the driver checks device and attribute.
    unsafe { d.cuDeviceGetAttribute(&mut value, attribute, device) }?;
    Ok(value)
}

pub(crate) fn can_access_peer(d: &sys::Driver, from: CUdevice, to: CUdevice) -> Call<bool> {
    let mut value = 0;
    // SAFETY: the out pointer is a live local; the driver checks both devices.
    unsafe { d.cuDeviceCanAccessPeer(&mut value, from, to) }?;
    Ok(value != 0)
}

pub(crate) fn primary_context_is_active(d: &sys::Driver, device: CUdevice) -> Call<bool> {
    let (mut flags, mut active): (c_uint, c_int) = (0, 0);
    // SAFETY: both out pointers are live locals.
    unsafe { d.cuDevicePrimaryCtxGetState(device, &mut flags, &mut active) }?;
    Ok(active != 0)
}

pub(crate) fn primary_context_retain(d: &sys::Driver, device: CUdevice) -> Call<CUcontext> {
    let mut context: CUcontext = std::ptr::null_mut();
    // SAFETY: the out pointer is a live local.
    unsafe { d.cuDevicePrimaryCtxRetain(&mut context, device) }?;
    Ok(context)
}

pub(crate) fn primary_context_release(d: &sys::Driver, device: CUdevice) -> Call<()> {
    // SAFETY: `DeviceState` calls this once for the one retain it holds, after its last user.
    match unsafe { d.cuDevicePrimaryCtxRelease(device) } {
        // A driver older than CUDA 11.0 has only the first form, and nothing was called.
        Err(error) if error.code().is_none() => {
            // SAFETY: as above.
            unsafe { d.cuDevicePrimaryCtxRelease_v1(device) }
        }
        answer => answer,
    }
}

pub(crate) fn context_push(d: &sys::Driver, context: CUcontext) -> Call<()> {
    // SAFETY: the context is a retained primary context.
    unsafe { d.cuCtxPushCurrent(context) }
}

pub(crate) fn context_pop(d: &sys::Driver) -> Call<()> {
    let mut popped: CUcontext = std::ptr::null_mut();
    // SAFETY: the out pointer is a live local.
    unsafe { d.cuCtxPopCurrent(&mut popped) }
}

/// Free and total bytes of the current context's device.
pub(crate) fn memory_info(d: &sys::Driver) -> Call<(usize, usize)> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: both out pointers are live locals.
    unsafe { d.cuMemGetInfo(&mut free, &mut total) }?;
    Ok((free, total))
}

pub(crate) fn granularity(
    d: &sys::Driver,
    prop: &CUmemAllocationProp,
    option: CUmemAllocationGranularity_flags,
) -> Call<usize> {
    let mut bytes = 0;
    // SAFETY: the out pointer is a live local and `prop` is a whole struct.
    unsafe { d.cuMemGetAllocationGranularity(&mut bytes, prop, option) }?;
    Ok(bytes)
}

pub(crate) fn create(
    d: &sys::Driver,
    size: usize,
    prop: &CUmemAllocationProp,
) -> Call<PhysicalHandle> {
    let mut handle = CUmemGenericAllocationHandle::default();
    // SAFETY: the out pointer is a live local and `prop` is a whole struct.
    unsafe { d.cuMemCreate(&mut handle, size, prop, 0) }?;
    Ok(PhysicalHandle(handle))
}

pub(crate) fn properties(d: &sys::Driver, handle: &PhysicalHandle) -> Call<CUmemAllocationProp> {
    let mut prop = CUmemAllocationProp::default();
    // SAFETY: the handle is live and the out pointer is a live local.
    unsafe { d.cuMemGetAllocationPropertiesFromHandle(&mut prop, handle.0) }?;
    Ok(prop)
}

pub(crate) fn release(d: &sys::Driver, handle: PhysicalHandle) -> Call<()> {
    // SAFETY: the handle came from the driver and is consumed here.
    unsafe { d.cuMemRelease(handle.0) }
}

pub(crate) fn export_fd(d: &sys::Driver, handle: &PhysicalHandle) -> Call<OwnedFd> {
    let mut fd: c_int = -1;
    let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    // SAFETY: for this handle type the driver writes one `int`, into a live local.
    unsafe { d.cuMemExportToShareableHandle((&raw mut fd).cast(), handle.0, kind, 0) }?;
    own("cuMemExportToShareableHandle", fd)
}

pub(crate) fn export_fabric(d: &sys::Driver, handle: &PhysicalHandle) -> Call<[u8; FABRIC_BYTES]> {
    let mut bytes = [0_u8; FABRIC_BYTES];
    let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC;
    // SAFETY: for this handle type the driver writes 64 bytes, into a live local of that length.
    unsafe { d.cuMemExportToShareableHandle(bytes.as_mut_ptr().cast(), handle.0, kind, 0) }?;
    Ok(bytes)
}

pub(crate) fn import_fd(d: &sys::Driver, fd: BorrowedFd<'_>) -> Call<PhysicalHandle> {
    let mut handle = CUmemGenericAllocationHandle::default();
    let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    // The driver takes the descriptor's value in place of a pointer.
    let value = fd.as_raw_fd() as usize as *mut c_void;
    // SAFETY: the descriptor is open for the whole call; what it refers to the driver checks.
    unsafe { d.cuMemImportFromShareableHandle(&mut handle, value, kind) }?;
    Ok(PhysicalHandle(handle))
}

pub(crate) fn import_fabric(d: &sys::Driver, bytes: &[u8; FABRIC_BYTES]) -> Call<PhysicalHandle> {
    let mut handle = CUmemGenericAllocationHandle::default();
    let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC;
    let mut copy = *bytes;
    // SAFETY: for this handle type the driver reads 64 bytes, from a live local of that length.
    unsafe { d.cuMemImportFromShareableHandle(&mut handle, copy.as_mut_ptr().cast(), kind) }?;
    Ok(PhysicalHandle(handle))
}

/// Reserve `size` bytes of addresses; `hint` 0 leaves the place to the driver.
pub(crate) fn reserve(
    d: &sys::Driver,
    size: usize,
    alignment: usize,
    hint: u64,
) -> Call<AddressPair> {
    let mut base = 0;
    // SAFETY: the out pointer is a live local; size, alignment and hint the driver checks.
    unsafe { d.cuMemAddressReserve(&mut base, size, alignment, hint, 0) }?;
    Ok(AddressPair { base, size })
}

pub(crate) fn free(d: &sys::Driver, pair: &AddressPair) -> Call<()> {
    // SAFETY: the exact pair that the driver gave out. Its one owner calls this when it goes.
    unsafe { d.cuMemAddressFree(pair.base, pair.size) }
}

/// Map the whole of `handle` at `address`, which the caller has claimed inside a reservation.
pub(crate) fn map(d: &sys::Driver, address: u64, size: usize, handle: &PhysicalHandle) -> Call<()> {
    // SAFETY: the handle is live and the range is claimed, so nothing else is mapped there.
    unsafe { d.cuMemMap(address, size, 0, handle.0, 0) }
}

/// Unmap whole mappings that the caller owns.
pub(crate) fn unmap(d: &sys::Driver, address: u64, size: usize) -> Call<()> {
    // SAFETY: the range covers whole mappings of the caller, and no one can reach them any more.
    unsafe { d.cuMemUnmap(address, size) }
}

pub(crate) fn set_access(
    d: &sys::Driver,
    address: u64,
    size: usize,
    access: &[CUmemAccessDesc],
) -> Call<()> {
    // SAFETY: pointer and count are those of one slice; the range covers mappings of the caller.
    unsafe { d.cuMemSetAccess(address, size, access.as_ptr(), access.len()) }
}

pub(crate) fn dma_buf(d: &sys::Driver, span: Span<'_>) -> Call<OwnedFd> {
    let mut fd: c_int = -1;
    let kind = CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
    // SAFETY: for this handle type the driver writes one `int`, into a live local.
    unsafe {
        d.cuMemGetHandleForAddressRange((&raw mut fd).cast(), span.address, span.len, kind, 0)
    }?;
    own("cuMemGetHandleForAddressRange", fd)
}

/// The descriptor that a successful call has written.
fn own(symbol: &'static str, fd: c_int) -> Call<OwnedFd> {
    if fd < 0 {
        return Err(sys::Error::failed(symbol, CUresult::CUDA_ERROR_UNKNOWN));
    }
    // SAFETY: it is new, and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What memory is allocated as, to keep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prop(pub(crate) CUmemAllocationProp);

// SAFETY: the one pointer in it is for other systems than Linux, and always null here.
unsafe impl Send for Prop {}
// SAFETY: as above.
unsafe impl Sync for Prop {}

/// A stream handle that stays valid for as long as its owner, a `Stream`, lives: it is destroyed with
/// it, kept by it, or kept by what the caller of `Stream::from_raw` promised.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawStream(pub(crate) CUstream);

impl RawStream {
    /// The legacy default stream of the current context.
    pub(crate) fn legacy() -> Self {
        RawStream(std::ptr::without_provenance_mut(1))
    }
}

// SAFETY: a stream handle is a name; the driver accepts it from any thread.
unsafe impl Send for RawStream {}
// SAFETY: as above.
unsafe impl Sync for RawStream {}

/// A retained primary context.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawContext(pub(crate) CUcontext);

// SAFETY: a context handle is a name; the driver accepts it from any thread.
unsafe impl Send for RawContext {}
// SAFETY: as above.
unsafe impl Sync for RawContext {}

/// A stream of the current context that does not synchronise with the legacy default stream.
pub(crate) fn stream_create(d: &sys::Driver) -> Call<RawStream> {
    const NON_BLOCKING: c_uint = 1;
    let mut stream: CUstream = std::ptr::null_mut();
    // SAFETY: the out pointer is a live local.
    unsafe { d.cuStreamCreate(&mut stream, NON_BLOCKING) }?;
    Ok(RawStream(stream))
}

pub(crate) fn stream_destroy(d: &sys::Driver, stream: RawStream) -> Call<()> {
    // SAFETY: the one owner of the stream calls this when it goes.
    unsafe { d.cuStreamDestroy(stream.0) }
}

pub(crate) fn stream_synchronize(d: &sys::Driver, stream: RawStream) -> Call<()> {
    // SAFETY: the stream is live (see `RawStream`).
    unsafe { d.cuStreamSynchronize(stream.0) }
}

/// Whether all work of the stream is done.
pub(crate) fn stream_is_idle(d: &sys::Driver, stream: RawStream) -> bool {
    // SAFETY: the stream is live (see `RawStream`).
    unsafe { d.cuStreamQuery(stream.0) }.is_ok()
}

pub(crate) fn stream_capture_status(
    d: &sys::Driver,
    stream: RawStream,
) -> Call<CUstreamCaptureStatus> {
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: the stream is live and the out pointer is a live local.
    unsafe { d.cuStreamIsCapturing(stream.0, &mut status) }?;
    Ok(status)
}

/// Set this thread's capture mode and return the one it had.
pub(crate) fn exchange_capture_mode(
    d: &sys::Driver,
    mode: CUstreamCaptureMode,
) -> Call<CUstreamCaptureMode> {
    let mut mode = mode;
    // SAFETY: the in-out pointer is a live local.
    unsafe { d.cuThreadExchangeStreamCaptureMode(&mut mode) }?;
    Ok(mode)
}

/// Where work that stays on devices runs; it is in order there when the call returns.
#[derive(Clone, Copy, Debug)]
pub(crate) enum On {
    /// The legacy default stream.
    Default,
    /// A stream.
    Stream(RawStream),
}

/// A stream of this crate's own, for copies between device and host: nobody else has its handle, so
/// nobody can have it captured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopyStream(pub(crate) RawStream);

pub(crate) fn copy_to_host(
    d: &sys::Driver,
    on: Option<CopyStream>,
    to: &mut [u8],
    from: Span<'_>,
) -> Call<()> {
    debug_assert_eq!(to.len(), from.len);
    let (pointer, len) = (to.as_mut_ptr().cast::<c_void>(), to.len().min(from.len));
    match on {
        // SAFETY: the source is mapped, the destination a live slice at least as long. The call
        // returns when the bytes are there.
        None => unsafe { d.cuMemcpyDtoH(pointer, from.address, len) },
        Some(stream) => {
            // SAFETY: as above, and `finish` returns when nothing more is written.
            unsafe { d.cuMemcpyDtoHAsync(pointer, from.address, len, stream.0.0) }?;
            finish(d, stream)
        }
    }
}

pub(crate) fn copy_from_host(
    d: &sys::Driver,
    on: Option<CopyStream>,
    to: Span<'_>,
    from: &[u8],
) -> Call<()> {
    debug_assert_eq!(to.len, from.len());
    let (pointer, len) = (from.as_ptr().cast::<c_void>(), from.len().min(to.len));
    match on {
        None => {
            // SAFETY: the destination is mapped, the source a live slice at least as long. The call
            // returns when the source has been read, which can be before the bytes are there.
            unsafe { d.cuMemcpyHtoD(to.address, pointer, len) }?;
            stream_synchronize(d, RawStream(std::ptr::null_mut()))
        }
        Some(stream) => {
            // SAFETY: as above, and `finish` returns when nothing more is read.
            unsafe { d.cuMemcpyHtoDAsync(to.address, pointer, len, stream.0.0) }?;
            finish(d, stream)
        }
    }
}

/// Wait for copies from or to a slice of the caller's.
///
/// The stream is never captured, and the caller has set the thread's capture mode to relaxed, so
/// other streams' captures do not forbid the wait. What is left to fail is a context that is broken
/// or gone, in which nothing runs any more. A failure that passes is waited out, by asking.
fn finish(d: &sys::Driver, stream: CopyStream) -> Call<()> {
    let Err(error) = stream_synchronize(d, stream.0) else {
        return Ok(());
    };
    loop {
        // SAFETY: the stream is live (see `RawStream`).
        match unsafe { d.cuStreamQuery(stream.0.0) } {
            Ok(()) => return Ok(()),
            Err(still) if still.code() == Some(CUresult::CUDA_ERROR_NOT_READY) => {
                std::thread::sleep(std::time::Duration::from_micros(100));
            }
            Err(_) => return Err(error),
        }
    }
}

pub(crate) fn copy(d: &sys::Driver, on: On, to: Span<'_>, from: Span<'_>) -> Call<()> {
    debug_assert_eq!(to.len, from.len);
    let len = to.len.min(from.len);
    match on {
        // SAFETY: both ranges are mapped and at least `len` long.
        On::Default => unsafe { d.cuMemcpyDtoD(to.address, from.address, len) },
        // SAFETY: as above; the caller notes the stream so that the mappings outlive the copy.
        On::Stream(stream) => unsafe {
            d.cuMemcpyDtoDAsync(to.address, from.address, len, stream.0)
        },
    }
}

pub(crate) fn fill(d: &sys::Driver, on: On, to: Span<'_>, value: u8) -> Call<()> {
    match on {
        // SAFETY: the range is mapped.
        On::Default => unsafe { d.cuMemsetD8(to.address, value, to.len) },
        // SAFETY: as above; the caller notes the stream so that the mapping outlives the work.
        On::Stream(stream) => unsafe { d.cuMemsetD8Async(to.address, value, to.len, stream.0) },
    }
}

fn terminated(text: &[c_char]) -> String {
    let bytes: Vec<u8> = text
        .iter()
        .map(|&c| c.to_ne_bytes()[0])
        .take_while(|&b| b != 0)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
