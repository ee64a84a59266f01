//! Failures on demand, streams that stand still, and what is counted of it.

mod common;

use common::{DEVICE, SIZE, code, map};
use std::time::{Duration, Instant};
use vmm_emulator::{Calls, Code, Config};
use vmm_sys::*;

#[test]
fn calls_fail_as_asked_and_memory_unmapped_under_work_is_found_out() {
    let emulator = Config::new().install().unwrap();
    assert!(
        Config::new().install().is_err(),
        "a second configuration is refused"
    );
    let driver = emulator.driver().unwrap();
    let reserve = || {
        let mut address = 0;
        // SAFETY: a pointer to a local.
        code(unsafe { driver.cuMemAddressReserve(&mut address, SIZE, 0, 0, 0) })
    };
    // SAFETY: pointers to locals, handles and addresses of this driver.
    unsafe {
        driver.cuInit(0).unwrap();
        let failure = emulator.fail_nth(Calls::Of("cuMemAddressReserve"), 2, Code::OUT_OF_MEMORY);
        let answers: Vec<_> = (0..3).map(|_| reserve()).collect();
        assert_eq!(
            answers,
            [
                CUresult::CUDA_SUCCESS,
                CUresult::CUDA_ERROR_OUT_OF_MEMORY,
                CUresult::CUDA_SUCCESS
            ]
        );
        assert_eq!(failure.fired(), 1);
        drop(failure);
        let failure = emulator.fail_from(Calls::AnyHere, 1, Code::UNKNOWN);
        assert_eq!(reserve(), CUresult::CUDA_ERROR_UNKNOWN);
        let elsewhere = std::thread::scope(|scope| scope.spawn(reserve).join().unwrap());
        assert_eq!(
            elsewhere,
            CUresult::CUDA_SUCCESS,
            "other threads are left alone"
        );
        drop(failure);
        assert_eq!(reserve(), CUresult::CUDA_SUCCESS);
        assert_eq!(emulator.calls("cuMemAddressReserve"), 6);
        assert_eq!(emulator.snapshot().reservations, 4);

        emulator.latency("cuMemAddressReserve", Duration::from_millis(30));
        let start = Instant::now();
        assert_eq!(reserve(), CUresult::CUDA_SUCCESS);
        assert!(start.elapsed() >= Duration::from_millis(30));

        assert_eq!(
            code(driver.cuMemRelease(0x1234)),
            CUresult::CUDA_ERROR_INVALID_VALUE
        );
        assert_eq!(emulator.misuse().bad_release, 1);

        let mut context = std::ptr::null_mut();
        driver.cuDevicePrimaryCtxRetain(&mut context, 0).unwrap();
        driver.cuCtxSetCurrent(context).unwrap();
        let (address, mut stream) = (map(&driver, DEVICE), std::ptr::null_mut());
        driver.cuStreamCreate(&mut stream, 1).unwrap();
        let held = emulator.hold_streams();
        driver.cuMemsetD8Async(address, 1, SIZE, stream).unwrap();
        assert_eq!(
            code(driver.cuStreamQuery(stream)),
            CUresult::CUDA_ERROR_NOT_READY
        );
        driver.cuMemUnmap(address, SIZE).unwrap();
        drop(held);
        assert_eq!(
            code(driver.cuStreamSynchronize(stream)),
            CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
        );
        assert_eq!(
            code(driver.cuCtxSynchronize()),
            CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
            "it stays"
        );
        driver.cuMemAddressFree(address, SIZE).unwrap();
        let misuse = emulator.misuse();
        assert_eq!((misuse.unmap_under_work, misuse.use_after_unmap), (1, 1));
    }
}
