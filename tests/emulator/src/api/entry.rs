//! Initialisation, versions, error texts, and functions by name.

use super::{Out, enter_early};
use crate::code::Code;
use crate::core::config;
use crate::start::initialise;
use crate::symbols::{self, Answer};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

pub(crate) unsafe extern "C" fn cuInit(flags: c_uint) -> Code {
    enter_early("cuInit", || initialise(flags))
}

pub(crate) unsafe extern "C" fn cuDriverGetVersion(version: Out<c_int>) -> Code {
    enter_early("cuDriverGetVersion", || version.set(driver_version()))
}

pub(crate) unsafe extern "C" fn cuGetErrorName(code: c_int, text: Out<*const c_char>) -> Code {
    enter_early("cuGetErrorName", || put_text(Code(code).name(), text))
}

pub(crate) unsafe extern "C" fn cuGetErrorString(code: c_int, text: Out<*const c_char>) -> Code {
    enter_early("cuGetErrorString", || put_text(Code(code).text(), text))
}

/// The form of CUDA 12.0, which says why nothing was found.
pub(crate) unsafe extern "C" fn cuGetProcAddress_v2(
    symbol: *const c_char,
    function: Out<*mut c_void>,
    version: c_int,
    flags: u64,
    status: Out<c_int>,
) -> Code {
    enter_early("cuGetProcAddress", || {
        function.check()?;
        let answer = find(symbol, version, flags)?;
        status.set_if_wanted(answer.status());
        function.set(answer.address())
    })
}

/// The form of CUDA 11.3, where nothing found is an error.
pub(crate) unsafe extern "C" fn cuGetProcAddress(
    symbol: *const c_char,
    function: Out<*mut c_void>,
    version: c_int,
    flags: u64,
) -> Code {
    enter_early("cuGetProcAddress", || {
        function.check()?;
        let answer = find(symbol, version, flags)?;
        function.set(answer.address())?;
        if answer.address().is_null() {
            Err(Code::NOT_FOUND)
        } else {
            Ok(())
        }
    })
}

/// A private name by which a program can tell that this is no GPU.
pub(crate) unsafe extern "C" fn vmmEmulatorVersion() -> c_int {
    1
}

fn find(symbol: *const c_char, version: c_int, flags: u64) -> crate::code::Result<Answer> {
    // The version is taken as unsigned where it is compared with what a symbol needs.
    if symbol.is_null() || flags > 3 || version / 10 > driver_version() / 10 {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: not null, and the caller of the C function passes a C string.
    let symbol = unsafe { CStr::from_ptr(symbol) };
    Ok(symbols::find(
        symbol.to_bytes(),
        if version < 0 { c_int::MAX } else { version },
        flags == 2,
        driver_version(),
    ))
}

fn put_text(found: Option<&'static CStr>, text: Out<*const c_char>) -> crate::code::Result {
    text.check()?;
    match found {
        Some(found) => text.set(found.as_ptr()),
        None => {
            text.set(std::ptr::null())?;
            Err(Code::INVALID_VALUE)
        }
    }
}

fn driver_version() -> c_int {
    config()
        .as_ref()
        .map_or(13_000, |config| config.driver_version)
}
