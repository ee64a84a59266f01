//! Every function by name and version, and which of them an older driver has.

use crate::api::{
    context, copy, device, entry, event, linear, missing, pinned, pointer, stream, vmm,
};
use crate::api::{
    copy::per_thread as copy_per_thread, event::per_thread as event_per_thread,
    stream::per_thread as stream_per_thread,
};
use crate::code::Code;
use std::ffi::{c_int, c_void};

/// Calls a macro with every line of the table of what the emulator does: the name that `cuGetProcAddress` is asked for, the
/// CUDA version that brought this form, the name that the library exports, the function.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_symbol {
    ($callback:ident) => {
        $callback! {
            cuCtxCreate 3020 cuCtxCreate_v2 context::cuCtxCreate;
            cuCtxCreate 11040 cuCtxCreate_v3 context::cuCtxCreate_v3;
            cuCtxCreate 12050 cuCtxCreate_v4 context::cuCtxCreate_v4;
            cuCtxDestroy 4000 cuCtxDestroy_v2 context::cuCtxDestroy;
            cuCtxDisablePeerAccess 4000 cuCtxDisablePeerAccess context::cuCtxDisablePeerAccess;
            cuCtxEnablePeerAccess 4000 cuCtxEnablePeerAccess context::cuCtxEnablePeerAccess;
            cuCtxGetApiVersion 3020 cuCtxGetApiVersion context::cuCtxGetApiVersion;
            cuCtxGetCurrent 4000 cuCtxGetCurrent context::cuCtxGetCurrent;
            cuCtxGetDevice 2000 cuCtxGetDevice context::cuCtxGetDevice;
            cuCtxGetDevice 13000 cuCtxGetDevice_v2 context::cuCtxGetDevice_v2;
            cuCtxGetFlags 7000 cuCtxGetFlags context::cuCtxGetFlags;
            cuCtxGetStreamPriorityRange 5050 cuCtxGetStreamPriorityRange context::cuCtxGetStreamPriorityRange;
            cuCtxPopCurrent 4000 cuCtxPopCurrent_v2 context::cuCtxPopCurrent;
            cuCtxPushCurrent 4000 cuCtxPushCurrent_v2 context::cuCtxPushCurrent;
            cuCtxSetCurrent 4000 cuCtxSetCurrent context::cuCtxSetCurrent;
            cuCtxSynchronize 2000 cuCtxSynchronize context::cuCtxSynchronize;
            cuCtxSynchronize 13000 cuCtxSynchronize_v2 context::cuCtxSynchronize_v2;
            cuDeviceCanAccessPeer 4000 cuDeviceCanAccessPeer device::cuDeviceCanAccessPeer;
            cuDeviceComputeCapability 2000 cuDeviceComputeCapability device::cuDeviceComputeCapability;
            cuDeviceGet 2000 cuDeviceGet device::cuDeviceGet;
            cuDeviceGetAttribute 2000 cuDeviceGetAttribute device::cuDeviceGetAttribute;
            cuDeviceGetByPCIBusId 4010 cuDeviceGetByPCIBusId device::cuDeviceGetByPCIBusId;
            cuDeviceGetCount 2000 cuDeviceGetCount device::cuDeviceGetCount;
            cuDeviceGetName 2000 cuDeviceGetName device::cuDeviceGetName;
            cuDeviceGetPCIBusId 4010 cuDeviceGetPCIBusId device::cuDeviceGetPCIBusId;
            cuDeviceGetUuid 9020 cuDeviceGetUuid device::cuDeviceGetUuid;
            cuDeviceGetUuid 11040 cuDeviceGetUuid_v2 device::cuDeviceGetUuid;
            cuDevicePrimaryCtxGetState 7000 cuDevicePrimaryCtxGetState context::cuDevicePrimaryCtxGetState;
            cuDevicePrimaryCtxRelease 7000 cuDevicePrimaryCtxRelease context::cuDevicePrimaryCtxRelease;
            cuDevicePrimaryCtxRelease 11000 cuDevicePrimaryCtxRelease_v2 context::cuDevicePrimaryCtxRelease;
            cuDevicePrimaryCtxReset 7000 cuDevicePrimaryCtxReset context::cuDevicePrimaryCtxReset;
            cuDevicePrimaryCtxReset 11000 cuDevicePrimaryCtxReset_v2 context::cuDevicePrimaryCtxReset;
            cuDevicePrimaryCtxRetain 7000 cuDevicePrimaryCtxRetain context::cuDevicePrimaryCtxRetain;
            cuDevicePrimaryCtxSetFlags 7000 cuDevicePrimaryCtxSetFlags context::cuDevicePrimaryCtxSetFlags;
            cuDevicePrimaryCtxSetFlags 11000 cuDevicePrimaryCtxSetFlags_v2 context::cuDevicePrimaryCtxSetFlags;
            cuDeviceTotalMem 3020 cuDeviceTotalMem_v2 device::cuDeviceTotalMem;
            cuDriverGetVersion 2020 cuDriverGetVersion entry::cuDriverGetVersion;
            cuEventCreate 2000 cuEventCreate event::cuEventCreate;
            cuEventDestroy 4000 cuEventDestroy_v2 event::cuEventDestroy;
            cuEventElapsedTime 2000 cuEventElapsedTime event::cuEventElapsedTime;
            cuEventElapsedTime 12080 cuEventElapsedTime_v2 event::cuEventElapsedTime;
            cuEventQuery 2000 cuEventQuery event::cuEventQuery;
            cuEventRecord 2000 cuEventRecord event::cuEventRecord;
            cuEventRecordWithFlags 11010 cuEventRecordWithFlags event::cuEventRecordWithFlags;
            cuEventSynchronize 2000 cuEventSynchronize event::cuEventSynchronize;
            cuGetErrorName 6000 cuGetErrorName entry::cuGetErrorName;
            cuGetErrorString 6000 cuGetErrorString entry::cuGetErrorString;
            cuGetProcAddress 11030 cuGetProcAddress entry::cuGetProcAddress;
            cuGetProcAddress 12000 cuGetProcAddress_v2 entry::cuGetProcAddress_v2;
            cuGraphDestroy 10000 cuGraphDestroy stream::cuGraphDestroy;
            cuInit 2000 cuInit entry::cuInit;
            cuLaunchHostFunc 10000 cuLaunchHostFunc stream::cuLaunchHostFunc;
            cuMemAddressFree 10020 cuMemAddressFree vmm::cuMemAddressFree;
            cuMemAddressReserve 10020 cuMemAddressReserve vmm::cuMemAddressReserve;
            cuMemAlloc 3020 cuMemAlloc_v2 linear::cuMemAlloc;
            cuMemAllocHost 3020 cuMemAllocHost_v2 pinned::cuMemAllocHost;
            cuMemCreate 10020 cuMemCreate vmm::cuMemCreate;
            cuMemExportToShareableHandle 10020 cuMemExportToShareableHandle vmm::cuMemExportToShareableHandle;
            cuMemFree 3020 cuMemFree_v2 linear::cuMemFree;
            cuMemFreeHost 2000 cuMemFreeHost pinned::cuMemFreeHost;
            cuMemGetAccess 10020 cuMemGetAccess vmm::cuMemGetAccess;
            cuMemGetAddressRange 3020 cuMemGetAddressRange_v2 pointer::cuMemGetAddressRange;
            cuMemGetAllocationGranularity 10020 cuMemGetAllocationGranularity vmm::cuMemGetAllocationGranularity;
            cuMemGetAllocationPropertiesFromHandle 10020 cuMemGetAllocationPropertiesFromHandle vmm::cuMemGetAllocationPropertiesFromHandle;
            cuMemGetHandleForAddressRange 11070 cuMemGetHandleForAddressRange vmm::cuMemGetHandleForAddressRange;
            cuMemGetInfo 2000 cuMemGetInfo copy::cuMemGetInfo_v1;
            cuMemGetInfo 3020 cuMemGetInfo_v2 copy::cuMemGetInfo;
            cuMemHostAlloc 2020 cuMemHostAlloc pinned::cuMemHostAlloc;
            cuMemHostRegister 6050 cuMemHostRegister_v2 pinned::cuMemHostRegister;
            cuMemHostUnregister 4000 cuMemHostUnregister pinned::cuMemHostUnregister;
            cuMemImportFromShareableHandle 10020 cuMemImportFromShareableHandle vmm::cuMemImportFromShareableHandle;
            cuMemMap 10020 cuMemMap vmm::cuMemMap;
            cuMemRelease 10020 cuMemRelease vmm::cuMemRelease;
            cuMemRetainAllocationHandle 11000 cuMemRetainAllocationHandle vmm::cuMemRetainAllocationHandle;
            cuMemSetAccess 10020 cuMemSetAccess vmm::cuMemSetAccess;
            cuMemUnmap 10020 cuMemUnmap vmm::cuMemUnmap;
            cuMemcpy 4000 cuMemcpy copy::cuMemcpy;
            cuMemcpyAsync 4000 cuMemcpyAsync copy::cuMemcpyAsync;
            cuMemcpyDtoD 2000 cuMemcpyDtoD copy::cuMemcpyDtoD_v1;
            cuMemcpyDtoD 3020 cuMemcpyDtoD_v2 copy::cuMemcpyDtoD;
            cuMemcpyDtoDAsync 3020 cuMemcpyDtoDAsync_v2 copy::cuMemcpyDtoDAsync;
            cuMemcpyDtoH 2000 cuMemcpyDtoH copy::cuMemcpyDtoH_v1;
            cuMemcpyDtoH 3020 cuMemcpyDtoH_v2 copy::cuMemcpyDtoH;
            cuMemcpyDtoHAsync 3020 cuMemcpyDtoHAsync_v2 copy::cuMemcpyDtoHAsync;
            cuMemcpyHtoD 2000 cuMemcpyHtoD copy::cuMemcpyHtoD_v1;
            cuMemcpyHtoD 3020 cuMemcpyHtoD_v2 copy::cuMemcpyHtoD;
            cuMemcpyHtoDAsync 3020 cuMemcpyHtoDAsync_v2 copy::cuMemcpyHtoDAsync;
            cuMemcpyPeer 4000 cuMemcpyPeer copy::cuMemcpyPeer;
            cuMemcpyPeerAsync 4000 cuMemcpyPeerAsync copy::cuMemcpyPeerAsync;
            cuMemsetD16 3020 cuMemsetD16_v2 copy::cuMemsetD16;
            cuMemsetD16Async 3020 cuMemsetD16Async copy::cuMemsetD16Async;
            cuMemsetD32 3020 cuMemsetD32_v2 copy::cuMemsetD32;
            cuMemsetD32Async 3020 cuMemsetD32Async copy::cuMemsetD32Async;
            cuMemsetD8 2000 cuMemsetD8 copy::cuMemsetD8_v1;
            cuMemsetD8 3020 cuMemsetD8_v2 copy::cuMemsetD8;
            cuMemsetD8Async 3020 cuMemsetD8Async copy::cuMemsetD8Async;
            cuPointerGetAttribute 4000 cuPointerGetAttribute pointer::cuPointerGetAttribute;
            cuPointerGetAttributes 7000 cuPointerGetAttributes pointer::cuPointerGetAttributes;
            cuStreamBeginCapture 10010 cuStreamBeginCapture_v2 stream::cuStreamBeginCapture;
            cuStreamCreate 2000 cuStreamCreate stream::cuStreamCreate;
            cuStreamCreateWithPriority 5050 cuStreamCreateWithPriority stream::cuStreamCreateWithPriority;
            cuStreamDestroy 4000 cuStreamDestroy_v2 stream::cuStreamDestroy;
            cuStreamEndCapture 10000 cuStreamEndCapture stream::cuStreamEndCapture;
            cuStreamGetCaptureInfo 10010 cuStreamGetCaptureInfo stream::cuStreamGetCaptureInfo;
            cuStreamGetCaptureInfo 11030 cuStreamGetCaptureInfo_v2 stream::cuStreamGetCaptureInfo_v2;
            cuStreamGetCaptureInfo 12030 cuStreamGetCaptureInfo_v3 stream::cuStreamGetCaptureInfo_v3;
            cuStreamGetCtx 9020 cuStreamGetCtx stream::cuStreamGetCtx;
            cuStreamGetFlags 5050 cuStreamGetFlags stream::cuStreamGetFlags;
            cuStreamGetId 12000 cuStreamGetId stream::cuStreamGetId;
            cuStreamGetPriority 5050 cuStreamGetPriority stream::cuStreamGetPriority;
            cuStreamIsCapturing 10000 cuStreamIsCapturing stream::cuStreamIsCapturing;
            cuStreamQuery 2000 cuStreamQuery stream::cuStreamQuery;
            cuStreamSynchronize 2000 cuStreamSynchronize stream::cuStreamSynchronize;
            cuStreamWaitEvent 3020 cuStreamWaitEvent stream::cuStreamWaitEvent;
            cuThreadExchangeStreamCaptureMode 10010 cuThreadExchangeStreamCaptureMode stream::cuThreadExchangeStreamCaptureMode;
            cuMemcpy 7000 cuMemcpy_ptds copy_per_thread::cuMemcpy;
            cuMemcpyHtoD 7000 cuMemcpyHtoD_v2_ptds copy_per_thread::cuMemcpyHtoD;
            cuMemcpyDtoH 7000 cuMemcpyDtoH_v2_ptds copy_per_thread::cuMemcpyDtoH;
            cuMemcpyDtoD 7000 cuMemcpyDtoD_v2_ptds copy_per_thread::cuMemcpyDtoD;
            cuMemcpyPeer 7000 cuMemcpyPeer_ptds copy_per_thread::cuMemcpyPeer;
            cuMemsetD8 7000 cuMemsetD8_v2_ptds copy_per_thread::cuMemsetD8;
            cuMemsetD16 7000 cuMemsetD16_v2_ptds copy_per_thread::cuMemsetD16;
            cuMemsetD32 7000 cuMemsetD32_v2_ptds copy_per_thread::cuMemsetD32;
            cuMemcpyAsync 7000 cuMemcpyAsync_ptsz copy_per_thread::cuMemcpyAsync;
            cuMemcpyHtoDAsync 7000 cuMemcpyHtoDAsync_v2_ptsz copy_per_thread::cuMemcpyHtoDAsync;
            cuMemcpyDtoHAsync 7000 cuMemcpyDtoHAsync_v2_ptsz copy_per_thread::cuMemcpyDtoHAsync;
            cuMemcpyDtoDAsync 7000 cuMemcpyDtoDAsync_v2_ptsz copy_per_thread::cuMemcpyDtoDAsync;
            cuMemcpyPeerAsync 7000 cuMemcpyPeerAsync_ptsz copy_per_thread::cuMemcpyPeerAsync;
            cuMemsetD8Async 7000 cuMemsetD8Async_ptsz copy_per_thread::cuMemsetD8Async;
            cuMemsetD16Async 7000 cuMemsetD16Async_ptsz copy_per_thread::cuMemsetD16Async;
            cuMemsetD32Async 7000 cuMemsetD32Async_ptsz copy_per_thread::cuMemsetD32Async;
            cuEventRecord 7000 cuEventRecord_ptsz event_per_thread::cuEventRecord;
            cuEventRecordWithFlags 11010 cuEventRecordWithFlags_ptsz event_per_thread::cuEventRecordWithFlags;
            cuLaunchHostFunc 10000 cuLaunchHostFunc_ptsz stream_per_thread::cuLaunchHostFunc;
            cuStreamBeginCapture 10010 cuStreamBeginCapture_v2_ptsz stream_per_thread::cuStreamBeginCapture;
            cuStreamEndCapture 10000 cuStreamEndCapture_ptsz stream_per_thread::cuStreamEndCapture;
            cuStreamGetCaptureInfo 10010 cuStreamGetCaptureInfo_ptsz stream_per_thread::cuStreamGetCaptureInfo;
            cuStreamGetCaptureInfo 11030 cuStreamGetCaptureInfo_v2_ptsz stream_per_thread::cuStreamGetCaptureInfo_v2;
            cuStreamGetCaptureInfo 12030 cuStreamGetCaptureInfo_v3_ptsz stream_per_thread::cuStreamGetCaptureInfo_v3;
            cuStreamGetCtx 9020 cuStreamGetCtx_ptsz stream_per_thread::cuStreamGetCtx;
            cuStreamGetFlags 7000 cuStreamGetFlags_ptsz stream_per_thread::cuStreamGetFlags;
            cuStreamGetId 12000 cuStreamGetId_ptsz stream_per_thread::cuStreamGetId;
            cuStreamGetPriority 7000 cuStreamGetPriority_ptsz stream_per_thread::cuStreamGetPriority;
            cuStreamIsCapturing 10000 cuStreamIsCapturing_ptsz stream_per_thread::cuStreamIsCapturing;
            cuStreamQuery 7000 cuStreamQuery_ptsz stream_per_thread::cuStreamQuery;
            cuStreamSynchronize 7000 cuStreamSynchronize_ptsz stream_per_thread::cuStreamSynchronize;
            cuStreamWaitEvent 7000 cuStreamWaitEvent_ptsz stream_per_thread::cuStreamWaitEvent;
        }
    };
}

/// A function whose arguments are not known here.
#[doc(hidden)]
pub type Function = unsafe extern "C" fn();

struct Row {
    name: &'static str,
    tag: c_int,
    export: &'static str,
    function: Function,
}

impl Row {
    fn is_per_thread(&self) -> bool {
        self.export.ends_with("_ptds") || self.export.ends_with("_ptsz")
    }
}

macro_rules! table {
    ($($name:ident $tag:literal $export:ident $module:ident :: $function:ident;)*) => {
        const ROWS: &[Row] = &[$(Row {
            name: stringify!($name),
            tag: $tag,
            export: stringify!($export),
            function: untyped!($module::$function),
        },)*];

        /// The functions in the order of [`for_each_symbol`].
        #[doc(hidden)]
        pub static EXPORTS: [Function; ROWS.len()] = [$(untyped!($module::$function),)*];

    };
}

macro_rules! missing {
    ($($name:ident $tag:literal $export:ident;)*) => {
        const MISSING: &[Row] = &[$(Row {
            name: stringify!($name),
            tag: $tag,
            export: stringify!($export),
            function: refusing!($name $export),
        },)*];
    };
}

macro_rules! refusing {
    ($name:ident $export:ident) => {{
        unsafe extern "C" fn refuse() -> Code {
            missing::refuse(stringify!($name), stringify!($export))
        }
        untyped!(refuse)
    }};
}

macro_rules! untyped {
    ($function:path) => {
        // SAFETY: only the type is forgotten; whoever calls restores it.
        unsafe { std::mem::transmute::<*const (), Function>($function as *const ()) }
    };
}

for_each_symbol!(table);
crate::for_each_missing!(missing);

/// What programs made with the headers of CUDA 12.0 and later call another function by.
const RENAMED: &[Row] = &[Row {
    name: "cuGraphInstantiate",
    tag: 12_000,
    export: "cuGraphInstantiateWithFlags",
    function: refusing!(cuGraphInstantiate cuGraphInstantiateWithFlags),
}];

fn rows() -> impl Iterator<Item = &'static Row> + Clone {
    ROWS.iter().chain(MISSING).chain(RENAMED)
}

/// The names that the library exports.
#[doc(hidden)]
pub fn exported() -> impl Iterator<Item = &'static str> {
    ROWS.iter().chain(MISSING).map(|row| row.export)
}

/// What `cuGetProcAddress` finds.
pub(crate) enum Answer {
    Found(Function),
    Unknown,
    TagTooLow,
}

impl Answer {
    pub fn address(&self) -> *mut c_void {
        match self {
            Self::Found(function) => *function as *mut c_void,
            Self::Unknown | Self::TagTooLow => std::ptr::null_mut(),
        }
    }

    /// `CUdriverProcAddressQueryResult`.
    pub fn status(&self) -> c_int {
        match self {
            Self::Found(_) => crate::abi::QUERY_FOUND,
            Self::Unknown => crate::abi::QUERY_UNKNOWN,
            Self::TagTooLow => crate::abi::QUERY_TAG_TOO_LOW,
        }
    }
}

/// Why there is no such function, of any version.
pub(crate) fn check_function(name: &str) -> Result<(), String> {
    if rows().any(|row| row.name == name) {
        return Ok(());
    }
    match rows().find(|row| row.export == name) {
        Some(row) => Err(format!(
            "{name} is what the library exports for a form of {0}: every form is called {0} here",
            row.name
        )),
        None => Err(format!("{name} is no function of the driver")),
    }
}

/// The newest form that is not newer than the version asked for, nor than the driver. A function
/// with forms for per-thread default streams has no others where those are wanted: the forms of
/// older functions came with CUDA 7.0 and answer to no lower version.
pub(crate) fn find(name: &[u8], version: c_int, per_thread: bool, driver: c_int) -> Answer {
    if name == b"vmmEmulatorVersion" {
        return Answer::Found(untyped!(entry::vmmEmulatorVersion));
    }
    let named = rows().filter(|row| row.name.as_bytes() == name);
    let per_thread = per_thread && named.clone().any(Row::is_per_thread);
    let known = named.filter(|row| row.tag <= driver && row.is_per_thread() == per_thread);
    match known
        .clone()
        .filter(|row| row.tag <= version)
        .max_by_key(|row| row.tag)
    {
        Some(row) => Answer::Found(row.function),
        None if known.count() > 0 => Answer::TagTooLow,
        None => Answer::Unknown,
    }
}
