//! The symbol table: one line a symbol, and everything else about a symbol follows from its line.
//!
//! A line says whether the crate can live without the symbol; the name of the method; the name that
//! `cuGetProcAddress` is asked for; the name that the library exports for this version (for drivers
//! that have no `cuGetProcAddress`); the CUDA version whose ABI is asked for; the type of that
//! version, which has to carry the same name and number; what the symbol is for; and, where the
//! caller owes more than valid pointers and live handles, what that is.
//!
//! To add a symbol, add its line and run `cargo xtask bindings`. Take the oldest version whose
//! signature is the wanted one: drivers of that version and later have it.

/// Apply a macro to every line of the table.
macro_rules! for_each_symbol {
    ($apply:ident) => {
        $apply! {
            // Initialisation and errors
            required cuInit "cuInit" "cuInit" 2000 PFN_cuInit_v2000 "initialise the driver";
            required cuDriverGetVersion "cuDriverGetVersion" "cuDriverGetVersion" 2020 PFN_cuDriverGetVersion_v2020 "the CUDA version the driver implements";
            required cuGetErrorName "cuGetErrorName" "cuGetErrorName" 6000 PFN_cuGetErrorName_v6000 "the name of an error code";
            required cuGetErrorString "cuGetErrorString" "cuGetErrorString" 6000 PFN_cuGetErrorString_v6000 "the text of an error code";
            // Devices
            required cuDeviceGetCount "cuDeviceGetCount" "cuDeviceGetCount" 2000 PFN_cuDeviceGetCount_v2000 "how many devices the process sees";
            required cuDeviceGet "cuDeviceGet" "cuDeviceGet" 2000 PFN_cuDeviceGet_v2000 "a device by ordinal";
            required cuDeviceGetName "cuDeviceGetName" "cuDeviceGetName" 2000 PFN_cuDeviceGetName_v2000 "the product name", "`len` bytes can be written at `name`.";
            required cuDeviceGetAttribute "cuDeviceGetAttribute" "cuDeviceGetAttribute" 2000 PFN_cuDeviceGetAttribute_v2000 "what a device can do";
            required cuDeviceGetUuid "cuDeviceGetUuid" "cuDeviceGetUuid" 9020 PFN_cuDeviceGetUuid_v9020 "the UUID of the whole GPU";
            optional cuDeviceGetUuid_v2 "cuDeviceGetUuid" "cuDeviceGetUuid_v2" 11040 PFN_cuDeviceGetUuid_v11040 "the UUID, of the MIG instance where there is one";
            optional cuDeviceTotalMem "cuDeviceTotalMem" "cuDeviceTotalMem_v2" 3020 PFN_cuDeviceTotalMem_v3020 "bytes of physical memory";
            optional cuDeviceGetPCIBusId "cuDeviceGetPCIBusId" "cuDeviceGetPCIBusId" 4010 PFN_cuDeviceGetPCIBusId_v4010 "the PCI bus id of a device", "`len` bytes can be written at `pciBusId`.";
            optional cuDeviceGetByPCIBusId "cuDeviceGetByPCIBusId" "cuDeviceGetByPCIBusId" 4010 PFN_cuDeviceGetByPCIBusId_v4010 "a device by PCI bus id", "The id ends with a zero byte.";
            // Contexts
            required cuDevicePrimaryCtxRetain "cuDevicePrimaryCtxRetain" "cuDevicePrimaryCtxRetain" 7000 PFN_cuDevicePrimaryCtxRetain_v7000 "hold the primary context, making it if needed";
            optional cuDevicePrimaryCtxRelease "cuDevicePrimaryCtxRelease" "cuDevicePrimaryCtxRelease_v2" 11000 PFN_cuDevicePrimaryCtxRelease_v11000 "let go of the primary context", "One release for each retain, after the last use of the context through it.";
            optional cuDevicePrimaryCtxRelease_v1 "cuDevicePrimaryCtxRelease" "cuDevicePrimaryCtxRelease" 7000 PFN_cuDevicePrimaryCtxRelease_v7000 "the same, on drivers before CUDA 11.0", "One release for each retain, after the last use of the context through it.";
            optional cuDevicePrimaryCtxReset "cuDevicePrimaryCtxReset" "cuDevicePrimaryCtxReset_v2" 11000 PFN_cuDevicePrimaryCtxReset_v11000 "destroy the primary context for everybody in the process", "Nobody in the process uses the context or anything made in it any more.";
            required cuDevicePrimaryCtxGetState "cuDevicePrimaryCtxGetState" "cuDevicePrimaryCtxGetState" 7000 PFN_cuDevicePrimaryCtxGetState_v7000 "whether a primary context exists";
            optional cuCtxCreate "cuCtxCreate" "cuCtxCreate_v2" 3020 PFN_cuCtxCreate_v3020 "a context of one's own";
            optional cuCtxDestroy "cuCtxDestroy" "cuCtxDestroy_v2" 4000 PFN_cuCtxDestroy_v4000 "destroy a context", "The context and everything made in it are not used any more.";
            required cuCtxGetCurrent "cuCtxGetCurrent" "cuCtxGetCurrent" 4000 PFN_cuCtxGetCurrent_v4000 "the thread's current context";
            required cuCtxSetCurrent "cuCtxSetCurrent" "cuCtxSetCurrent" 4000 PFN_cuCtxSetCurrent_v4000 "replace the thread's current context";
            required cuCtxPushCurrent "cuCtxPushCurrent" "cuCtxPushCurrent_v2" 4000 PFN_cuCtxPushCurrent_v4000 "make a context current until it is popped";
            required cuCtxPopCurrent "cuCtxPopCurrent" "cuCtxPopCurrent_v2" 4000 PFN_cuCtxPopCurrent_v4000 "undo a push";
            optional cuCtxGetDevice "cuCtxGetDevice" "cuCtxGetDevice" 2000 PFN_cuCtxGetDevice_v2000 "the device of the current context";
            optional cuCtxSynchronize "cuCtxSynchronize" "cuCtxSynchronize" 2000 PFN_cuCtxSynchronize_v2000 "wait for everything in the current context";
            optional cuCtxGetStreamPriorityRange "cuCtxGetStreamPriorityRange" "cuCtxGetStreamPriorityRange" 5050 PFN_cuCtxGetStreamPriorityRange_v5050 "the least and the greatest stream priority";
            // Virtual memory
            required cuMemGetAllocationGranularity "cuMemGetAllocationGranularity" "cuMemGetAllocationGranularity" 10020 PFN_cuMemGetAllocationGranularity_v10020 "what sizes are multiples of";
            required cuMemCreate "cuMemCreate" "cuMemCreate" 10020 PFN_cuMemCreate_v10020 "allocate physical memory";
            required cuMemRelease "cuMemRelease" "cuMemRelease" 10020 PFN_cuMemRelease_v10020 "give up a handle to physical memory", "The handle came from this driver and is released once: any other value may crash the process.";
            required cuMemGetAllocationPropertiesFromHandle "cuMemGetAllocationPropertiesFromHandle" "cuMemGetAllocationPropertiesFromHandle" 10020 PFN_cuMemGetAllocationPropertiesFromHandle_v10020 "what physical memory was allocated as", "The handle came from this driver and is not released: any other value may crash the process.";
            required cuMemAddressReserve "cuMemAddressReserve" "cuMemAddressReserve" 10020 PFN_cuMemAddressReserve_v10020 "reserve addresses";
            required cuMemAddressFree "cuMemAddressFree" "cuMemAddressFree" 10020 PFN_cuMemAddressFree_v10020 "free reserved addresses", "Address and size are those of one reservation, and nobody counts on those addresses any more.";
            required cuMemMap "cuMemMap" "cuMemMap" 10020 PFN_cuMemMap_v10020 "map physical memory at reserved addresses", "The handle came from this driver and is not released: any other value may crash the process.";
            required cuMemUnmap "cuMemUnmap" "cuMemUnmap" 10020 PFN_cuMemUnmap_v10020 "unmap whole mappings", "No work that touches the range is pending: the driver does not wait for it.";
            required cuMemSetAccess "cuMemSetAccess" "cuMemSetAccess" 10020 PFN_cuMemSetAccess_v10020 "say which devices may touch mappings", "`count` descriptors can be read at `desc`, and no pending work needs the access that is taken away.";
            required cuMemGetAccess "cuMemGetAccess" "cuMemGetAccess" 10020 PFN_cuMemGetAccess_v10020 "which access a device has";
            required cuMemExportToShareableHandle "cuMemExportToShareableHandle" "cuMemExportToShareableHandle" 10020 PFN_cuMemExportToShareableHandle_v10020 "physical memory as a handle for other processes", "What is at `shareableHandle` fits the handle type: an `int` for a file descriptor, which the caller then owns, 64 bytes for the fabric.";
            required cuMemImportFromShareableHandle "cuMemImportFromShareableHandle" "cuMemImportFromShareableHandle" 10020 PFN_cuMemImportFromShareableHandle_v10020 "physical memory from another process's handle", "`osHandle` is what the handle type wants: the value of a file descriptor itself, cast to a pointer, or the address of 64 bytes for the fabric.";
            optional cuMemRetainAllocationHandle "cuMemRetainAllocationHandle" "cuMemRetainAllocationHandle" 11000 PFN_cuMemRetainAllocationHandle_v11000 "the handle of what is mapped at an address";
            optional cuMemMapArrayAsync "cuMemMapArrayAsync" "cuMemMapArrayAsync" 11010 PFN_cuMemMapArrayAsync_v11010 "map sparse arrays", "`count` entries can be read at `mapInfoList`, and what they name stays until the stream has done the work.";
            optional cuMemGetAddressRange "cuMemGetAddressRange" "cuMemGetAddressRange_v2" 3020 PFN_cuMemGetAddressRange_v3020 "the allocation that an address lies in";
            optional cuMemGetHandleForAddressRange "cuMemGetHandleForAddressRange" "cuMemGetHandleForAddressRange" 11070 PFN_cuMemGetHandleForAddressRange_v11070 "a range as a dma-buf", "What is at `handle` fits the handle type: an `int` for a dma-buf, which the caller then owns.";
            optional cuPointerGetAttribute "cuPointerGetAttribute" "cuPointerGetAttribute" 4000 PFN_cuPointerGetAttribute_v4000 "what the driver knows of a pointer", "What is at `data` has the type of the attribute.";
            optional cuPointerGetAttributes "cuPointerGetAttributes" "cuPointerGetAttributes" 7000 PFN_cuPointerGetAttributes_v7000 "several attributes of a pointer", "`numAttributes` entries can be read at both arrays, and what each of `data` points to has the type of its attribute.";
            optional cuPointerSetAttribute "cuPointerSetAttribute" "cuPointerSetAttribute" 6000 PFN_cuPointerSetAttribute_v6000 "change an attribute of a pointer", "What is at `value` has the type of the attribute.";
            required cuMemGetInfo "cuMemGetInfo" "cuMemGetInfo_v2" 3020 PFN_cuMemGetInfo_v3020 "free and total bytes of the current context's device";
            // Multicast (declared only: nothing in this workspace calls it)
            optional cuMulticastCreate "cuMulticastCreate" "cuMulticastCreate" 12010 PFN_cuMulticastCreate_v12010 "an object that several devices' memory is bound to";
            optional cuMulticastAddDevice "cuMulticastAddDevice" "cuMulticastAddDevice" 12010 PFN_cuMulticastAddDevice_v12010 "add a device";
            optional cuMulticastBindMem "cuMulticastBindMem" "cuMulticastBindMem" 12010 PFN_cuMulticastBindMem_v12010 "bind physical memory";
            optional cuMulticastBindAddr "cuMulticastBindAddr" "cuMulticastBindAddr" 12010 PFN_cuMulticastBindAddr_v12010 "bind mapped memory";
            optional cuMulticastUnbind "cuMulticastUnbind" "cuMulticastUnbind" 12010 PFN_cuMulticastUnbind_v12010 "unbind memory";
            optional cuMulticastGetGranularity "cuMulticastGetGranularity" "cuMulticastGetGranularity" 12010 PFN_cuMulticastGetGranularity_v12010 "what sizes are multiples of";
            // Copies
            required cuMemcpyHtoD "cuMemcpyHtoD" "cuMemcpyHtoD_v2" 3020 PFN_cuMemcpyHtoD_v3020 "copy host to device", "`ByteCount` bytes can be read at `srcHost`.";
            required cuMemcpyHtoDAsync "cuMemcpyHtoDAsync" "cuMemcpyHtoDAsync_v2" 3020 PFN_cuMemcpyHtoDAsync_v3020 "copy host to device, on a stream", "`ByteCount` bytes can be read at `srcHost` until the stream has done the copy.";
            required cuMemcpyDtoH "cuMemcpyDtoH" "cuMemcpyDtoH_v2" 3020 PFN_cuMemcpyDtoH_v3020 "copy device to host", "`ByteCount` bytes can be written at `dstHost`.";
            required cuMemcpyDtoHAsync "cuMemcpyDtoHAsync" "cuMemcpyDtoHAsync_v2" 3020 PFN_cuMemcpyDtoHAsync_v3020 "copy device to host, on a stream", "`ByteCount` bytes can be written at `dstHost` until the stream has done the copy, and nobody else touches them.";
            required cuMemcpyDtoD "cuMemcpyDtoD" "cuMemcpyDtoD_v2" 3020 PFN_cuMemcpyDtoD_v3020 "copy device to device";
            required cuMemcpyDtoDAsync "cuMemcpyDtoDAsync" "cuMemcpyDtoDAsync_v2" 3020 PFN_cuMemcpyDtoDAsync_v3020 "copy device to device, on a stream", "Both ranges stay mapped until the stream has done the copy.";
            optional cuMemcpy "cuMemcpy" "cuMemcpy" 4000 PFN_cuMemcpy_v4000 "copy between any two addresses", "Both addresses are valid for `ByteCount` bytes, those of the host included.";
            optional cuMemcpyAsync "cuMemcpyAsync" "cuMemcpyAsync" 4000 PFN_cuMemcpyAsync_v4000 "copy between any two addresses, on a stream", "Both addresses are valid for `ByteCount` bytes, those of the host included, until the stream has done the copy.";
            optional cuMemcpyPeer "cuMemcpyPeer" "cuMemcpyPeer" 4000 PFN_cuMemcpyPeer_v4000 "copy between contexts";
            optional cuMemcpyPeerAsync "cuMemcpyPeerAsync" "cuMemcpyPeerAsync" 4000 PFN_cuMemcpyPeerAsync_v4000 "copy between contexts, on a stream", "Both ranges stay mapped until the stream has done the copy.";
            optional cuMemcpyBatchAsync "cuMemcpyBatchAsync" "cuMemcpyBatchAsync" 12080 PFN_cuMemcpyBatchAsync_v12080 "many copies in one call, on a stream", "The arrays have as many entries as is said, and every range stays valid until the stream has done the copies.";
            required cuMemsetD8 "cuMemsetD8" "cuMemsetD8_v2" 3020 PFN_cuMemsetD8_v3020 "set bytes";
            required cuMemsetD8Async "cuMemsetD8Async" "cuMemsetD8Async" 3020 PFN_cuMemsetD8Async_v3020 "set bytes, on a stream", "The range stays mapped until the stream has done the work.";
            optional cuMemsetD16 "cuMemsetD16" "cuMemsetD16_v2" 3020 PFN_cuMemsetD16_v3020 "set 16-bit values";
            optional cuMemsetD16Async "cuMemsetD16Async" "cuMemsetD16Async" 3020 PFN_cuMemsetD16Async_v3020 "set 16-bit values, on a stream", "The range stays mapped until the stream has done the work.";
            optional cuMemsetD32 "cuMemsetD32" "cuMemsetD32_v2" 3020 PFN_cuMemsetD32_v3020 "set 32-bit values";
            optional cuMemsetD32Async "cuMemsetD32Async" "cuMemsetD32Async" 3020 PFN_cuMemsetD32Async_v3020 "set 32-bit values, on a stream", "The range stays mapped until the stream has done the work.";
            // Classic allocations and host memory
            optional cuMemAlloc "cuMemAlloc" "cuMemAlloc_v2" 3020 PFN_cuMemAlloc_v3020 "allocate device memory in the current context";
            optional cuMemFree "cuMemFree" "cuMemFree_v2" 3020 PFN_cuMemFree_v3020 "free what `cuMemAlloc` gave", "The address came from `cuMemAlloc` and no pending work touches it.";
            optional cuMemAllocHost "cuMemAllocHost" "cuMemAllocHost_v2" 3020 PFN_cuMemAllocHost_v3020 "allocate page-locked host memory";
            optional cuMemHostAlloc "cuMemHostAlloc" "cuMemHostAlloc" 2020 PFN_cuMemHostAlloc_v2020 "allocate page-locked host memory, with flags";
            optional cuMemFreeHost "cuMemFreeHost" "cuMemFreeHost" 2000 PFN_cuMemFreeHost_v2000 "free page-locked host memory", "The address came from `cuMemAllocHost` or `cuMemHostAlloc`, and neither the host nor pending work touches it any more.";
            optional cuMemHostRegister "cuMemHostRegister" "cuMemHostRegister_v2" 6050 PFN_cuMemHostRegister_v6050 "page-lock memory of the caller", "The memory stays allocated until it is unregistered.";
            optional cuMemHostUnregister "cuMemHostUnregister" "cuMemHostUnregister" 4000 PFN_cuMemHostUnregister_v4000 "undo a registration", "No pending work touches the memory.";
            optional cuMemHostGetDevicePointer "cuMemHostGetDevicePointer" "cuMemHostGetDevicePointer_v2" 3020 PFN_cuMemHostGetDevicePointer_v3020 "the device address of page-locked memory";
            // Streams and capture
            required cuStreamCreate "cuStreamCreate" "cuStreamCreate" 2000 PFN_cuStreamCreate_v2000 "make a stream";
            optional cuStreamCreateWithPriority "cuStreamCreateWithPriority" "cuStreamCreateWithPriority" 5050 PFN_cuStreamCreateWithPriority_v5050 "make a stream with a priority";
            required cuStreamDestroy "cuStreamDestroy" "cuStreamDestroy_v2" 4000 PFN_cuStreamDestroy_v4000 "destroy a stream when its work is done", "The stream is not used any more.";
            required cuStreamSynchronize "cuStreamSynchronize" "cuStreamSynchronize" 2000 PFN_cuStreamSynchronize_v2000 "wait for a stream";
            optional cuStreamQuery "cuStreamQuery" "cuStreamQuery" 2000 PFN_cuStreamQuery_v2000 "whether a stream is idle";
            optional cuStreamWaitEvent "cuStreamWaitEvent" "cuStreamWaitEvent" 3020 PFN_cuStreamWaitEvent_v3020 "have a stream wait for an event";
            optional cuStreamGetCtx "cuStreamGetCtx" "cuStreamGetCtx" 9020 PFN_cuStreamGetCtx_v9020 "the context of a stream";
            optional cuStreamGetFlags "cuStreamGetFlags" "cuStreamGetFlags" 5050 PFN_cuStreamGetFlags_v5050 "the flags of a stream";
            optional cuStreamGetPriority "cuStreamGetPriority" "cuStreamGetPriority" 5050 PFN_cuStreamGetPriority_v5050 "the priority of a stream";
            optional cuStreamBeginCapture "cuStreamBeginCapture" "cuStreamBeginCapture_v2" 10010 PFN_cuStreamBeginCapture_v10010 "begin to capture a stream into a graph";
            optional cuStreamEndCapture "cuStreamEndCapture" "cuStreamEndCapture" 10000 PFN_cuStreamEndCapture_v10000 "end a capture";
            required cuStreamIsCapturing "cuStreamIsCapturing" "cuStreamIsCapturing" 10000 PFN_cuStreamIsCapturing_v10000 "whether a stream is being captured";
            optional cuStreamGetCaptureInfo "cuStreamGetCaptureInfo" "cuStreamGetCaptureInfo" 10010 PFN_cuStreamGetCaptureInfo_v10010 "the state and id of a capture";
            required cuThreadExchangeStreamCaptureMode "cuThreadExchangeStreamCaptureMode" "cuThreadExchangeStreamCaptureMode" 10010 PFN_cuThreadExchangeStreamCaptureMode_v10010 "the thread's rules for calls during a capture";
            optional cuGraphDestroy "cuGraphDestroy" "cuGraphDestroy" 10000 PFN_cuGraphDestroy_v10000 "destroy a captured graph", "The graph is not used any more.";
            optional cuLaunchHostFunc "cuLaunchHostFunc" "cuLaunchHostFunc" 10000 PFN_cuLaunchHostFunc_v10000 "call a host function from a stream", "The function may be called from any thread with `userData`, does not unwind and makes no CUDA call.";
            // Events
            optional cuEventCreate "cuEventCreate" "cuEventCreate" 2000 PFN_cuEventCreate_v2000 "make an event";
            optional cuEventDestroy "cuEventDestroy" "cuEventDestroy_v2" 4000 PFN_cuEventDestroy_v4000 "destroy an event", "The event is not used any more.";
            optional cuEventRecord "cuEventRecord" "cuEventRecord" 2000 PFN_cuEventRecord_v2000 "record an event on a stream";
            optional cuEventSynchronize "cuEventSynchronize" "cuEventSynchronize" 2000 PFN_cuEventSynchronize_v2000 "wait for an event";
            optional cuEventQuery "cuEventQuery" "cuEventQuery" 2000 PFN_cuEventQuery_v2000 "whether an event has happened";
            optional cuEventElapsedTime "cuEventElapsedTime" "cuEventElapsedTime" 2000 PFN_cuEventElapsedTime_v2000 "milliseconds between two events";
            optional cuIpcGetEventHandle "cuIpcGetEventHandle" "cuIpcGetEventHandle" 4010 PFN_cuIpcGetEventHandle_v4010 "an event as a handle for other processes";
            optional cuIpcOpenEventHandle "cuIpcOpenEventHandle" "cuIpcOpenEventHandle" 4010 PFN_cuIpcOpenEventHandle_v4010 "an event of another process";
            // Memory pools
            optional cuMemPoolCreate "cuMemPoolCreate" "cuMemPoolCreate" 11020 PFN_cuMemPoolCreate_v11020 "make a pool";
            optional cuMemPoolDestroy "cuMemPoolDestroy" "cuMemPoolDestroy" 11020 PFN_cuMemPoolDestroy_v11020 "destroy a pool", "The pool is not used any more.";
            optional cuMemPoolSetAttribute "cuMemPoolSetAttribute" "cuMemPoolSetAttribute" 11020 PFN_cuMemPoolSetAttribute_v11020 "change a pool's attribute", "What is at `value` has the type of the attribute.";
            optional cuMemPoolGetAttribute "cuMemPoolGetAttribute" "cuMemPoolGetAttribute" 11020 PFN_cuMemPoolGetAttribute_v11020 "a pool's attribute", "What is at `value` has the type of the attribute.";
            optional cuMemPoolSetAccess "cuMemPoolSetAccess" "cuMemPoolSetAccess" 11020 PFN_cuMemPoolSetAccess_v11020 "say which devices may touch a pool", "`count` descriptors can be read at `map`.";
            optional cuMemPoolGetAccess "cuMemPoolGetAccess" "cuMemPoolGetAccess" 11020 PFN_cuMemPoolGetAccess_v11020 "which access a device has to a pool";
            optional cuMemPoolTrimTo "cuMemPoolTrimTo" "cuMemPoolTrimTo" 11020 PFN_cuMemPoolTrimTo_v11020 "give unused memory back";
            optional cuMemPoolExportToShareableHandle "cuMemPoolExportToShareableHandle" "cuMemPoolExportToShareableHandle" 11020 PFN_cuMemPoolExportToShareableHandle_v11020 "a pool as a handle for other processes", "What is at `handle_out` fits the handle type: an `int` for a file descriptor, which the caller then owns.";
            optional cuMemPoolImportFromShareableHandle "cuMemPoolImportFromShareableHandle" "cuMemPoolImportFromShareableHandle" 11020 PFN_cuMemPoolImportFromShareableHandle_v11020 "a pool of another process", "`handle` is what the handle type wants: the value of a file descriptor itself, cast to a pointer.";
            optional cuMemPoolExportPointer "cuMemPoolExportPointer" "cuMemPoolExportPointer" 11020 PFN_cuMemPoolExportPointer_v11020 "an allocation of a shared pool, to send";
            optional cuMemPoolImportPointer "cuMemPoolImportPointer" "cuMemPoolImportPointer" 11020 PFN_cuMemPoolImportPointer_v11020 "an allocation of another process's pool";
            optional cuDeviceGetDefaultMemPool "cuDeviceGetDefaultMemPool" "cuDeviceGetDefaultMemPool" 11020 PFN_cuDeviceGetDefaultMemPool_v11020 "a device's default pool";
            optional cuDeviceGetMemPool "cuDeviceGetMemPool" "cuDeviceGetMemPool" 11020 PFN_cuDeviceGetMemPool_v11020 "a device's current pool";
            optional cuDeviceSetMemPool "cuDeviceSetMemPool" "cuDeviceSetMemPool" 11020 PFN_cuDeviceSetMemPool_v11020 "set a device's current pool";
            optional cuMemAllocAsync "cuMemAllocAsync" "cuMemAllocAsync" 11020 PFN_cuMemAllocAsync_v11020 "allocate from the current pool, on a stream";
            optional cuMemAllocFromPoolAsync "cuMemAllocFromPoolAsync" "cuMemAllocFromPoolAsync" 11020 PFN_cuMemAllocFromPoolAsync_v11020 "allocate from a pool, on a stream";
            optional cuMemFreeAsync "cuMemFreeAsync" "cuMemFreeAsync" 11020 PFN_cuMemFreeAsync_v11020 "free, on a stream", "The address came from a pool and no work but that before it on the stream touches it.";
            // Legacy sharing
            optional cuIpcGetMemHandle "cuIpcGetMemHandle" "cuIpcGetMemHandle" 4010 PFN_cuIpcGetMemHandle_v4010 "a classic allocation as a handle for other processes";
            optional cuIpcOpenMemHandle "cuIpcOpenMemHandle" "cuIpcOpenMemHandle_v2" 11000 PFN_cuIpcOpenMemHandle_v11000 "map another process's classic allocation";
            optional cuIpcCloseMemHandle "cuIpcCloseMemHandle" "cuIpcCloseMemHandle" 4010 PFN_cuIpcCloseMemHandle_v4010 "unmap it", "No pending work touches the memory.";
            // Peers
            required cuDeviceCanAccessPeer "cuDeviceCanAccessPeer" "cuDeviceCanAccessPeer" 4000 PFN_cuDeviceCanAccessPeer_v4000 "whether a device reaches another's memory";
            optional cuDeviceGetP2PAttribute "cuDeviceGetP2PAttribute" "cuDeviceGetP2PAttribute" 8000 PFN_cuDeviceGetP2PAttribute_v8000 "how two devices are linked";
            optional cuCtxEnablePeerAccess "cuCtxEnablePeerAccess" "cuCtxEnablePeerAccess" 4000 PFN_cuCtxEnablePeerAccess_v4000 "let the current context reach a peer's classic allocations";
            optional cuCtxDisablePeerAccess "cuCtxDisablePeerAccess" "cuCtxDisablePeerAccess" 4000 PFN_cuCtxDisablePeerAccess_v4000 "undo it", "No pending work reaches the peer through it.";
            // Kernels
            optional cuModuleLoadData "cuModuleLoadData" "cuModuleLoadData" 2000 PFN_cuModuleLoadData_v2000 "load code from memory", "`image` is a whole module: PTX that ends with a zero byte, a cubin or a fatbin.";
            optional cuModuleLoadDataEx "cuModuleLoadDataEx" "cuModuleLoadDataEx" 2010 PFN_cuModuleLoadDataEx_v2010 "load code from memory, with options", "`image` is a whole module: PTX that ends with a zero byte, a cubin or a fatbin; both option arrays have `numOptions` entries of the types that the options want.";
            optional cuModuleUnload "cuModuleUnload" "cuModuleUnload" 2000 PFN_cuModuleUnload_v2000 "unload code", "None of its functions is used any more.";
            optional cuModuleGetFunction "cuModuleGetFunction" "cuModuleGetFunction" 2000 PFN_cuModuleGetFunction_v2000 "a kernel by name", "The name ends with a zero byte.";
            optional cuLaunchKernel "cuLaunchKernel" "cuLaunchKernel" 4000 PFN_cuLaunchKernel_v4000 "run a kernel", "The parameters are as many, and of the types, that the kernel takes, and all that it touches stays mapped until it is done.";
        }
    };
}

pub(crate) use for_each_symbol;
