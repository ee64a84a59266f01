//! The C functions: arguments in, the core asked, answers out. What of the driver's rules only one
//! family of functions needs stands beside it.

pub(crate) mod context;
pub(crate) mod copy;
pub(crate) mod device;
pub(crate) mod entry;
pub(crate) mod event;
pub(crate) mod legacy;
pub(crate) mod linear;
pub(crate) mod missing;
pub(crate) mod pinned;
pub(crate) mod pointer;
pub(crate) mod stream;
pub(crate) mod vmm;

use crate::code::{Code, Result};
use crate::core::{Locked, config, is_forked, is_ready};
use crate::{fault, host_function};
use std::cell::Cell;

/// A pointer that the caller lets the driver write one value through; may be null.
///
/// It exists only as an argument that C passed, whose contract covers the write.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// # Safety
    /// Null, or valid for the write of a value.
    pub unsafe fn new(pointer: *mut T) -> Self {
        Self(pointer)
    }

    /// `INVALID_VALUE` for null.
    pub fn set(self, value: T) -> Result {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, and the caller of the C function vouches for the rest.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// For results that a caller may leave out.
    pub fn set_if_wanted(self, value: T) {
        let _ = self.set(value);
    }

    pub fn check(self) -> Result {
        if self.0.is_null() {
            Err(Code::INVALID_VALUE)
        } else {
            Ok(())
        }
    }

    pub fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }

    pub fn address(self) -> u64 {
        self.0.expose_provenance() as u64
    }

    /// Element of an array of results.
    pub fn at(self, index: usize) -> Self {
        Self(self.0.wrapping_add(index))
    }
}

/// A pointer that the driver reads values through; may be null.
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for In<T> {}

impl<T> In<T> {
    pub fn address(self) -> u64 {
        self.0.expose_provenance() as u64
    }

    pub fn cast<U>(self) -> In<U> {
        In(self.0.cast())
    }
}

impl<T: Copy> In<T> {
    /// `INVALID_VALUE` for null.
    pub fn get(self) -> Result<T> {
        self.at(0)
    }

    /// Element of an array of arguments.
    pub fn at(self, index: usize) -> Result<T> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, and the caller of the C function vouches for the rest.
        Ok(unsafe { self.0.wrapping_add(index).read_unaligned() })
    }
}

thread_local! {
    static PER_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// While it lives, stream 0 of this thread's calls is the per-thread stream.
pub(crate) struct PerThread(());

impl PerThread {
    pub fn begin() -> Self {
        PER_THREAD.set(true);
        Self(())
    }

    pub fn is_on() -> bool {
        PER_THREAD.get()
    }
}

impl Drop for PerThread {
    fn drop(&mut self) {
        PER_THREAD.set(false);
    }
}

/// The way of every call that needs an initialised driver.
pub(crate) fn enter(function: &'static str, call: impl FnOnce(Locked) -> Result) -> Code {
    enter_early(function, || {
        if !is_ready() {
            Err(Code::NOT_INITIALIZED)
        } else if host_function::is_inside() && !is_answered_inside(function) {
            Err(Code::NOT_PERMITTED)
        } else {
            call(Locked::new())
        }
    })
}

/// Whether a call only queues work, whose the latency is then.
fn queues(function: &str) -> bool {
    let is_fill = function.starts_with("cuMemsetD");
    function.ends_with("Async")
        || is_fill
        || matches!(
            function,
            "cuMemcpyDtoD" | "cuMemcpyPeer" | "cuLaunchHostFunc"
        )
}

/// What a function that a stream calls may call: as recorded, what names a stream or an event and
/// no memory; a fill, which is not looked at either; and what is the thread's own.
fn is_answered_inside(function: &str) -> bool {
    let names_one = function.starts_with("cuStream") || function.starts_with("cuEvent");
    let makes_one = function.starts_with("cuStreamCreate") || function == "cuEventCreate";
    let fills = function.starts_with("cuMemset") && function.ends_with("Async");
    names_one && !makes_one
        || fills
        || matches!(
            function,
            "cuLaunchHostFunc" | "cuThreadExchangeStreamCaptureMode" | "cuCtxGetCurrent"
        )
}

/// The way of the calls that work before `cuInit` and after a fork.
pub(crate) fn enter_early(function: &'static str, call: impl FnOnce() -> Result) -> Code {
    if is_forked() {
        // Another thread may have held the lock of the counts when the process forked, and in the
        // child nobody lets it go.
        return Code::from_result(call());
    }
    // What is to fail may be this very call.
    let _ = config();
    let result = fault::enter(function).and_then(|()| {
        if !queues(function) {
            std::thread::sleep(fault::latency(function));
        }
        call()
    });
    let code = Code::from_result(result);
    fault::leave(function, code);
    code
}

/// Defines C functions. The body answers `Result` and finds the locked driver under the name
/// that stands between the bars. In `per_thread` is the form of each for which stream 0 is the
/// calling thread's.
macro_rules! api {
    ($(fn $name:ident as $counted:literal($($arg:ident: $ty:ty),* $(,)?) |$core:pat_param| $body:block)*) => {
        $(
            #[allow(non_snake_case)]
            pub(crate) unsafe extern "C" fn $name($($arg: $ty),*) -> $crate::code::Code {
                $crate::api::enter($counted, move |$core: $crate::core::Locked| $body)
            }
        )*

        #[allow(dead_code, unused_imports, non_snake_case)] // not every one has such a form
        pub(crate) mod per_thread {
            use super::*;
            $(
                pub(crate) unsafe extern "C" fn $name($($arg: $ty),*) -> $crate::code::Code {
                    let _here = $crate::api::PerThread::begin();
                    // SAFETY: the caller's contract is the same.
                    unsafe { super::$name($($arg),*) }
                }
            )*
        }
    };
}
pub(crate) use api;
