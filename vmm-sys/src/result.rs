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

    /// What the code means, in a few words, for the codes that memory calls answer.
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
            CUresult::CUDA_ERROR_STUB_LIBRARY => "the library is the toolkit's stub, not a driver",
            CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE => {
                "the device is in use exclusively, or prohibited"
            }
            CUresult::CUDA_ERROR_NO_DEVICE => "no device is visible",
            CUresult::CUDA_ERROR_INVALID_DEVICE => "no such device is visible to this process",
            CUresult::CUDA_ERROR_INVALID_CONTEXT => "no context, or the wrong one, is current",
            CUresult::CUDA_ERROR_OPERATING_SYSTEM => "a call to the operating system failed",
            CUresult::CUDA_ERROR_INVALID_HANDLE => "the handle is not one of the driver's",
            CUresult::CUDA_ERROR_NOT_FOUND => "no such name",
            CUresult::CUDA_ERROR_NOT_READY => "the work is not finished yet",
            CUresult::CUDA_ERROR_ILLEGAL_ADDRESS => {
                "a kernel or a copy touched memory that is not mapped"
            }
            CUresult::CUDA_ERROR_LAUNCH_FAILED => "a kernel failed",
            CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED => {
                "the devices cannot reach each other's memory"
            }
            CUresult::CUDA_ERROR_NOT_PERMITTED => "this process may not do that",
            CUresult::CUDA_ERROR_NOT_SUPPORTED => {
                "the device, the driver or the system does not offer that"
            }
            CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => {
                "the driver's library and its kernel module differ in version"
            }
            CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED => {
                "not allowed while a stream is being captured"
            }
            CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED => {
                "the capture was broken by an earlier call"
            }
            CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT => {
                "the default stream would have joined a capture"
            }
            CUresult::CUDA_ERROR_TIMEOUT => "the operation took too long",
            CUresult::CUDA_ERROR_UNKNOWN => "the driver gives no reason",
            _ => return None,
        })
    }
}

/// `CUDA_ERROR_INVALID_VALUE (1): an argument is out of range or does not fit the others`.
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
    fn an_unknown_code_is_carried() {
        assert_eq!(CUresult(123_456).name(), None);
        assert_eq!(CUresult(123_456).to_string(), "error code 123456");
    }
}
