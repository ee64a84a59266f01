//! `CUresult` values with their names and short texts.

use std::ffi::{CStr, c_int};

/// What a driver call answers: a transparent integer, so that every value can be injected.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Code(pub c_int);

/// The result of an inner operation.
pub(crate) type Result<T = ()> = std::result::Result<T, Code>;

impl Code {
    /// The C name, such as `CUDA_ERROR_OUT_OF_MEMORY`; `None` for a value without one.
    pub fn name(self) -> Option<&'static CStr> {
        CODES.iter().find(|row| row.0 == self.0).map(|row| row.1)
    }

    /// A few words about the value, as `cuGetErrorString` gives them.
    pub fn text(self) -> Option<&'static CStr> {
        CODES.iter().find(|row| row.0 == self.0).map(|row| row.2)
    }

    pub(crate) fn from_result(result: Result) -> Self {
        match result {
            Ok(()) => Self::SUCCESS,
            Err(code) => code,
        }
    }
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name().and_then(|name| name.to_str().ok()) {
            Some(name) => f.write_str(name),
            None => write!(f, "CUresult {}", self.0),
        }
    }
}

macro_rules! codes {
    ($($constant:ident $value:literal $name:literal $text:literal)*) => {
        #[allow(missing_docs)] // the names are CUDA's and documented there
        impl Code {
            $(pub const $constant: Self = Self($value);)*
        }
        const CODES: &[(c_int, &CStr, &CStr)] = &[$(($value, $name, $text),)*];
    };
}

codes! {
    SUCCESS 0 c"CUDA_SUCCESS" c"no error"
    INVALID_VALUE 1 c"CUDA_ERROR_INVALID_VALUE" c"invalid argument"
    OUT_OF_MEMORY 2 c"CUDA_ERROR_OUT_OF_MEMORY" c"out of memory"
    NOT_INITIALIZED 3 c"CUDA_ERROR_NOT_INITIALIZED" c"initialization error"
    DEINITIALIZED 4 c"CUDA_ERROR_DEINITIALIZED" c"driver shutting down"
    PROFILER_DISABLED 5 c"CUDA_ERROR_PROFILER_DISABLED" c"profiler disabled"
    PROFILER_NOT_INITIALIZED 6 c"CUDA_ERROR_PROFILER_NOT_INITIALIZED" c"profiler not initialized"
    PROFILER_ALREADY_STARTED 7 c"CUDA_ERROR_PROFILER_ALREADY_STARTED" c"profiler already started"
    PROFILER_ALREADY_STOPPED 8 c"CUDA_ERROR_PROFILER_ALREADY_STOPPED" c"profiler already stopped"
    STUB_LIBRARY 34 c"CUDA_ERROR_STUB_LIBRARY" c"CUDA driver is a stub library"
    CALL_REQUIRES_NEWER_DRIVER 36 c"CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER" c"API call requires a newer driver"
    DEVICE_UNAVAILABLE 46 c"CUDA_ERROR_DEVICE_UNAVAILABLE" c"device unavailable"
    MULTICAST_RESOURCE_FULL 47 c"CUDA_ERROR_MULTICAST_RESOURCE_FULL" c"multicast resource full"
    NO_DEVICE 100 c"CUDA_ERROR_NO_DEVICE" c"no CUDA-capable device is detected"
    INVALID_DEVICE 101 c"CUDA_ERROR_INVALID_DEVICE" c"invalid device ordinal"
    DEVICE_NOT_LICENSED 102 c"CUDA_ERROR_DEVICE_NOT_LICENSED" c"device not licensed"
    INVALID_IMAGE 200 c"CUDA_ERROR_INVALID_IMAGE" c"device kernel image is invalid"
    INVALID_CONTEXT 201 c"CUDA_ERROR_INVALID_CONTEXT" c"invalid device context"
    CONTEXT_ALREADY_CURRENT 202 c"CUDA_ERROR_CONTEXT_ALREADY_CURRENT" c"context already current"
    MAP_FAILED 205 c"CUDA_ERROR_MAP_FAILED" c"map failed"
    UNMAP_FAILED 206 c"CUDA_ERROR_UNMAP_FAILED" c"unmap failed"
    ARRAY_IS_MAPPED 207 c"CUDA_ERROR_ARRAY_IS_MAPPED" c"array is mapped"
    ALREADY_MAPPED 208 c"CUDA_ERROR_ALREADY_MAPPED" c"already mapped"
    NO_BINARY_FOR_GPU 209 c"CUDA_ERROR_NO_BINARY_FOR_GPU" c"no binary for gpu"
    ALREADY_ACQUIRED 210 c"CUDA_ERROR_ALREADY_ACQUIRED" c"already acquired"
    NOT_MAPPED 211 c"CUDA_ERROR_NOT_MAPPED" c"not mapped"
    NOT_MAPPED_AS_ARRAY 212 c"CUDA_ERROR_NOT_MAPPED_AS_ARRAY" c"not mapped as array"
    NOT_MAPPED_AS_POINTER 213 c"CUDA_ERROR_NOT_MAPPED_AS_POINTER" c"not mapped as pointer"
    ECC_UNCORRECTABLE 214 c"CUDA_ERROR_ECC_UNCORRECTABLE" c"ecc uncorrectable"
    UNSUPPORTED_LIMIT 215 c"CUDA_ERROR_UNSUPPORTED_LIMIT" c"unsupported limit"
    CONTEXT_ALREADY_IN_USE 216 c"CUDA_ERROR_CONTEXT_ALREADY_IN_USE" c"context already in use"
    PEER_ACCESS_UNSUPPORTED 217 c"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED" c"peer access is not supported between these two devices"
    INVALID_PTX 218 c"CUDA_ERROR_INVALID_PTX" c"invalid ptx"
    INVALID_GRAPHICS_CONTEXT 219 c"CUDA_ERROR_INVALID_GRAPHICS_CONTEXT" c"invalid graphics context"
    NVLINK_UNCORRECTABLE 220 c"CUDA_ERROR_NVLINK_UNCORRECTABLE" c"nvlink uncorrectable"
    JIT_COMPILER_NOT_FOUND 221 c"CUDA_ERROR_JIT_COMPILER_NOT_FOUND" c"jit compiler not found"
    UNSUPPORTED_PTX_VERSION 222 c"CUDA_ERROR_UNSUPPORTED_PTX_VERSION" c"unsupported ptx version"
    JIT_COMPILATION_DISABLED 223 c"CUDA_ERROR_JIT_COMPILATION_DISABLED" c"jit compilation disabled"
    UNSUPPORTED_EXEC_AFFINITY 224 c"CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY" c"unsupported exec affinity"
    UNSUPPORTED_DEVSIDE_SYNC 225 c"CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC" c"unsupported devside sync"
    CONTAINED 226 c"CUDA_ERROR_CONTAINED" c"contained"
    INSUFFICIENT_LOADER_VERSION 227 c"CUDA_ERROR_INSUFFICIENT_LOADER_VERSION" c"insufficient loader version"
    INVALID_SOURCE 300 c"CUDA_ERROR_INVALID_SOURCE" c"invalid source"
    FILE_NOT_FOUND 301 c"CUDA_ERROR_FILE_NOT_FOUND" c"file not found"
    SHARED_OBJECT_SYMBOL_NOT_FOUND 302 c"CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND" c"shared object symbol not found"
    SHARED_OBJECT_INIT_FAILED 303 c"CUDA_ERROR_SHARED_OBJECT_INIT_FAILED" c"shared object init failed"
    OPERATING_SYSTEM 304 c"CUDA_ERROR_OPERATING_SYSTEM" c"OS call failed or operation not supported on this OS"
    INVALID_HANDLE 400 c"CUDA_ERROR_INVALID_HANDLE" c"invalid resource handle"
    ILLEGAL_STATE 401 c"CUDA_ERROR_ILLEGAL_STATE" c"the operation cannot be performed in the present state"
    LOSSY_QUERY 402 c"CUDA_ERROR_LOSSY_QUERY" c"lossy query"
    NOT_FOUND 500 c"CUDA_ERROR_NOT_FOUND" c"named symbol not found"
    NOT_READY 600 c"CUDA_ERROR_NOT_READY" c"device not ready"
    ILLEGAL_ADDRESS 700 c"CUDA_ERROR_ILLEGAL_ADDRESS" c"an illegal memory access was encountered"
    LAUNCH_OUT_OF_RESOURCES 701 c"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES" c"launch out of resources"
    LAUNCH_TIMEOUT 702 c"CUDA_ERROR_LAUNCH_TIMEOUT" c"launch timeout"
    LAUNCH_INCOMPATIBLE_TEXTURING 703 c"CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING" c"launch incompatible texturing"
    PEER_ACCESS_ALREADY_ENABLED 704 c"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED" c"peer access is already enabled"
    PEER_ACCESS_NOT_ENABLED 705 c"CUDA_ERROR_PEER_ACCESS_NOT_ENABLED" c"peer access has not been enabled"
    PRIMARY_CONTEXT_ACTIVE 708 c"CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE" c"cannot set while device is active in this process"
    CONTEXT_IS_DESTROYED 709 c"CUDA_ERROR_CONTEXT_IS_DESTROYED" c"context is destroyed"
    ASSERT 710 c"CUDA_ERROR_ASSERT" c"assert"
    TOO_MANY_PEERS 711 c"CUDA_ERROR_TOO_MANY_PEERS" c"too many peers"
    HOST_MEMORY_ALREADY_REGISTERED 712 c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED" c"host memory already registered"
    HOST_MEMORY_NOT_REGISTERED 713 c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED" c"host memory not registered"
    HARDWARE_STACK_ERROR 714 c"CUDA_ERROR_HARDWARE_STACK_ERROR" c"hardware stack error"
    ILLEGAL_INSTRUCTION 715 c"CUDA_ERROR_ILLEGAL_INSTRUCTION" c"illegal instruction"
    MISALIGNED_ADDRESS 716 c"CUDA_ERROR_MISALIGNED_ADDRESS" c"misaligned address"
    INVALID_ADDRESS_SPACE 717 c"CUDA_ERROR_INVALID_ADDRESS_SPACE" c"invalid address space"
    INVALID_PC 718 c"CUDA_ERROR_INVALID_PC" c"invalid pc"
    LAUNCH_FAILED 719 c"CUDA_ERROR_LAUNCH_FAILED" c"launch failed"
    COOPERATIVE_LAUNCH_TOO_LARGE 720 c"CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE" c"cooperative launch too large"
    TENSOR_MEMORY_LEAK 721 c"CUDA_ERROR_TENSOR_MEMORY_LEAK" c"tensor memory leak"
    NOT_PERMITTED 800 c"CUDA_ERROR_NOT_PERMITTED" c"operation not permitted"
    NOT_SUPPORTED 801 c"CUDA_ERROR_NOT_SUPPORTED" c"operation not supported"
    SYSTEM_NOT_READY 802 c"CUDA_ERROR_SYSTEM_NOT_READY" c"system not ready"
    SYSTEM_DRIVER_MISMATCH 803 c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" c"system driver mismatch"
    COMPAT_NOT_SUPPORTED_ON_DEVICE 804 c"CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE" c"compat not supported on device"
    MPS_CONNECTION_FAILED 805 c"CUDA_ERROR_MPS_CONNECTION_FAILED" c"mps connection failed"
    MPS_RPC_FAILURE 806 c"CUDA_ERROR_MPS_RPC_FAILURE" c"mps rpc failure"
    MPS_SERVER_NOT_READY 807 c"CUDA_ERROR_MPS_SERVER_NOT_READY" c"mps server not ready"
    MPS_MAX_CLIENTS_REACHED 808 c"CUDA_ERROR_MPS_MAX_CLIENTS_REACHED" c"mps max clients reached"
    MPS_MAX_CONNECTIONS_REACHED 809 c"CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED" c"mps max connections reached"
    MPS_CLIENT_TERMINATED 810 c"CUDA_ERROR_MPS_CLIENT_TERMINATED" c"mps client terminated"
    CDP_NOT_SUPPORTED 811 c"CUDA_ERROR_CDP_NOT_SUPPORTED" c"cdp not supported"
    CDP_VERSION_MISMATCH 812 c"CUDA_ERROR_CDP_VERSION_MISMATCH" c"cdp version mismatch"
    STREAM_CAPTURE_UNSUPPORTED 900 c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED" c"operation not permitted when stream is capturing"
    STREAM_CAPTURE_INVALIDATED 901 c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED" c"operation failed due to a previous error during capture"
    STREAM_CAPTURE_MERGE 902 c"CUDA_ERROR_STREAM_CAPTURE_MERGE" c"stream capture merge"
    STREAM_CAPTURE_UNMATCHED 903 c"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED" c"stream capture unmatched"
    STREAM_CAPTURE_UNJOINED 904 c"CUDA_ERROR_STREAM_CAPTURE_UNJOINED" c"stream capture unjoined"
    STREAM_CAPTURE_ISOLATION 905 c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION" c"stream capture isolation"
    STREAM_CAPTURE_IMPLICIT 906 c"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT" c"operation would make the legacy stream depend on a capturing blocking stream"
    CAPTURED_EVENT 907 c"CUDA_ERROR_CAPTURED_EVENT" c"operation not permitted on an event last recorded in a capturing stream"
    STREAM_CAPTURE_WRONG_THREAD 908 c"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD" c"attempt to terminate a thread-local capture sequence from another thread"
    TIMEOUT 909 c"CUDA_ERROR_TIMEOUT" c"timeout"
    GRAPH_EXEC_UPDATE_FAILURE 910 c"CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE" c"graph exec update failure"
    EXTERNAL_DEVICE 911 c"CUDA_ERROR_EXTERNAL_DEVICE" c"external device"
    INVALID_CLUSTER_SIZE 912 c"CUDA_ERROR_INVALID_CLUSTER_SIZE" c"invalid cluster size"
    FUNCTION_NOT_LOADED 913 c"CUDA_ERROR_FUNCTION_NOT_LOADED" c"function not loaded"
    INVALID_RESOURCE_TYPE 914 c"CUDA_ERROR_INVALID_RESOURCE_TYPE" c"invalid resource type"
    INVALID_RESOURCE_CONFIGURATION 915 c"CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION" c"invalid resource configuration"
    KEY_ROTATION 916 c"CUDA_ERROR_KEY_ROTATION" c"key rotation"
    STREAM_DETACHED 917 c"CUDA_ERROR_STREAM_DETACHED" c"stream detached"
    GRAPH_RECAPTURE_FAILURE 918 c"CUDA_ERROR_GRAPH_RECAPTURE_FAILURE" c"graph recapture failure"
    FABRIC_NOT_READY 919 c"CUDA_ERROR_FABRIC_NOT_READY" c"fabric not ready"
    UNKNOWN 999 c"CUDA_ERROR_UNKNOWN" c"unknown error"
}
