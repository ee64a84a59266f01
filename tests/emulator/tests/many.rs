//! What a call costs does not depend on how much is alive.

mod common;

use common::{DEVICE, POSIX_FD, SIZE, prop};
use std::time::{Duration, Instant};
use vmm_emulator::Config;
use vmm_sys::*;

/// Handles made between two looks at the clock, and how often.
const EACH: usize = 200;
const TIMES: usize = 15;

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// Each allocation of the emulator is a descriptor, so a few thousand is what a test can have.
#[test]
fn making_and_importing_memory_looks_at_no_other() {
    let emulator = Config::new().memory(1 << 40).install().unwrap();
    let driver = emulator.driver().unwrap();
    let prop = CUmemAllocationProp {
        requestedHandleTypes: POSIX_FD,
        ..prop(DEVICE)
    };
    let (mut first, mut fd) = (0, -1_i32);
    // SAFETY: pointers to locals, handles of this driver.
    unsafe {
        driver.cuInit(0).unwrap();
        driver.cuMemCreate(&mut first, SIZE, &prop, 0).unwrap();
        let kind = POSIX_FD;
        let to = (&raw mut fd).cast();
        driver
            .cuMemExportToShareableHandle(to, first, kind, 0)
            .unwrap();
    }
    let create_and_release_one_more = || {
        let start = Instant::now();
        for _ in 0..EACH {
            let (mut made, mut imported) = (0, 0);
            // SAFETY: as above.
            unsafe {
                driver.cuMemCreate(&mut made, SIZE, &prop, 0).unwrap();
                let from = fd as isize as *mut std::ffi::c_void;
                let kind = POSIX_FD;
                driver
                    .cuMemImportFromShareableHandle(&mut imported, from, kind)
                    .unwrap();
                driver.cuMemRelease(imported).unwrap();
                driver.cuMemRelease(made).unwrap();
            }
        }
        start.elapsed()
    };
    let measure = || median((0..TIMES).map(|_| create_and_release_one_more()).collect());
    let few = measure();
    let mut live = 0_u64;
    for _ in 0..3000 {
        // SAFETY: as above.
        unsafe { driver.cuMemCreate(&mut live, SIZE, &prop, 0) }.unwrap();
    }
    let many = measure();
    // With a look at each of them it was ten times as much.
    assert!(many < 4 * few, "{few:?} with one alive, {many:?} with 3000");
}
