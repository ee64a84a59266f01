//! Every call from any thread: many threads allocate, map, share, copy and release at once, and
//! nothing is mixed up or left behind.

use std::os::fd::{FromRawFd, OwnedFd};
use vmm_emulator::Config;
use vmm_sys::*;

const SIZE: usize = 2 << 20;
const THREADS: u8 = 16;
const ROUNDS: u8 = 25;
const POSIX_FD: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

#[test]
fn sixteen_threads_share_and_release_without_meeting() {
    let emulator = Config::new().devices(2).install().unwrap();
    let driver = emulator.driver().unwrap();
    // SAFETY: no obligations.
    unsafe { driver.cuInit(0) }.unwrap();
    let before = emulator.snapshot();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let driver = &driver;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    // No two threads and no two rounds in a row write the same.
                    share(driver, i32::from(thread % 2), thread * 8 + round % 8 + 1);
                }
            });
        }
    });
    assert_eq!(emulator.snapshot(), before);
    let times = u64::from(THREADS) * u64::from(ROUNDS);
    assert_eq!(emulator.calls("cuMemCreate"), times);
    assert_eq!(emulator.calls("cuMemImportFromShareableHandle"), times);
    assert_eq!(emulator.misuse(), Default::default());
}

/// Memory with this byte all over, seen through an import at another address.
fn share(driver: &Driver, device: i32, byte: u8) {
    let location = CUmemLocation::new(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, device);
    let prop = CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        location,
        requestedHandleTypes: POSIX_FD,
        ..Default::default()
    };
    let access = CUmemAccessDesc {
        location,
        flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    let (mut handle, mut imported, mut fd, mut context) = (0, 0, -1_i32, std::ptr::null_mut());
    // SAFETY: pointers to locals, handles and addresses of this driver, a descriptor of our own.
    unsafe {
        driver
            .cuDevicePrimaryCtxRetain(&mut context, device)
            .unwrap();
        driver.cuCtxSetCurrent(context).unwrap();
        driver.cuMemCreate(&mut handle, SIZE, &prop, 0).unwrap();
        driver
            .cuMemExportToShareableHandle((&raw mut fd).cast(), handle, POSIX_FD, 0)
            .unwrap();
        let fd = OwnedFd::from_raw_fd(fd);
        let value = std::os::fd::AsRawFd::as_raw_fd(&fd) as usize;
        driver
            .cuMemImportFromShareableHandle(&mut imported, value as *mut _, POSIX_FD)
            .unwrap();
        let mut addresses = [0; 2];
        for (address, handle) in addresses.iter_mut().zip([handle, imported]) {
            driver.cuMemAddressReserve(address, SIZE, 0, 0, 0).unwrap();
            driver.cuMemMap(*address, SIZE, 0, handle, 0).unwrap();
            driver.cuMemSetAccess(*address, SIZE, &access, 1).unwrap();
        }
        driver.cuMemsetD8(addresses[0], byte, SIZE).unwrap();
        let mut back = vec![0_u8; 4096];
        driver
            .cuMemcpyDtoH(
                back.as_mut_ptr().cast(),
                addresses[1] + (SIZE - 4096) as u64,
                4096,
            )
            .unwrap();
        assert!(back.iter().all(|found| *found == byte));
        for (address, handle) in addresses.into_iter().zip([handle, imported]) {
            driver.cuMemUnmap(address, SIZE).unwrap();
            driver.cuMemRelease(handle).unwrap();
            driver.cuMemAddressFree(address, SIZE).unwrap();
        }
        driver.cuCtxSetCurrent(std::ptr::null_mut()).unwrap();
        driver.cuDevicePrimaryCtxRelease(device).unwrap();
    }
}
