//! Calls inside a function of the program that a stream calls.

use crate::rig::{G, Rig, code, d, setup};
use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};
use vmm_sys::*;

/// What the calls are about: none of it is used by the stream that calls the function.
pub struct Things {
    /// Values of handles, which go to another thread.
    context: usize,
    stream: usize,
    event: usize,
    pub mapped: u64,
    handle: u64,
    fd: c_int,
    linear: u64,
    host: usize,
}

impl Things {
    pub fn make(r: &mut Rig) -> Result<Self, String> {
        r.current()?;
        let (mut linear, mut host) = (0, null_mut());
        setup(d!(r, cuMemAlloc(&mut linear, G)))?;
        setup(d!(r, cuMemAllocHost(&mut host, 4096)))?;
        let mapped = r.mapped(&[G], 3)?;
        let shared = r.memory_at(G, crate::rig::DEVICE, crate::rig::FD)?;
        Ok(Self {
            context: r.context() as usize,
            stream: r.stream(1)? as usize,
            event: r.event()? as usize,
            mapped,
            handle: shared,
            fd: r.export(shared).map_err(|error| error.to_string())?,
            linear,
            host: host as usize,
        })
    }

    fn context(&self) -> CUcontext {
        self.context as CUcontext
    }

    fn stream(&self) -> CUstream {
        self.stream as CUstream
    }

    fn event(&self) -> CUevent {
        self.event as CUevent
    }

    fn host(&self) -> *mut c_void {
        self.host as *mut c_void
    }
}

unsafe extern "C" fn nothing(_: *mut c_void) {}

type Ask = fn(&Driver, &Things) -> String;

/// Calls of the driver with the things of their case. Each pointer is that of a local, and the
/// handles are the case's.
macro_rules! calls {
    ($(($name:literal, |$driver:pat_param, $t:pat_param| $body:expr)),* $(,)?) => {
        &[$((
            $name,
            #[allow(clippy::undocumented_unsafe_blocks, unused_unsafe)] // said above, once for all
            |$driver: &Driver, $t: &Things| unsafe { $body },
        )),*]
    };
}

pub fn of_its_own_stream(driver: &Driver, stream: CUstream) -> String {
    let mut flags = 77;
    // SAFETY: the stream is alive while it calls this.
    let (query, told) = unsafe {
        (
            driver.cuStreamQuery(stream),
            driver.cuStreamGetFlags(stream, &mut flags),
        )
    };
    format!("query {}; flags {}, {flags}", code(query), code(told))
}

pub const CALLS: &[(&str, Ask)] =
    calls![
        ("cuDriverGetVersion", |driver, _| {
            code(driver.cuDriverGetVersion(&mut 0 as *mut c_int))
        }),
        ("cuCtxGetCurrent", |driver, _| {
            let mut found = null_mut();
            let called = code(driver.cuCtxGetCurrent(&mut found));
            format!("{called}, null {}", found.is_null())
        }),
        ("cuCtxSetCurrent", |driver, t| {
            code(driver.cuCtxSetCurrent(t.context()))
        }),
        ("cuDeviceGetCount", |driver, _| {
            code(driver.cuDeviceGetCount(&mut 0))
        }),
        ("cuMemGetInfo", |driver, _| {
            code(driver.cuMemGetInfo(&mut 0, &mut 0))
        }),
        ("cuMemAlloc", |driver, _| {
            code(driver.cuMemAlloc(&mut 0, G))
        }),
        ("cuMemAddressReserve", |driver, _| {
            code(driver.cuMemAddressReserve(&mut 0, G, 0, 0, 0))
        }),
        ("cuMemRelease", |driver, _| {
            code(driver.cuMemRelease(0x77))
        }),
        ("cuStreamQuery", |driver, t| {
            code(driver.cuStreamQuery(t.stream()))
        }),
        ("cuEventCreate", |driver, _| {
            code(driver.cuEventCreate(&mut null_mut(), 0))
        }),
        ("cuInit", |driver, _| code(driver.cuInit(0))),
        ("cuDeviceGet", |driver, _| {
            code(driver.cuDeviceGet(&mut 0, 0))
        }),
        ("cuDeviceGetAttribute", |driver, _| {
            code(driver.cuDeviceGetAttribute(&mut 0, CUdevice_attribute(75), 0))
        }),
        ("cuDevicePrimaryCtxRetain", |driver, _| {
            code(driver.cuDevicePrimaryCtxRetain(&mut null_mut(), 0))
        }),
        ("cuCtxGetDevice", |driver, _| {
            code(driver.cuCtxGetDevice(&mut 0))
        }),
        ("cuCtxSynchronize", |driver, _| {
            code(driver.cuCtxSynchronize())
        }),
        ("cuStreamSynchronize", |driver, t| {
            code(driver.cuStreamSynchronize(t.stream()))
        }),
        ("cuStreamIsCapturing", |driver, t| {
            code(driver.cuStreamIsCapturing(t.stream(), &mut CUstreamCaptureStatus(0)))
        }),
        ("cuStreamGetFlags", |driver, t| {
            code(driver.cuStreamGetFlags(t.stream(), &mut 0))
        }),
        ("cuLaunchHostFunc", |driver, t| {
            code(driver.cuLaunchHostFunc(t.stream(), Some(nothing), null_mut()))
        }),
        ("cuThreadExchangeStreamCaptureMode", |driver, _| {
            code(driver.cuThreadExchangeStreamCaptureMode(&mut CUstreamCaptureMode(2)))
        }),
        ("cuPointerGetAttribute", |driver, _| {
            let mut found = 0_u64;
            let at = &raw mut found;
            code(driver.cuPointerGetAttribute(at.cast(), CUpointer_attribute(2), at as u64))
        }),
        ("cuMemCreate", |driver, _| {
            let prop = device_memory();
            code(driver.cuMemCreate(&mut 0, G, &prop, 0))
        }),
        ("cuGetErrorName", |driver, _| {
            code(driver.cuGetErrorName(CUresult(2), &mut std::ptr::null()))
        }),
        ("cuCtxPopCurrent", |driver, _| {
            code(driver.cuCtxPopCurrent(&mut null_mut()))
        }),
        ("cuCtxPushCurrent", |driver, t| {
            code(driver.cuCtxPushCurrent(t.context()))
        }),
        ("cuCtxGetStreamPriorityRange", |driver, _| {
            code(driver.cuCtxGetStreamPriorityRange(&mut 0, &mut 0))
        }),
        ("cuCtxCreate", |driver, _| {
            code(driver.cuCtxCreate(&mut null_mut(), 0, 0))
        }),
        ("cuDevicePrimaryCtxGetState", |driver, _| {
            code(driver.cuDevicePrimaryCtxGetState(0, &mut 0, &mut 0))
        }),
        ("cuDeviceGetUuid", |driver, _| {
            code(driver.cuDeviceGetUuid(&mut CUuuid::default(), 0))
        }),
        ("cuDeviceTotalMem", |driver, _| {
            code(driver.cuDeviceTotalMem(&mut 0, 0))
        }),
        ("cuDeviceCanAccessPeer", |driver, _| {
            code(driver.cuDeviceCanAccessPeer(&mut 0, 0, 0))
        }),
        ("cuGetErrorString", |driver, _| {
            code(driver.cuGetErrorString(CUresult(2), &mut null()))
        }),
        ("cuMemGetAllocationGranularity", |driver, _| {
            let prop = device_memory();
            code(driver.cuMemGetAllocationGranularity(
                &mut 0,
                &prop,
                CUmemAllocationGranularity_flags(0),
            ))
        }),
        ("cuMemGetAllocationPropertiesFromHandle", |driver, t| {
            code(driver.cuMemGetAllocationPropertiesFromHandle(
                &mut CUmemAllocationProp::default(),
                t.handle,
            ))
        }),
        ("cuMemAddressFree", |driver, _| {
            code(driver.cuMemAddressFree(0x7700_0000_0000, G))
        }),
        ("cuMemMap", |driver, t| {
            code(driver.cuMemMap(0x7700_0000_0000, G, 0, t.handle, 0))
        }),
        ("cuMemUnmap", |driver, t| {
            code(driver.cuMemUnmap(t.mapped, G))
        }),
        ("cuMemSetAccess", |driver, t| {
            let access = CUmemAccessDesc {
                location: CUmemLocation::new(CUmemLocationType(1), 0),
                flags: CUmemAccess_flags(3),
            };
            code(driver.cuMemSetAccess(t.mapped, G, &access, 1))
        }),
        ("cuMemGetAccess", |driver, t| {
            let place = CUmemLocation::new(CUmemLocationType(1), 0);
            code(driver.cuMemGetAccess(&mut 0, &place, t.mapped))
        }),
        ("cuMemExportToShareableHandle", |driver, t| {
            let mut fd: c_int = -1;
            code(driver.cuMemExportToShareableHandle(
                (&raw mut fd).cast(),
                t.handle,
                CUmemAllocationHandleType(1),
                0,
            ))
        }),
        ("cuMemImportFromShareableHandle", |driver, t| {
            code(driver.cuMemImportFromShareableHandle(
                &mut 0,
                t.fd as isize as *mut c_void,
                CUmemAllocationHandleType(1),
            ))
        }),
        ("cuMemRetainAllocationHandle", |driver, t| {
            code(driver.cuMemRetainAllocationHandle(&mut 0, t.mapped as *mut c_void))
        }),
        ("cuMemFree", |driver, t| {
            code(driver.cuMemFree(t.linear))
        }),
        ("cuMemGetAddressRange", |driver, t| {
            code(driver.cuMemGetAddressRange(&mut 0, &mut 0, t.linear))
        }),
        ("cuMemAllocHost", |driver, _| {
            code(driver.cuMemAllocHost(&mut null_mut(), 4096))
        }),
        ("cuMemFreeHost", |driver, t| {
            code(driver.cuMemFreeHost(t.host()))
        }),
        ("cuMemcpyHtoD", |driver, t| {
            code(driver.cuMemcpyHtoD(t.mapped, (&raw const ONE).cast(), 4))
        }),
        ("cuMemcpyDtoH", |driver, t| {
            let mut byte = 0_u8;
            code(driver.cuMemcpyDtoH((&raw mut byte).cast(), t.mapped, 1))
        }),
        ("cuMemcpyHtoDAsync", |driver, t| {
            code(driver.cuMemcpyHtoDAsync(t.mapped, t.host(), 4, t.stream()))
        }),
        ("cuMemcpyDtoDAsync", |driver, t| {
            code(driver.cuMemcpyDtoDAsync(t.mapped, t.linear, 4, t.stream()))
        }),
        ("cuMemsetD8", |driver, t| {
            code(driver.cuMemsetD8(t.mapped, 1, 16))
        }),
        ("cuMemsetD8Async", |driver, t| {
            code(driver.cuMemsetD8Async(t.mapped, 1, 16, t.stream()))
        }),
        ("cuStreamCreate", |driver, _| {
            code(driver.cuStreamCreate(&mut null_mut(), 1))
        }),
        ("cuStreamGetPriority", |driver, t| {
            code(driver.cuStreamGetPriority(t.stream(), &mut 0))
        }),
        ("cuStreamGetCtx", |driver, t| {
            code(driver.cuStreamGetCtx(t.stream(), &mut null_mut()))
        }),
        ("cuStreamWaitEvent", |driver, t| {
            code(driver.cuStreamWaitEvent(t.stream(), t.event(), 0))
        }),
        ("cuStreamBeginCapture", |driver, t| {
            code(driver.cuStreamBeginCapture(t.stream(), CUstreamCaptureMode(2)))
        }),
        ("cuStreamEndCapture", |driver, t| {
            code(driver.cuStreamEndCapture(t.stream(), &mut null_mut()))
        }),
        ("cuStreamDestroy", |driver, _| {
            code(driver.cuStreamDestroy(null_mut()))
        }),
        ("cuEventRecord", |driver, t| {
            code(driver.cuEventRecord(t.event(), t.stream()))
        }),
        ("cuEventQuery", |driver, t| {
            code(driver.cuEventQuery(t.event()))
        }),
        ("cuEventSynchronize", |driver, t| {
            code(driver.cuEventSynchronize(t.event()))
        }),
        ("cuEventElapsedTime", |driver, t| {
            code(driver.cuEventElapsedTime(&mut 0.0, t.event(), t.event()))
        }),
        ("cuEventDestroy", |driver, _| {
            code(driver.cuEventDestroy(null_mut()))
        }),
        ("cuGraphDestroy", |driver, _| {
            code(driver.cuGraphDestroy(null_mut()))
        }),
        ("cuStreamQuery, the default stream", |driver, _| {
            code(driver.cuStreamQuery(null_mut()))
        }),
        ("cuMemsetD8Async, the default stream", |driver, t| {
            code(driver.cuMemsetD8Async(t.mapped, 1, 16, null_mut()))
        }),
        ("cuLaunchHostFunc, the default stream", |driver, _| {
            code(driver.cuLaunchHostFunc(null_mut(), Some(nothing), null_mut()))
        }),
    ];

static ONE: u32 = 1;

fn device_memory() -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        location: CUmemLocation::new(CUmemLocationType(1), 0),
        ..Default::default()
    }
}
