//! Work that is queued, and what happens meanwhile to the memory that it is about.

mod common;

use common::{DEVICE, SIZE, map};
use std::ptr::null_mut;
use std::time::{Duration, Instant};
use vmm_emulator::{Config, Emulator};
use vmm_sys::*;

const WORK: Duration = Duration::from_millis(150);
const NUMA: CUmemLocationType = CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA;

/// One test, since what is counted is the process's.
#[test]
fn queued_work_meets_the_memory_it_was_queued_for_or_none() {
    let emulator = Config::new().install().unwrap();
    let driver = emulator.driver().unwrap();
    let (mut context, mut memory) = (null_mut(), 0);
    // SAFETY: pointers to locals.
    unsafe {
        driver.cuInit(0).unwrap();
        driver.cuCtxCreate(&mut context, 0, 0).unwrap();
        driver.cuMemAlloc(&mut memory, SIZE).unwrap();
        driver.cuMemsetD8(memory, 0x77, SIZE).unwrap();
    }
    // SAFETY: the memory and the context are alive.
    unsafe {
        a_latency_is_of_the_work_where_a_call_only_queues(&emulator, &driver, memory);
        page_locked_memory_goes_when_the_work_is_done(&emulator, &driver, memory);
        copies_and_fills_of_what_is_not_mapped_are_counted(&emulator, &driver, memory);
        two_who_hold_streams_have_to_let_go_both(&emulator, &driver, memory);
        // The last, since the context does not survive it.
        mapped_host_memory_is_unmapped_under_a_copy(&emulator, &driver, memory);
    }
}

unsafe fn a_latency_is_of_the_work_where_a_call_only_queues(
    emulator: &Emulator,
    driver: &Driver,
    memory: CUdeviceptr,
) {
    for function in ["cuMemsetD8", "cuMemcpyDtoD", "cuMemcpyPeer"] {
        emulator.latency(function, WORK);
        let begin = Instant::now();
        // SAFETY: as above.
        unsafe {
            let mut context = null_mut();
            driver.cuCtxGetCurrent(&mut context).unwrap();
            match function {
                "cuMemsetD8" => driver.cuMemsetD8(memory, 0x77, SIZE),
                "cuMemcpyDtoD" => driver.cuMemcpyDtoD(memory, memory + 64, 64),
                _ => driver.cuMemcpyPeer(memory, context, memory + 64, context, 64),
            }
            .unwrap();
            let called = begin.elapsed();
            driver.cuCtxSynchronize().unwrap();
            let over = begin.elapsed();
            assert!(called < WORK, "{function} took {called:?}");
            assert!(
                over >= WORK && over < 2 * WORK,
                "{function}: over after {over:?}"
            );
        }
        emulator.latency(function, Duration::ZERO);
    }
}

unsafe fn page_locked_memory_goes_when_the_work_is_done(
    emulator: &Emulator,
    driver: &Driver,
    memory: CUdeviceptr,
) {
    let (mut stream, mut host) = (null_mut(), null_mut());
    let mut own = vec![0_u8; 2 * SIZE];
    emulator.latency("cuMemcpyDtoHAsync", WORK);
    // SAFETY: pointers to locals, memory that is alive.
    unsafe {
        driver.cuStreamCreate(&mut stream, 1).unwrap();
        driver.cuMemAllocHost(&mut host, SIZE).unwrap();
        let begin = Instant::now();
        driver
            .cuMemcpyDtoHAsync(host, memory, SIZE, stream)
            .unwrap();
        assert!(begin.elapsed() < WORK, "it is only queued");
        driver.cuMemFreeHost(host).unwrap();
        assert!(begin.elapsed() >= WORK, "the copy is done first");
        // Memory of the program is its own again once it is unregistered.
        let own = own.as_mut_ptr().cast();
        driver.cuMemHostRegister(own, SIZE, 0).unwrap();
        let begin = Instant::now();
        driver.cuMemcpyDtoHAsync(own, memory, SIZE, stream).unwrap();
        driver.cuMemHostUnregister(own).unwrap();
        assert!(begin.elapsed() >= WORK, "the copy is done first");
        driver.cuStreamDestroy(stream).unwrap();
    }
    assert_eq!(own[SIZE - 1], 0x77);
    emulator.latency("cuMemcpyDtoHAsync", Duration::ZERO);
}

unsafe fn copies_and_fills_of_what_is_not_mapped_are_counted(
    emulator: &Emulator,
    driver: &Driver,
    memory: CUdeviceptr,
) {
    let before = emulator.misuse().use_after_unmap;
    // SAFETY: a mapping that nobody uses, whose end is what is asked about; pointers to locals.
    unsafe {
        let gone = map(driver, DEVICE);
        driver.cuMemUnmap(gone, SIZE).unwrap();
        let mut byte = 0_u8;
        let invalid = Some(CUresult::CUDA_ERROR_INVALID_VALUE);
        for answer in [
            driver.cuMemcpyDtoH((&raw mut byte).cast(), gone, 1),
            driver.cuMemcpyDtoD(memory, gone, 16),
            driver.cuMemsetD8(gone, 1, 16),
            driver.cuMemsetD8Async(gone, 1, 16, null_mut()),
        ] {
            assert_eq!(answer.unwrap_err().code(), invalid);
        }
        driver.cuMemAddressFree(gone, SIZE).unwrap();
    }
    assert_eq!(emulator.misuse().use_after_unmap - before, 4);
}

unsafe fn two_who_hold_streams_have_to_let_go_both(
    emulator: &Emulator,
    driver: &Driver,
    memory: CUdeviceptr,
) {
    let (first, second) = (emulator.hold_streams(), emulator.hold_streams());
    // SAFETY: as above.
    let query = || unsafe { driver.cuStreamQuery(null_mut()) };
    // SAFETY: as above.
    unsafe { driver.cuMemsetD8(memory, 0x77, SIZE) }.unwrap();
    drop(first);
    assert!(query().is_err(), "one still holds");
    drop(second);
    assert!(query().is_ok());
}

unsafe fn mapped_host_memory_is_unmapped_under_a_copy(
    emulator: &Emulator,
    driver: &Driver,
    memory: CUdeviceptr,
) {
    let before = emulator.misuse();
    let mut stream = null_mut();
    // SAFETY: pointers to locals; the copy meets no memory, which is what is asked about.
    unsafe {
        let host = map(driver, NUMA);
        driver.cuStreamCreate(&mut stream, 1).unwrap();
        let held = emulator.hold_streams();
        let target = host as usize as *mut std::ffi::c_void;
        driver
            .cuMemcpyDtoHAsync(target, memory, SIZE, stream)
            .unwrap();
        driver.cuMemUnmap(host, SIZE).unwrap();
        driver.cuMemAddressFree(host, SIZE).unwrap();
        drop(held);
        let answer = driver.cuStreamSynchronize(stream).unwrap_err().code();
        assert_eq!(answer, Some(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS));
    }
    let after = emulator.misuse();
    assert_eq!(after.unmap_under_work - before.unmap_under_work, 1);
    assert_eq!(after.use_after_unmap - before.use_after_unmap, 1);
}
