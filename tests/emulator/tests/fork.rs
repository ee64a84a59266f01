//! A child forked in the middle of another thread's call is answered, and does not wait for a lock
//! that nobody there lets go.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use vmm_emulator::Config;
use vmm_sys::*;

const ROUNDS: usize = 50;
const PATIENCE: Duration = Duration::from_secs(10);

unsafe extern "C" {
    fn fork() -> i32;
    fn _exit(status: i32) -> !;
    fn kill(process: i32, signal: i32) -> i32;
    fn waitpid(process: i32, status: *mut i32, options: i32) -> i32;
}

#[test]
fn a_child_forked_under_a_call_is_refused_at_once() {
    let emulator = Config::new().install().unwrap();
    let driver = emulator.driver().unwrap();
    // SAFETY: no obligations.
    unsafe { driver.cuInit(0) }.unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The counts are copied under the lock that every call takes.
            while !done.load(Ordering::Relaxed) {
                emulator.all_calls();
            }
        });
        let refused = (0..ROUNDS)
            .map(|_| ask_a_child(&driver))
            .find(|status| *status != Some(0));
        done.store(true, Ordering::Relaxed);
        assert_eq!(refused, None, "status of a child; inner None: it hung");
    });
}

/// The child's exit status; `None` where it had to be killed.
fn ask_a_child(driver: &Driver) -> Option<i32> {
    // SAFETY: the child calls the driver and exits, and takes no lock of this program.
    let child = unsafe { fork() };
    assert!(child >= 0);
    if child == 0 {
        let (mut version, mut count) = (0, 0);
        // SAFETY: pointers to locals.
        let answers = unsafe {
            [
                driver.cuInit(0).map_err(|error| error.code()),
                driver
                    .cuDeviceGetCount(&mut count)
                    .map_err(|error| error.code()),
                driver
                    .cuDriverGetVersion(&mut version)
                    .map_err(|error| error.code()),
            ]
        };
        let refused = Err(Some(CUresult::CUDA_ERROR_NOT_INITIALIZED));
        // SAFETY: ends the child.
        unsafe { _exit(i32::from(answers != [refused, refused, Ok(())])) }
    }
    let until = Instant::now() + PATIENCE;
    let mut status = 0;
    loop {
        // SAFETY: a child of ours, not yet waited for; 1 is WNOHANG.
        match unsafe { waitpid(child, &mut status, 1) } {
            0 if Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
            0 => {
                // SAFETY: as above; 9 is SIGKILL.
                unsafe { (kill(child, 9), waitpid(child, &mut status, 0)) };
                return None;
            }
            _ => return Some(status),
        }
    }
}
