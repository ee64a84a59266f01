//! What a program gives back a second time: the answers of the H200, and what is counted.

mod common;

use common::{DEVICE, SIZE, prop};
use std::ptr::null_mut;
use vmm_emulator::{Config, Misuse};
use vmm_sys::*;

const REFUSED: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

#[track_caller]
fn refused(called: Result<(), Error>) {
    assert_eq!(called.unwrap_err().code(), Some(REFUSED));
}

/// One test, since what is counted is the process's.
#[test]
fn what_is_given_back_twice_is_refused_counted_and_changes_nothing() {
    let emulator = Config::new().install().unwrap();
    let driver = emulator.driver().unwrap();
    let prop = prop(DEVICE);
    let (mut handle, mut kept, mut address, mut context) = (0, 0, 0, null_mut());
    let mut expected = Misuse::default();
    // SAFETY: pointers to locals, and handles and addresses of this driver.
    unsafe {
        driver.cuInit(0).unwrap();
        driver.cuCtxCreate(&mut context, 0, 0).unwrap();
        let before = emulator.snapshot();

        // A handle that names nothing any more.
        driver.cuMemCreate(&mut handle, SIZE, &prop, 0).unwrap();
        driver.cuMemCreate(&mut kept, SIZE, &prop, 0).unwrap();
        driver.cuMemRelease(handle).unwrap();
        refused(driver.cuMemRelease(handle));
        expected.bad_release += 1;
        assert_eq!(emulator.misuse(), expected);
        assert_eq!(emulator.snapshot().handles, 1, "the other one stays");

        // One that a mapping keeps: every reference takes one release, and the memory stays.
        driver
            .cuMemAddressReserve(&mut address, 2 * SIZE, 0, 0, 0)
            .unwrap();
        driver.cuMemMap(address, SIZE, 0, kept, 0).unwrap();
        let mut same = 0;
        driver
            .cuMemRetainAllocationHandle(&mut same, address as *mut _)
            .unwrap();
        assert_eq!(same, kept);
        driver.cuMemRelease(kept).unwrap();
        driver.cuMemRelease(kept).unwrap();
        refused(driver.cuMemRelease(kept));
        expected.bad_release += 1;
        assert_eq!(emulator.misuse(), expected);
        let now = emulator.snapshot();
        assert_eq!((now.mappings, now.bytes), (1, SIZE as u64));

        // A mapping. As on the H200, unmapping where nothing is mapped is no error, and the mapping
        // is what kept the handle.
        driver.cuMemUnmap(address, SIZE).unwrap();
        driver.cuMemUnmap(address, SIZE).unwrap();
        refused(driver.cuMemRelease(kept));
        expected.bad_release += 1;
        assert_eq!(emulator.misuse(), expected);
        assert_eq!(emulator.snapshot().bytes, before.bytes);

        // A reservation.
        driver.cuMemAddressFree(address, 2 * SIZE).unwrap();
        refused(driver.cuMemAddressFree(address, 2 * SIZE));
        expected.bad_free += 1;
        refused(driver.cuMemUnmap(address, SIZE));
        assert_eq!(emulator.misuse(), expected);

        // What was not mapped.
        driver.cuMemAlloc(&mut address, SIZE).unwrap();
        driver.cuMemFree(address).unwrap();
        refused(driver.cuMemFree(address));
        expected.bad_free += 1;
        assert_eq!(emulator.misuse(), expected);
        let mut host = null_mut();
        driver.cuMemAllocHost(&mut host, SIZE).unwrap();
        driver.cuMemFreeHost(host).unwrap();
        refused(driver.cuMemFreeHost(host));
        expected.bad_free += 1;
        assert_eq!(emulator.misuse(), expected);

        assert_eq!(emulator.snapshot(), before);
    }
}
