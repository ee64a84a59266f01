//! What a context, a stream and a thread take along when they go: nothing that is current elsewhere
//! pretends to live on, and no capture goes on that nobody could end.

mod common;

use common::code;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use vmm_emulator::Config;
use vmm_sys::*;

const DESTROYED: CUresult = CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED;
const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_CONTEXT;
const SUCCESS: CUresult = CUresult::CUDA_SUCCESS;
const GLOBAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
const NON_BLOCKING: u32 = 1;

/// The driver, with no other test beside: a capture forbids calls to all.
fn driver() -> (MutexGuard<'static, ()>, &'static Driver) {
    static ALONE: Mutex<()> = Mutex::new(());
    static DRIVER: OnceLock<Driver> = OnceLock::new();
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let driver = DRIVER.get_or_init(|| {
        let driver = Config::new().install().unwrap().driver().unwrap();
        // SAFETY: no obligations.
        unsafe { driver.cuInit(0) }.unwrap();
        driver
    });
    (alone, driver)
}

/// A context, current here, and a stream of it.
fn context(driver: &Driver) -> (CUcontext, CUstream) {
    let (mut context, mut stream) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: pointers to locals.
    unsafe {
        driver.cuCtxCreate(&mut context, 0, 0).unwrap();
        driver.cuStreamCreate(&mut stream, NON_BLOCKING).unwrap();
    }
    (context, stream)
}

/// What calls that need a current context answer.
fn uses(driver: &Driver) -> [CUresult; 6] {
    let (mut free, mut total, mut device, mut address) = (0, 0, 0, 0);
    let mut stream = std::ptr::null_mut();
    // SAFETY: pointers to locals.
    unsafe {
        [
            code(driver.cuMemGetInfo(&mut free, &mut total)),
            code(driver.cuCtxSynchronize()),
            code(driver.cuCtxGetDevice(&mut device)),
            code(driver.cuMemAlloc(&mut address, 100)),
            code(driver.cuStreamCreate(&mut stream, 0)),
            code(driver.cuStreamSynchronize(std::ptr::null_mut())),
        ]
    }
}

#[test]
fn a_context_that_another_thread_destroys_stays_current_and_answers_so() {
    let (_alone, driver) = driver();
    let (made, _) = context(driver);
    let below = context(driver).0;
    let address = made as usize;
    let thread = std::thread::spawn(move || {
        let made = address as CUcontext;
        let mut current = std::ptr::null_mut();
        // SAFETY: a pointer to a local; a context.
        unsafe {
            driver.cuCtxPushCurrent(made).unwrap();
            driver.cuCtxDestroy(made).unwrap();
            driver.cuCtxGetCurrent(&mut current).unwrap();
        }
        assert!(current.is_null(), "it was on top here");
    });
    thread.join().unwrap();
    let mut current = std::ptr::null_mut();
    // SAFETY: pointers to locals; values that are or were contexts, which the driver checks.
    unsafe {
        assert_eq!(uses(driver), [SUCCESS; 6], "another one is on top");
        driver.cuCtxDestroy(below).unwrap();
        driver.cuCtxGetCurrent(&mut current).unwrap();
        assert_eq!(current, made);
        assert_eq!(uses(driver), [DESTROYED; 6]);
        assert_eq!(code(driver.cuCtxDestroy(made)), INVALID);
        assert_eq!(code(driver.cuCtxPushCurrent(made)), INVALID);
        assert_eq!(code(driver.cuCtxSetCurrent(made)), INVALID);
        let never = (made as usize + 1) as CUcontext;
        assert_eq!(code(driver.cuCtxSetCurrent(never)), INVALID);
        driver.cuCtxPopCurrent(&mut current).unwrap();
        assert_eq!(current, made);
    }
    assert_eq!(uses(driver), [INVALID; 6], "none is current");
}

/// Whether calls work that a capture in global mode forbids.
fn free(driver: &Driver, stream: CUstream) -> [CUresult; 3] {
    let mut address = 0;
    // SAFETY: a pointer to a local, a stream of the driver.
    unsafe {
        [
            code(driver.cuMemAlloc(&mut address, 100)),
            code(driver.cuStreamSynchronize(stream)),
            code(driver.cuStreamQuery(stream)),
        ]
    }
}

#[test]
fn a_capture_goes_with_its_context() {
    let (_alone, driver) = driver();
    let (gone, stream) = context(driver);
    let mut graph = std::ptr::null_mut();
    // SAFETY: handles of the driver, the last of which is checked.
    unsafe {
        driver.cuStreamBeginCapture(stream, GLOBAL).unwrap();
        driver.cuCtxDestroy(gone).unwrap();
        let ended = code(driver.cuStreamEndCapture(stream, &mut graph));
        assert_eq!(ended, CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
    let (made, stream) = context(driver);
    assert_eq!(free(driver, stream), [SUCCESS; 3]);
    // SAFETY: a context.
    unsafe { driver.cuCtxDestroy(made) }.unwrap();
}

#[test]
fn a_capture_goes_with_the_stream_that_it_began_on_and_lets_go_of_the_others() {
    let (_alone, driver) = driver();
    let (made, joined) = context(driver);
    let (mut stream, mut event) = (std::ptr::null_mut(), std::ptr::null_mut());
    let mut graph = std::ptr::null_mut();
    // SAFETY: pointers to locals, handles of the driver.
    unsafe {
        driver.cuStreamCreate(&mut stream, NON_BLOCKING).unwrap();
        driver.cuEventCreate(&mut event, 2).unwrap();
        driver.cuStreamBeginCapture(stream, GLOBAL).unwrap();
        driver.cuEventRecord(event, stream).unwrap();
        driver.cuStreamWaitEvent(joined, event, 0).unwrap();
        driver.cuStreamDestroy(stream).unwrap();
    }
    assert_eq!(free(driver, joined), [SUCCESS; 3]);
    // SAFETY: as above. A stream that only joined leaves the capture as it is.
    unsafe {
        driver.cuStreamCreate(&mut stream, NON_BLOCKING).unwrap();
        driver.cuStreamBeginCapture(stream, GLOBAL).unwrap();
        driver.cuEventRecord(event, stream).unwrap();
        driver.cuStreamWaitEvent(joined, event, 0).unwrap();
        driver.cuStreamDestroy(joined).unwrap();
        driver.cuStreamEndCapture(stream, &mut graph).unwrap();
        driver.cuGraphDestroy(graph).unwrap();
        driver.cuCtxDestroy(made).unwrap();
    }
}

#[test]
fn a_capture_of_a_threads_own_stream_goes_with_the_thread() {
    let (_alone, driver) = driver();
    let (made, stream) = context(driver);
    let address = made as usize;
    let thread = std::thread::spawn(move || {
        // SAFETY: a context; 2 is the thread's own stream.
        unsafe {
            driver.cuCtxSetCurrent(address as CUcontext).unwrap();
            driver.cuStreamBeginCapture(2 as CUstream, GLOBAL).unwrap();
        }
    });
    thread.join().unwrap();
    assert_eq!(free(driver, stream), [SUCCESS; 3]);
    // SAFETY: a context.
    unsafe { driver.cuCtxDestroy(made) }.unwrap();
}
