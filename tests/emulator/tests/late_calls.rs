//! A thread that ends may call the driver from destructors of C that run after those of Rust.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use vmm_emulator::{Calls, Code, Config};
use vmm_sys::*;

unsafe extern "C" {
    // Of the C library, which every program with threads on Linux already has.
    fn pthread_key_create(key: *mut c_uint, gone: extern "C" fn(*mut c_void)) -> c_int;
    fn pthread_setspecific(key: c_uint, value: *const c_void) -> c_int;
}

/// The C library calls destructors again while they leave something behind, as often as this.
const ROUNDS: u32 = 4;

static DRIVER: OnceLock<Driver> = OnceLock::new();
static KEY: AtomicU32 = AtomicU32::new(0);
static DONE: AtomicU32 = AtomicU32::new(0);

struct Last;

impl Drop for Last {
    fn drop(&mut self) {
        calls();
    }
}

thread_local! {
    static LAST: Last = const { Last };
}

extern "C" fn round(value: *mut c_void) {
    calls();
    if DONE.fetch_add(1, SeqCst) + 1 < ROUNDS {
        // SAFETY: a key that exists.
        unsafe { pthread_setspecific(KEY.load(SeqCst), value) };
    }
}

/// Asks for everything that depends on the thread. A panic here would end the process.
fn calls() {
    let driver = DRIVER.get().unwrap();
    let (mut context, mut address, mut graph) = (std::ptr::null_mut(), 0, std::ptr::null_mut());
    let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    let own = 2 as CUstream; // CU_STREAM_PER_THREAD
    // SAFETY: pointers to locals, handles and addresses of this driver.
    unsafe {
        driver.cuCtxGetCurrent(&mut context).unwrap();
        assert!(!context.is_null());
        driver.cuThreadExchangeStreamCaptureMode(&mut mode).unwrap();
        driver.cuThreadExchangeStreamCaptureMode(&mut mode).unwrap();
        driver.cuStreamSynchronize(own).unwrap();
        driver.cuStreamBeginCapture(own, mode).unwrap();
        assert!(driver.cuMemAlloc(&mut address, 16).is_err(), "it captures");
        assert!(driver.cuStreamEndCapture(own, &mut graph).is_err());
        driver.cuMemAlloc(&mut address, 16).unwrap();
        driver.cuMemFree(address).unwrap();
    }
    let emulator = vmm_emulator::Emulator::current();
    let failure = emulator.fail_nth(Calls::AnyHere, 1, Code::UNKNOWN);
    // SAFETY: a pointer to a local.
    assert!(unsafe { driver.cuCtxGetCurrent(&mut context) }.is_err());
    drop(failure);
}

#[test]
fn the_driver_answers_threads_that_end() {
    let emulator = Config::new().install().unwrap();
    let driver = DRIVER.get_or_init(|| emulator.driver().unwrap());
    let mut key = 0;
    // SAFETY: a pointer to a local, and a function of this program.
    let created = unsafe {
        driver.cuInit(0).unwrap();
        pthread_key_create(&mut key, round)
    };
    assert_eq!(created, 0);
    KEY.store(key, SeqCst);
    emulator.start_trace();
    let thread = std::thread::spawn(move || {
        let mut context = std::ptr::null_mut();
        // SAFETY: a pointer to a local, and a key that exists.
        unsafe {
            driver.cuDevicePrimaryCtxRetain(&mut context, 0).unwrap();
            driver.cuCtxSetCurrent(context).unwrap();
            pthread_setspecific(key, (&raw const KEY).cast());
        }
        LAST.with(|_| ());
        vmm_emulator::Thread::current()
    });
    let caller = thread.join().unwrap();
    assert_eq!(DONE.load(SeqCst), ROUNDS);
    let trace = emulator.take_trace();
    let late = trace.iter().filter(|call| call.thread == caller).count();
    assert_eq!(late, trace.len(), "one thread called, from first to last");
}
