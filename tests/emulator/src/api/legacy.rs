//! Legacy IPC, which the emulator does not do; but memory that it never works with is refused as a
//! driver refuses it.

use super::{Out, api};
use crate::abi::DevicePtr;
use crate::code::Code;
use std::ffi::c_void;

api! {
    fn cuIpcGetMemHandle as "cuIpcGetMemHandle"(handle: Out<c_void>, address: DevicePtr) |core| {
        handle.check()?;
        core.current()?;
        match core.linear.at(address) {
            Some(_) => Err(Code::NOT_SUPPORTED),
            None => Err(Code::INVALID_VALUE),
        }
    }
}
