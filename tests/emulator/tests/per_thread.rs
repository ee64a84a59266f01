//! Stream 0 of the per-thread forms is the calling thread's own.

use std::ffi::{CString, c_int};
use vmm_emulator::{Config, get_proc_address};
use vmm_sys::*;

fn find(name: &str, version: c_int, flags: u64) -> (bool, u32) {
    let name = CString::new(name).unwrap();
    let mut function = std::ptr::null_mut();
    let mut status = CUdriverProcAddressQueryResult(9);
    // SAFETY: a C string and pointers to locals.
    let code =
        unsafe { get_proc_address(name.as_ptr(), &mut function, version, flags, &mut status) };
    assert_eq!(code, CUresult::CUDA_SUCCESS);
    (!function.is_null(), status.0)
}

#[test]
fn a_capture_on_the_per_thread_stream_is_seen_by_its_thread_alone() {
    let emulator = Config::new().install().unwrap();
    // SAFETY: the function is a driver's and lives as long as the program.
    let per_thread = unsafe {
        LoadOptions::new()
            .per_thread_default_stream(true)
            .from_get_proc_address(get_proc_address)
    }
    .unwrap();
    let legacy = emulator.driver().unwrap();
    let none: CUstream = std::ptr::null_mut();
    let capturing = |driver: &Driver| {
        let mut status = CUstreamCaptureStatus(9);
        // SAFETY: a pointer to a local, and the default stream.
        let answer = unsafe { driver.cuStreamIsCapturing(std::ptr::null_mut(), &mut status) };
        answer.map(|()| status)
    };
    let (mut context, mut graph) = (std::ptr::null_mut(), std::ptr::null_mut());
    let active = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE;
    let idle = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: pointers to locals, and objects of this driver.
    unsafe {
        legacy.cuInit(0).unwrap();
        legacy.cuDevicePrimaryCtxRetain(&mut context, 0).unwrap();
        legacy.cuCtxSetCurrent(context).unwrap();
        // The legacy stream cannot be captured.
        assert!(legacy.cuStreamBeginCapture(none, mode).is_err());
        per_thread.cuStreamBeginCapture(none, mode).unwrap();
        assert_eq!(capturing(&per_thread).unwrap(), active);
        let address = context as usize;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                per_thread.cuCtxSetCurrent(address as CUcontext).unwrap();
                assert_eq!(capturing(&per_thread).unwrap(), idle);
            });
        });
        per_thread.cuStreamEndCapture(none, &mut graph).unwrap();
    }
    // The forms of older functions came with CUDA 7.0; a function without one has the usual form.
    assert_eq!(find("cuMemcpyHtoD", 3020, 2), (false, 2));
    assert_eq!(find("cuMemcpyHtoD", 7000, 2), (true, 0));
    assert_eq!(find("cuMemcpyHtoD", 3020, 1), (true, 0));
    assert_eq!(find("cuMemCreate", 10020, 2), (true, 0));
}
