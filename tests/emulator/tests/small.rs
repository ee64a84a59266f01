//! Small allocations of `cuMemAlloc` share memory, as those of a driver do: what they can have is
//! bytes, and not granules or descriptors.

mod common;

use common::SIZE;
use vmm_emulator::Config;
use vmm_sys::*;

const GRANULES: usize = 8;
const SMALL: usize = 512;

#[test]
fn a_device_is_full_when_its_bytes_are_given() {
    let memory = (GRANULES * SIZE) as u64;
    let emulator = Config::new().memory(memory).install().unwrap();
    let driver = emulator.driver().unwrap();
    let mut context = std::ptr::null_mut();
    // SAFETY: a pointer to a local.
    unsafe {
        driver.cuInit(0).unwrap();
        driver.cuCtxCreate(&mut context, 0, 0).unwrap();
    }
    let before = emulator.snapshot();
    let allocate = |size| {
        let mut address = 0;
        // SAFETY: a pointer to a local.
        let made = unsafe { driver.cuMemAlloc(&mut address, size) };
        made.map(|()| address).map_err(|error| error.code())
    };
    // SAFETY: addresses that were allocated and are freed once, or that the driver refuses.
    let free = |address| unsafe { driver.cuMemFree(address) }.map_err(|error| error.code());

    let fill = || Vec::from_iter(std::iter::from_fn(|| allocate(SMALL).ok()));
    let all = fill();
    assert_eq!(all.len(), GRANULES * SIZE / SMALL);
    let full = Err(Some(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
    assert_eq!(allocate(1), full);

    let invalid = Err(Some(CUresult::CUDA_ERROR_INVALID_VALUE));
    free(all[7]).unwrap();
    assert_eq!(free(all[7]), invalid);
    assert_eq!(free(all[8] + 1), invalid);
    assert_eq!(allocate(100), Ok(all[7]));

    let range = |address| {
        let (mut start, mut size) = (0, 0);
        // SAFETY: pointers to locals.
        let found = unsafe { driver.cuMemGetAddressRange(&mut start, &mut size, address) };
        found.map(|()| (start, size)).map_err(|error| error.code())
    };
    assert_eq!(range(all[7] + 99), Ok((all[7], 100)));
    let nowhere = Err(Some(CUresult::CUDA_ERROR_NOT_FOUND));
    assert_eq!(range(all[7] + 100), nowhere, "the rest of its place");
    assert_eq!(range(all[8] + 100), Ok((all[8], SMALL)));

    let id = |address| {
        let mut id = 0_u64;
        let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID;
        // SAFETY: a pointer to a local of that size.
        unsafe { driver.cuPointerGetAttribute((&raw mut id).cast(), attribute, address) }.unwrap();
        id
    };
    assert_eq!(id(all[8]), id(all[8] + 100));
    assert_ne!(id(all[7]), id(all[8]));

    // One block goes when its last place is freed, and the others with the context.
    let in_first = |address: &&u64| **address / SIZE as u64 == all[0] / SIZE as u64;
    let first: Vec<u64> = all.iter().filter(in_first).copied().collect();
    let granules = |emulator: vmm_emulator::Emulator| emulator.snapshot().bytes / SIZE as u64;
    for address in first {
        assert_eq!(granules(emulator), GRANULES as u64);
        free(address).unwrap();
    }
    assert_eq!(granules(emulator), GRANULES as u64 - 1);
    // SAFETY: a context.
    unsafe { driver.cuCtxDestroy(context) }.unwrap();
    let after = emulator.snapshot();
    assert_eq!(
        (after.bytes, after.mappings),
        (before.bytes, before.mappings)
    );
    assert_eq!(after.reservations, before.reservations);
}
