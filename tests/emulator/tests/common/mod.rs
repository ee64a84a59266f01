//! Memory as most tests want it.
#![allow(dead_code)] // each test uses a part

use rustix::process::{Resource, Rlimit, setrlimit};
use vmm_sys::*;

/// A granule.
pub const SIZE: usize = 2 << 20;
pub const DEVICE: CUmemLocationType = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
pub const POSIX_FD: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// Memory of the first place of a kind.
pub fn prop(kind: CUmemLocationType) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        location: CUmemLocation::new(kind, 0),
        ..Default::default()
    }
}

/// A granule of it that the first device may write, which unlike the memory of `cuMemAlloc` can be
/// unmapped under work. The mapping alone keeps it.
pub fn map(driver: &Driver, kind: CUmemLocationType) -> CUdeviceptr {
    let access = CUmemAccessDesc {
        location: CUmemLocation::new(DEVICE, 0),
        flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    let (mut handle, mut address) = (0, 0);
    // SAFETY: pointers to locals, handles of this driver.
    unsafe {
        driver
            .cuMemCreate(&mut handle, SIZE, &prop(kind), 0)
            .unwrap();
        driver
            .cuMemAddressReserve(&mut address, SIZE, 0, 0, 0)
            .unwrap();
        driver.cuMemMap(address, SIZE, 0, handle, 0).unwrap();
        driver.cuMemSetAccess(address, SIZE, &access, 1).unwrap();
        driver.cuMemRelease(handle).unwrap();
    }
    address
}

/// What a call answered.
pub fn code(called: Result<(), Error>) -> CUresult {
    called.map_or_else(|error| error.code().unwrap(), |()| CUresult::CUDA_SUCCESS)
}

/// Bounds what this process may have.
pub fn limit(resource: Resource, current: u64, maximum: Option<u64>) {
    let limit = Rlimit {
        current: Some(current),
        maximum,
    };
    setrlimit(resource, limit).unwrap();
}
