//! The kernel bounds the entries of a process's memory map. Mapping is refused there; what was
//! mapped can be taken away all the same.

mod common;

use common::{DEVICE, SIZE, code, prop};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
use std::ffi::c_void;
use vmm_emulator::Config;
use vmm_sys::*;

/// Entries that are left for the driver.
const LEFT: usize = 400;

/// Uses entries up until none is left, then gives `LEFT` of them back.
fn fill_memory_map() {
    let most = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
    let pages = most.trim().parse::<usize>().unwrap() + 2;
    let page = rustix::param::page_size();
    let (bare, flags) = (ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: a new range that nothing else is in.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), pages * page, bare, flags) }.unwrap();
    let protect = |index: usize, flags| {
        let at = start.wrapping_byte_add(index * page);
        // SAFETY: a page of the range above.
        unsafe { mprotect(at.cast::<c_void>(), page, flags) }
    };
    // Every second page differs from its neighbours, which makes two entries.
    let full = (1..pages)
        .step_by(2)
        .find(|index| protect(*index, MprotectFlags::READ).is_err());
    let full = full.expect("the memory map has a bound");
    for index in (1..full).rev().step_by(2).take(LEFT / 2) {
        protect(index, MprotectFlags::empty()).unwrap();
    }
}

#[test]
fn everything_can_be_unmapped_when_the_memory_map_is_full() {
    let emulator = Config::new().install().unwrap();
    let driver = emulator.driver().unwrap();
    let prop = prop(DEVICE);
    let (mut handle, mut start, range) = (0, 0, 2 * LEFT * SIZE);
    // SAFETY: pointers to locals, a handle and addresses of this driver.
    let (mapped, last, unmapped) = unsafe {
        driver.cuInit(0).unwrap();
        driver.cuMemCreate(&mut handle, SIZE, &prop, 0).unwrap();
        driver
            .cuMemAddressReserve(&mut start, range, 0, 0, 0)
            .unwrap();
        let map = |at| code(driver.cuMemMap(at, SIZE, 0, handle, 0));
        let at = |index: usize| start + (index * SIZE) as u64;
        assert_eq!(map(at(0)), CUresult::CUDA_SUCCESS);
        fill_memory_map();
        let refused = (1..2 * LEFT).find(|index| map(at(*index)) != CUresult::CUDA_SUCCESS);
        let mapped = refused.expect("the memory map was full");
        let last = map(at(mapped));
        // Every second one first: each leaves an entry of its own behind.
        let order = (0..mapped).step_by(2).chain((1..mapped).step_by(2));
        let unmapped = order
            .filter(|index| driver.cuMemUnmap(at(*index), SIZE).is_ok())
            .count();
        (mapped, last, unmapped)
    };
    assert_eq!(last, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(unmapped, mapped);
    let map = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(
        !map.contains("memfd:vmm-emulator"),
        "no memory lies anywhere"
    );
    // SAFETY: as above; one can be mapped again.
    unsafe {
        driver.cuMemMap(start, SIZE, 0, handle, 0).unwrap();
        driver.cuMemUnmap(start, SIZE).unwrap();
        driver.cuMemRelease(handle).unwrap();
        driver.cuMemAddressFree(start, range).unwrap();
    }
    let left = emulator.snapshot();
    assert_eq!((left.mappings, left.reservations, left.bytes), (0, 0, 0));
}
