//! What the emulator knows by name and cannot do: `NOT_SUPPORTED`, never a pretended success.

use super::enter;
use crate::code::Code;

macro_rules! missing {
    ($($name:ident)*) => {
        $(
            #[allow(non_snake_case)]
            pub(crate) unsafe extern "C" fn $name() -> Code {
                enter(stringify!($name), |_| Err(Code::NOT_SUPPORTED))
            }
        )*
    };
}

missing! {
    cuDeviceGetDefaultMemPool
    cuDeviceGetMemPool
    cuDeviceGetP2PAttribute
    cuDeviceSetMemPool
    cuGraphInstantiate
    cuGraphLaunch
    cuIpcCloseMemHandle
    cuIpcGetEventHandle
    cuIpcGetMemHandle
    cuIpcOpenEventHandle
    cuIpcOpenMemHandle
    cuLaunchKernel
    cuLaunchKernelEx
    cuLibraryLoadData
    cuMemAllocAsync
    cuMemAllocFromPoolAsync
    cuMemAllocManaged
    cuMemFreeAsync
    cuMemHostGetDevicePointer
    cuMemMapArrayAsync
    cuMemPoolCreate
    cuMemPoolDestroy
    cuMemPoolExportPointer
    cuMemPoolExportToShareableHandle
    cuMemPoolGetAccess
    cuMemPoolGetAttribute
    cuMemPoolImportFromShareableHandle
    cuMemPoolImportPointer
    cuMemPoolSetAccess
    cuMemPoolSetAttribute
    cuMemPoolTrimTo
    cuMemcpyBatchAsync
    cuModuleGetFunction
    cuModuleLoad
    cuModuleLoadData
    cuModuleLoadDataEx
    cuModuleUnload
    cuMulticastAddDevice
    cuMulticastBindAddr
    cuMulticastBindMem
    cuMulticastCreate
    cuMulticastGetGranularity
    cuMulticastUnbind
    cuPointerSetAttribute
}
