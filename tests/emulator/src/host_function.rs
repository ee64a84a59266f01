//! Functions of the program that streams call.

use std::cell::Cell;
use std::ffi::c_void;

/// What `cuLaunchHostFunc` was given. The function may end its thread by `pthread_exit`, as Python does
/// with one that wants the interpreter while that ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostFunction {
    function: unsafe extern "C-unwind" fn(*mut c_void),
    data: *mut c_void,
}

// SAFETY: the program gives the function and its data away to be used by a thread of the driver, as
// `cuLaunchHostFunc` says; here they are only kept.
unsafe impl Send for HostFunction {}

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

impl HostFunction {
    /// # Safety
    /// The function may be called with the data, once, by another thread.
    pub unsafe fn new(
        function: unsafe extern "C-unwind" fn(*mut c_void),
        data: *mut c_void,
    ) -> Self {
        Self { function, data }
    }

    /// The function may end its thread, which unwinds: nothing here is to be undone then.
    ///
    /// # Safety
    /// It was not called yet.
    pub unsafe fn call(self) {
        INSIDE.set(true);
        // SAFETY: whoever launched it vouches for the one call.
        unsafe { (self.function)(self.data) };
        INSIDE.set(false);
    }
}

/// Whether the calling thread is inside such a function.
pub(crate) fn is_inside() -> bool {
    INSIDE.get()
}
