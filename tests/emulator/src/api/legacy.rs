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
        let below = core.linear.range(..=address).next_back();
        match below.is_some_and(|(start, memory)| address - start < memory.size) {
            true => Err(Code::NOT_SUPPORTED),
            false => Err(Code::INVALID_VALUE),
        }
    }
}
