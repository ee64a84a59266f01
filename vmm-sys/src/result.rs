//! The driver's codes: names and texts without asking a driver, so that there need not be one.

use std::fmt;

use crate::codes::CODES;
use crate::types::CUresult;

impl CUresult {
    /// The code's name in C; `None` for a code that these headers do not know, which is carried all
    /// the same.
    pub fn name(self) -> Option<&'static str> {
        CODES
            .iter()
            .find(|(code, _)| *code == self)
            .map(|(_, name)| *name)
    }

    /// What the code means, in a few words; `None` for a code that these headers do not know.
    pub const fn description(self) -> Option<&'static str> {
        Some(match self {
            CUresult::CUDA_SUCCESS => "done",
            CUresult::CUDA_ERROR_INVALID_VALUE => {
                "an argument is out of range or does not fit the others"
            }
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => "not enough free memory or addresses",
            CUresult::CUDA_ERROR_NOT_INITIALIZED => {
                "cuInit was not called, or the process was forked since"
            }
            CUresult::CUDA_ERROR_DEINITIALIZED => "the driver is shutting down with the process",
            CUresult::CUDA_ERROR_PROFILER_DISABLED => "the profiler is not set up for this process",
            CUresult::CUDA_ERROR_PROFILER_NOT_INITIALIZED => "the profiler was not set up first",
            CUresult::CUDA_ERROR_PROFILER_ALREADY_STARTED => "the profiler runs already",
            CUresult::CUDA_ERROR_PROFILER_ALREADY_STOPPED => "the profiler does not run",
            CUresult::CUDA_ERROR_STUB_LIBRARY => "the library is the toolkit's stub, not a driver",
            CUresult::CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER => {
                "a newer driver is needed for this call"
            }
            CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE => {
                "the device is in use exclusively, or prohibited"
            }
            CUresult::CUDA_ERROR_MULTICAST_RESOURCE_FULL => {
                "no room is left for another multicast object"
            }
            CUresult::CUDA_ERROR_NO_DEVICE => "no device is visible",
            CUresult::CUDA_ERROR_INVALID_DEVICE => "no such device is visible to this process",
            CUresult::CUDA_ERROR_DEVICE_NOT_LICENSED => "the device lacks a licence",
            CUresult::CUDA_ERROR_INVALID_IMAGE => "the module is not valid code",
            CUresult::CUDA_ERROR_INVALID_CONTEXT => "no context, or the wrong one, is current",
            CUresult::CUDA_ERROR_CONTEXT_ALREADY_CURRENT => "the context is current already",
            CUresult::CUDA_ERROR_MAP_FAILED => "mapping failed",
            CUresult::CUDA_ERROR_UNMAP_FAILED => "unmapping failed",
            CUresult::CUDA_ERROR_ARRAY_IS_MAPPED => "the array is mapped and cannot be destroyed",
            CUresult::CUDA_ERROR_ALREADY_MAPPED => "it is mapped already",
            CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU => "the module has no code for this device",
            CUresult::CUDA_ERROR_ALREADY_ACQUIRED => "it is acquired already",
            CUresult::CUDA_ERROR_NOT_MAPPED => "it is not mapped",
            CUresult::CUDA_ERROR_NOT_MAPPED_AS_ARRAY => "it is not mapped as an array",
            CUresult::CUDA_ERROR_NOT_MAPPED_AS_POINTER => "it is not mapped as a pointer",
            CUresult::CUDA_ERROR_ECC_UNCORRECTABLE => {
                "the device's memory had an error that could not be corrected"
            }
            CUresult::CUDA_ERROR_UNSUPPORTED_LIMIT => "the device does not have this limit",
            CUresult::CUDA_ERROR_CONTEXT_ALREADY_IN_USE => "the context is bound to another thread",
            CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED => {
                "the devices cannot reach each other's memory"
            }
            CUresult::CUDA_ERROR_INVALID_PTX => "the PTX did not compile",
            CUresult::CUDA_ERROR_INVALID_GRAPHICS_CONTEXT => "the graphics context is not usable",
            CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE => {
                "NVLink had an error that could not be corrected"
            }
            CUresult::CUDA_ERROR_JIT_COMPILER_NOT_FOUND => {
                "the driver's PTX compiler library is not installed"
            }
            CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => {
                "the PTX is newer than the driver's compiler"
            }
            CUresult::CUDA_ERROR_JIT_COMPILATION_DISABLED => "compiling PTX is switched off",
            CUresult::CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY => {
                "the device does not offer this share of its processors"
            }
            CUresult::CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC => {
                "the code waits on the device in a way that is gone"
            }
            CUresult::CUDA_ERROR_CONTAINED => {
                "an error on the device was contained, and the process has to start anew"
            }
            CUresult::CUDA_ERROR_INSUFFICIENT_LOADER_VERSION => "the module's loader is too old",
            CUresult::CUDA_ERROR_INVALID_SOURCE => "the source of the code is not valid",
            CUresult::CUDA_ERROR_FILE_NOT_FOUND => "the file was not found",
            CUresult::CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND => "a shared object lacks a symbol",
            CUresult::CUDA_ERROR_SHARED_OBJECT_INIT_FAILED => "a shared object did not start",
            CUresult::CUDA_ERROR_OPERATING_SYSTEM => "a call to the operating system failed",
            CUresult::CUDA_ERROR_INVALID_HANDLE => "the handle is not one of the driver's",
            CUresult::CUDA_ERROR_ILLEGAL_STATE => "not possible in the present state",
            CUresult::CUDA_ERROR_LOSSY_QUERY => "the answer would leave something out",
            CUresult::CUDA_ERROR_NOT_FOUND => "no such name",
            CUresult::CUDA_ERROR_NOT_READY => "the work is not finished yet",
            CUresult::CUDA_ERROR_ILLEGAL_ADDRESS => {
                "a kernel or a copy touched memory that is not mapped"
            }
            CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES => {
                "the kernel needs more registers or threads than there are"
            }
            CUresult::CUDA_ERROR_LAUNCH_TIMEOUT => "the kernel ran longer than the system lets it",
            CUresult::CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING => {
                "the kernel uses textures in another mode"
            }
            CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => {
                "access to the peer is enabled already"
            }
            CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED => "access to the peer is not enabled",
            CUresult::CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE => "the primary context exists already",
            CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED => "the context is destroyed",
            CUresult::CUDA_ERROR_ASSERT => "an assertion failed in a kernel",
            CUresult::CUDA_ERROR_TOO_MANY_PEERS => "no room is left for another peer",
            CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED => {
                "the host memory is registered already"
            }
            CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED => "the host memory is not registered",
            CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR => "a kernel overran or broke its stack",
            CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION => {
                "a kernel met an instruction that the device does not have"
            }
            CUresult::CUDA_ERROR_MISALIGNED_ADDRESS => {
                "a kernel touched memory at an unaligned address"
            }
            CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE => {
                "a kernel touched memory of the wrong kind"
            }
            CUresult::CUDA_ERROR_INVALID_PC => "a kernel jumped to where no code is",
            CUresult::CUDA_ERROR_LAUNCH_FAILED => "a kernel failed",
            CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE => {
                "the blocks of a cooperative kernel do not fit the device at once"
            }
            CUresult::CUDA_ERROR_TENSOR_MEMORY_LEAK => {
                "a kernel ended without freeing its tensor memory"
            }
            CUresult::CUDA_ERROR_NOT_PERMITTED => "this process may not do that",
            CUresult::CUDA_ERROR_NOT_SUPPORTED => {
                "the device, the driver or the system does not offer that"
            }
            CUresult::CUDA_ERROR_SYSTEM_NOT_READY => {
                "a service that the device needs is not running"
            }
            CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => {
                "the driver's library and its kernel module differ in version"
            }
            CUresult::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE => {
                "this device does not take a newer driver library on an older kernel module"
            }
            CUresult::CUDA_ERROR_MPS_CONNECTION_FAILED => {
                "the multi-process service cannot be reached"
            }
            CUresult::CUDA_ERROR_MPS_RPC_FAILURE => "the multi-process service did not answer",
            CUresult::CUDA_ERROR_MPS_SERVER_NOT_READY => {
                "the multi-process service is not ready yet"
            }
            CUresult::CUDA_ERROR_MPS_MAX_CLIENTS_REACHED => {
                "the multi-process service has no room for another process"
            }
            CUresult::CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED => {
                "the multi-process service has no connection left"
            }
            CUresult::CUDA_ERROR_MPS_CLIENT_TERMINATED => {
                "the multi-process service ended this process's work"
            }
            CUresult::CUDA_ERROR_CDP_NOT_SUPPORTED => {
                "the device cannot launch kernels from kernels"
            }
            CUresult::CUDA_ERROR_CDP_VERSION_MISMATCH => {
                "two versions of launching kernels from kernels were mixed"
            }
            CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED => {
                "not allowed while a stream is being captured"
            }
            CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED => {
                "the capture was broken by an earlier call"
            }
            CUresult::CUDA_ERROR_STREAM_CAPTURE_MERGE => "two captures would have become one",
            CUresult::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED => {
                "the capture did not begin on this stream"
            }
            CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED => {
                "a stream that joined the capture did not come back to it"
            }
            CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION => {
                "the work would depend on another that is not captured"
            }
            CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT => {
                "the default stream would have joined a capture"
            }
            CUresult::CUDA_ERROR_CAPTURED_EVENT => "the event was last recorded in a capture",
            CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD => {
                "the capture began in another thread"
            }
            CUresult::CUDA_ERROR_TIMEOUT => "the operation took too long",
            CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE => {
                "the graph changed in a way that cannot be taken over"
            }
            CUresult::CUDA_ERROR_EXTERNAL_DEVICE => {
                "a device outside CUDA failed, and the context is lost"
            }
            CUresult::CUDA_ERROR_INVALID_CLUSTER_SIZE => {
                "the kernel's clusters have a size that does not work"
            }
            CUresult::CUDA_ERROR_FUNCTION_NOT_LOADED => "the function is not loaded",
            CUresult::CUDA_ERROR_INVALID_RESOURCE_TYPE => {
                "the resource is of a type that does not fit"
            }
            CUresult::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION => {
                "the resources do not fit together or do not suffice"
            }
            CUresult::CUDA_ERROR_KEY_ROTATION => "the device is changing its encryption keys",
            CUresult::CUDA_ERROR_STREAM_DETACHED => {
                "the stream is detached, and cannot be used for that"
            }
            CUresult::CUDA_ERROR_GRAPH_RECAPTURE_FAILURE => {
                "the new capture does not match the graph"
            }
            CUresult::CUDA_ERROR_FABRIC_NOT_READY => "the fabric between the devices is not ready",
            CUresult::CUDA_ERROR_UNKNOWN => "the driver gives no reason",
            _ => return None,
        })
    }
}

/// `CUDA_ERROR_INVALID_VALUE (1), an argument is out of range or does not fit the others`.
impl fmt::Display for CUresult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({})", self.0)?,
            None => write!(f, "error code {}", self.0)?,
        }
        match self.description() {
            Some(text) => write!(f, ", {text}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for CUresult {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_says_its_name_number_and_meaning() {
        assert_eq!(
            CUresult::CUDA_ERROR_INVALID_DEVICE.name(),
            Some("CUDA_ERROR_INVALID_DEVICE")
        );
        assert_eq!(
            CUresult::CUDA_ERROR_INVALID_DEVICE.to_string(),
            "CUDA_ERROR_INVALID_DEVICE (101), no such device is visible to this process"
        );
    }

    #[test]
    fn every_code_has_a_meaning() {
        for (code, name) in CODES {
            assert!(code.description().is_some(), "{name}");
        }
    }

    #[test]
    fn an_unknown_code_is_carried() {
        assert_eq!(CUresult(123_456).name(), None);
        assert_eq!(CUresult(123_456).to_string(), "error code 123456");
    }
}
