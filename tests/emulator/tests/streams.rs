//! Who waits for whose work: events between streams, and streams that are gone.

use std::time::Duration;
use vmm_emulator::{Config, Emulator};
use vmm_sys::*;

const SIZE: usize = 2 << 20;
const WORK: Duration = Duration::from_millis(200);

#[test]
fn queued_work_is_waited_for_through_events_and_after_its_stream() {
    let emulator = Config::new().devices(2).install().unwrap();
    let driver = emulator.driver().unwrap();
    let (mut context, mut memory) = (std::ptr::null_mut(), 0);
    // SAFETY: pointers to locals, handles of this driver.
    unsafe {
        driver.cuInit(0).unwrap();
        driver.cuDevicePrimaryCtxRetain(&mut context, 0).unwrap();
        driver.cuCtxSetCurrent(context).unwrap();
        driver.cuMemAlloc(&mut memory, SIZE).unwrap();
        driver.cuMemsetD8(memory, 1, SIZE).unwrap();
    }
    emulator.latency("cuMemsetD8Async", WORK);
    // SAFETY: memory and context are alive.
    unsafe {
        a_stream_waits_for_an_event(&emulator, &driver, memory);
        the_legacy_stream_waits_for_a_destroyed_one(&emulator, &driver, memory);
        another_context_takes_no_work_along(&driver, memory);
        a_context_waits_for_an_event_of_another_one(&driver, memory);
        work_that_takes_for_ever_is_queued(&emulator, &driver, memory);
    }
}

unsafe fn a_stream_waits_for_an_event(emulator: &Emulator, driver: &Driver, memory: CUdeviceptr) {
    let (mut first, mut second) = (std::ptr::null_mut(), std::ptr::null_mut());
    let (mut event, mut byte) = (std::ptr::null_mut(), 0_u8);
    // SAFETY: pointers to locals, handles of this driver.
    unsafe {
        driver.cuStreamCreate(&mut first, 1).unwrap();
        driver.cuStreamCreate(&mut second, 1).unwrap();
        driver.cuEventCreate(&mut event, 2).unwrap();
        driver.cuMemsetD8Async(memory, 2, SIZE, first).unwrap();
        driver.cuEventRecord(event, first).unwrap();
        driver.cuStreamWaitEvent(second, event, 0).unwrap();
        let query = driver.cuStreamQuery(second).unwrap_err().code();
        assert_eq!(query, Some(CUresult::CUDA_ERROR_NOT_READY));
        driver
            .cuMemcpyDtoHAsync((&raw mut byte).cast(), memory, 1, second)
            .unwrap();
        driver.cuStreamSynchronize(second).unwrap();
        assert_eq!(byte, 2);
        let held = emulator.hold_streams();
        driver.cuMemsetD8Async(memory, 3, SIZE, first).unwrap();
        driver.cuEventRecord(event, first).unwrap();
        driver.cuStreamWaitEvent(second, event, 0).unwrap();
        std::thread::sleep(2 * WORK);
        assert!(driver.cuStreamQuery(second).is_err(), "held, past its time");
        drop(held);
        driver.cuStreamSynchronize(second).unwrap();
        driver.cuEventDestroy(event).unwrap();
        driver.cuStreamDestroy(first).unwrap();
        driver.cuStreamDestroy(second).unwrap();
    }
}

unsafe fn the_legacy_stream_waits_for_a_destroyed_one(
    emulator: &Emulator,
    driver: &Driver,
    memory: CUdeviceptr,
) {
    let (mut stream, mut byte) = (std::ptr::null_mut(), 0_u8);
    // SAFETY: pointers to locals, handles of this driver.
    unsafe {
        driver.cuStreamCreate(&mut stream, 0).unwrap();
        driver.cuMemsetD8Async(memory, 4, SIZE, stream).unwrap();
        driver.cuStreamDestroy(stream).unwrap();
        assert_eq!(emulator.snapshot().streams, 0);
        assert!(driver.cuStreamQuery(stream).is_err(), "its handle is gone");
        driver
            .cuMemcpyDtoH((&raw mut byte).cast(), memory, 1)
            .unwrap();
    }
    assert_eq!(byte, 4);
}

unsafe fn another_context_takes_no_work_along(driver: &Driver, memory: CUdeviceptr) {
    let (mut stream, mut other, mut byte) = (std::ptr::null_mut(), std::ptr::null_mut(), 0_u8);
    // SAFETY: pointers to locals, handles of this driver.
    unsafe {
        driver.cuStreamCreate(&mut stream, 1).unwrap();
        driver.cuMemsetD8Async(memory, 5, SIZE, stream).unwrap();
        driver.cuStreamDestroy(stream).unwrap();
        driver.cuDevicePrimaryCtxRetain(&mut other, 1).unwrap();
        driver.cuDevicePrimaryCtxRelease(1).unwrap();
        driver.cuCtxSynchronize().unwrap();
        driver
            .cuMemcpyDtoH((&raw mut byte).cast(), memory, 1)
            .unwrap();
    }
    assert_eq!(byte, 5);
}

unsafe fn a_context_waits_for_an_event_of_another_one(driver: &Driver, memory: CUdeviceptr) {
    let (mut here, mut there) = (std::ptr::null_mut(), std::ptr::null_mut());
    let (mut event, mut other) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: pointers to locals, handles of this driver.
    unsafe {
        driver.cuStreamCreate(&mut here, 1).unwrap();
        driver.cuEventCreate(&mut event, 2).unwrap();
        driver.cuMemsetD8Async(memory, 6, SIZE, here).unwrap();
        driver.cuEventRecord(event, here).unwrap();
        driver.cuCtxCreate(&mut other, 0, 1).unwrap();
        driver.cuStreamCreate(&mut there, 1).unwrap();
        driver.cuStreamWaitEvent(there, event, 0).unwrap();
        let before = driver.cuEventQuery(event);
        driver.cuCtxSynchronize().unwrap();
        let after = driver.cuEventQuery(event);
        assert_eq!((before.is_ok(), after.is_ok()), (false, true));
        driver.cuCtxDestroy(other).unwrap();
        driver.cuStreamDestroy(here).unwrap();
        driver.cuEventDestroy(event).unwrap();
    }
}

unsafe fn work_that_takes_for_ever_is_queued(
    emulator: &Emulator,
    driver: &Driver,
    memory: CUdeviceptr,
) {
    emulator.latency("cuMemsetD8Async", Duration::MAX);
    let mut stream = std::ptr::null_mut();
    // SAFETY: pointers to locals, handles of this driver.
    let query = unsafe {
        driver.cuStreamCreate(&mut stream, 1).unwrap();
        driver.cuMemsetD8Async(memory, 6, SIZE, stream).unwrap();
        driver.cuMemsetD8Async(memory, 7, SIZE, stream).unwrap();
        driver.cuStreamQuery(stream).unwrap_err().code()
    };
    assert_eq!(query, Some(CUresult::CUDA_ERROR_NOT_READY));
}
