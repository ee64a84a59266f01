//! The thread that calls functions of the program.

use crate::code::{Code, Result};
use crate::core::{Locked, is_ready};
use crate::queue::Turn;
use std::cell::Cell;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};

/// Does something with all signals blocked, and so they are in a thread that it makes: a signal is to
/// meet the program's own threads.
fn without_signals<T>(act: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: pointers to locals; the first is filled before it is read.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let value = act();
    // SAFETY: what the thread's mask was.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), null_mut()) };
    value
}

thread_local! {
    static TURN: Cell<Option<Turn>> = const { Cell::new(None) };
    static END: End = const { End };
}

/// What is left to do when a function has ended the thread that called it.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        if is_ready() {
            let mut core = Locked::new();
            core.calls_functions = false;
            if let Some(turn) = TURN.take() {
                core.function_returned(turn);
            }
            // Where no other thread can be had, the next launch says so.
            if core.streams.has_functions() {
                let _ = start(&mut core);
            }
        }
    }
}

type Start = extern "C-unwind" fn(*mut c_void) -> *mut c_void;

/// Sees to it that the functions that are queued will be called.
///
/// The thread waits for more as long as the process lives: what a function keeps in thread-local
/// values is there at the next one on a real driver too.
pub(crate) fn start(core: &mut Locked) -> Result {
    if !core.calls_functions {
        let mut thread = MaybeUninit::uninit();
        // A thread of the standard library would end the process where a function of the program ends
        // its thread.
        let made = without_signals(|| {
            // SAFETY: a pointer to a local, no attributes, and a function that takes nothing. That it may
            // unwind is between it and the C library, which calls it.
            unsafe {
                let serve =
                    std::mem::transmute::<Start, extern "C" fn(*mut c_void) -> *mut c_void>(serve);
                libc::pthread_create(thread.as_mut_ptr(), null(), serve, null_mut())
            }
        });
        if made != 0 {
            return Err(Code::OPERATING_SYSTEM);
        }
        // SAFETY: it was made just now, and nobody else knows it.
        unsafe { libc::pthread_detach(thread.assume_init()) };
        core.calls_functions = true;
    }
    core.wake();
    Ok(())
}

/// Has nothing to undo while a function is called, which may end the thread.
extern "C-unwind" fn serve(_: *mut c_void) -> *mut c_void {
    END.with(|_| ());
    loop {
        let turn = next();
        TURN.set(Some(turn));
        // SAFETY: it was launched, and this is its turn: whoever launched it vouches for this call.
        unsafe { turn.function.call() };
        if !is_ready() {
            // The function has forked, and what is called next is for the parent.
            return null_mut();
        }
        TURN.set(None);
        Locked::new().function_returned(turn);
    }
}

/// The next function to call, waited for. The program may call the driver while it is called, there
/// and in the threads that it waits for.
fn next() -> Turn {
    let mut core = Locked::new();
    loop {
        match core.streams.next_function() {
            None => core = core.wait_for_functions(),
            Some(turn) if core.usable(turn.context).is_ok() => return turn,
            // A context in which work has failed calls no functions any more.
            Some(turn) => core.function_returned(turn),
        }
    }
}
