//! Memory that a call cannot be about is refused, and not taken for what it is not.

mod common;

use common::{DEVICE, SIZE, code, map};
use std::ffi::c_void;
use vmm_emulator::Config;
use vmm_sys::*;

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const SUCCESS: CUresult = CUresult::CUDA_SUCCESS;

#[test]
fn legacy_ipc_and_page_locking_tell_whose_memory_it_is() {
    let driver = Config::new().install().unwrap().driver().unwrap();
    let (mut context, mut linear, mut reserved) = (std::ptr::null_mut(), 0, 0);
    // SAFETY: pointers to locals.
    unsafe {
        driver.cuInit(0).unwrap();
        driver.cuDevicePrimaryCtxRetain(&mut context, 0).unwrap();
        driver.cuCtxSetCurrent(context).unwrap();
        driver.cuMemAlloc(&mut linear, SIZE).unwrap();
        driver
            .cuMemAddressReserve(&mut reserved, SIZE, 0, 0, 0)
            .unwrap();
    }
    let mapped = map(&driver, DEVICE);

    let ipc = |address| {
        let mut handle = CUipcMemHandle::default();
        // SAFETY: a pointer to a local; the driver looks what is at the address.
        code(unsafe { driver.cuIpcGetMemHandle(&mut handle, address) })
    };
    assert_eq!([ipc(mapped), ipc(reserved), ipc(0x1_0000)], [INVALID; 3]);
    assert_eq!(ipc(linear), CUresult::CUDA_ERROR_NOT_SUPPORTED);

    // SAFETY: the driver looks what is at the address; nothing uses the memory afterwards.
    let register = |address: u64, size| unsafe {
        code(driver.cuMemHostRegister(address as *mut c_void, size, 0))
    };
    let own = vec![0_u8; 3 * SIZE];
    let inside = own.as_ptr() as u64 + 1000;
    assert_eq!(register(inside, SIZE + 1), SUCCESS);
    for (address, size) in [
        (0x1_0000, 4096),
        (0xffff_8000_0000_0000, 4096),
        (u64::MAX - 100, 50),
        (mapped, 4096),
        (reserved, 4096),
        (reserved - 1, 2),
        (linear, SIZE),
    ] {
        assert_eq!(register(address, size), INVALID, "{address:#x}");
    }
    // SAFETY: it was registered.
    unsafe { driver.cuMemHostUnregister(inside as *mut c_void) }.unwrap();
    // The pages behind may be anybody's: as far as no memory can be.
    assert_eq!(register(inside, 1 << 46), INVALID);
}
