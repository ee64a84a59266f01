//! The main road: allocate, map, copy, export, import, read, and nothing left behind.

use vmm_emulator::{Config, Snapshot};
use vmm_sys::*;

const MIB: usize = 1 << 20;

#[test]
fn memory_goes_out_as_a_descriptor_and_comes_back_with_its_bytes() {
    let emulator = Config::new().install().unwrap();
    let driver = emulator.driver().unwrap();
    // SAFETY: pointers to locals, handles of this driver.
    unsafe {
        driver.cuInit(0).unwrap();
        let before: Snapshot = emulator.snapshot();
        let mut context = std::ptr::null_mut();
        driver.cuDevicePrimaryCtxRetain(&mut context, 0).unwrap();
        driver.cuCtxSetCurrent(context).unwrap();
        let mut prop: CUmemAllocationProp = std::mem::zeroed();
        prop.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        prop.location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        prop.requestedHandleTypes =
            CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let size = 4 * MIB;
        let mut handle = 0;
        driver.cuMemCreate(&mut handle, size, &prop, 0).unwrap();
        let mut fd = -1;
        let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        driver
            .cuMemExportToShareableHandle((&raw mut fd).cast(), handle, kind, 0)
            .unwrap();
        let mut imported = 0;
        driver
            .cuMemImportFromShareableHandle(&mut imported, fd as usize as *mut _, kind)
            .unwrap();
        assert_ne!(imported, handle);
        let (mut a, mut b) = (0, 0);
        driver.cuMemAddressReserve(&mut a, size, 0, 0, 0).unwrap();
        driver.cuMemAddressReserve(&mut b, size, 0, 0, 0).unwrap();
        driver.cuMemMap(a, size, 0, handle, 0).unwrap();
        driver.cuMemMap(b, size, 0, imported, 0).unwrap();
        let mut access: CUmemAccessDesc = std::mem::zeroed();
        access.location = prop.location;
        access.flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        driver.cuMemSetAccess(a, size, &access, 1).unwrap();
        driver.cuMemSetAccess(b, size, &access, 1).unwrap();
        let bytes: Vec<u8> = (0..size).map(|i| (i * 7 % 251) as u8).collect();
        driver.cuMemcpyHtoD(a, bytes.as_ptr().cast(), size).unwrap();
        let mut back = vec![0_u8; size];
        driver
            .cuMemcpyDtoH(back.as_mut_ptr().cast(), b, size)
            .unwrap();
        assert!(bytes == back);
        assert_eq!(emulator.snapshot().exported_fds, 1);
        for (address, handle) in [(a, handle), (b, imported)] {
            driver.cuMemUnmap(address, size).unwrap();
            driver.cuMemRelease(handle).unwrap();
            driver.cuMemAddressFree(address, size).unwrap();
        }
        assert_eq!(
            emulator.snapshot().bytes,
            size as u64,
            "the descriptor keeps the memory"
        );
        drop(<std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd));
        driver.cuDevicePrimaryCtxRelease(0).unwrap();
        assert_eq!(emulator.snapshot(), before);
    }
}
