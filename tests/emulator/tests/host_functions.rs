//! `cuLaunchHostFunc`: who calls the function, when, and what it may do.

mod common;

use common::{DEVICE, SIZE, map};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use vmm_emulator::{Config, Emulator, Thread};
use vmm_sys::*;

const LONG: Duration = Duration::from_millis(200);

/// One driver for all tests, which hold streams and fail contexts: one at a time.
fn driver() -> (MutexGuard<'static, ()>, Emulator, &'static Driver) {
    static DRIVER: OnceLock<(Emulator, Driver)> = OnceLock::new();
    static ONE: Mutex<()> = Mutex::new(());
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (emulator, driver) = DRIVER.get_or_init(|| {
        let emulator = Config::new().install().unwrap();
        let driver = emulator.driver().unwrap();
        // SAFETY: no pointers.
        unsafe { driver.cuInit(0) }.unwrap();
        (emulator, driver)
    });
    (one, *emulator, driver)
}

/// A context of its own, current, with one stream that waits for no other.
struct Place {
    driver: &'static Driver,
    context: CUcontext,
    stream: CUstream,
}

impl Place {
    fn new(driver: &'static Driver) -> Self {
        let (mut context, mut stream) = (null_mut(), null_mut());
        // SAFETY: pointers to locals.
        unsafe {
            driver.cuCtxCreate(&mut context, 0, 0).unwrap();
            driver.cuStreamCreate(&mut stream, 1).unwrap();
        }
        Self {
            driver,
            context,
            stream,
        }
    }

    /// `function` is called with `data`, which outlives the process.
    fn launch<T: Sync>(&self, function: unsafe extern "C" fn(*mut c_void), data: &'static T) {
        let data = (&raw const *data).cast_mut().cast();
        // SAFETY: the stream is alive, and each function here takes what it is launched with.
        unsafe {
            self.driver
                .cuLaunchHostFunc(self.stream, Some(function), data)
        }
        .unwrap();
    }

    fn is_busy(&self) -> bool {
        // SAFETY: the stream is alive.
        let query = unsafe { self.driver.cuStreamQuery(self.stream) };
        query.is_err_and(|error| error.code() == Some(CUresult::CUDA_ERROR_NOT_READY))
    }

    fn synchronize(&self) {
        // SAFETY: the stream is alive.
        unsafe { self.driver.cuStreamSynchronize(self.stream) }.unwrap();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // SAFETY: made in `new`, and not used again.
        let _ = unsafe { self.driver.cuCtxDestroy(self.context) };
    }
}

/// What a function and its test say to each other.
#[derive(Default)]
struct Talk {
    go: AtomicBool,
    calls: AtomicUsize,
    threads: Mutex<Vec<Thread>>,
}

impl Talk {
    /// Lives as long as the process, so that a function that comes late finds it.
    fn new(go: bool) -> &'static Self {
        let talk = Self::default();
        talk.go.store(go, SeqCst);
        Box::leak(Box::new(talk))
    }
}

unsafe extern "C" fn wait(data: *mut c_void) {
    // SAFETY: launched with a `Talk` that lives as long as the process.
    let talk = unsafe { &*data.cast::<Talk>() };
    while !talk.go.load(SeqCst) {
        std::thread::yield_now();
    }
    talk.threads.lock().unwrap().push(Thread::current());
    talk.calls.fetch_add(1, SeqCst);
}

#[test]
fn functions_are_called_in_the_order_of_their_stream_by_one_thread() {
    let (_one, _, driver) = driver();
    let place = Place::new(driver);
    let (first, second) = (Talk::new(false), Talk::new(true));
    place.launch(wait, first);
    place.launch(wait, second);
    assert!(place.is_busy());
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(second.calls.load(SeqCst), 0, "it is behind the first");
    first.go.store(true, SeqCst);
    place.synchronize();
    assert_eq!(
        (first.calls.load(SeqCst), second.calls.load(SeqCst)),
        (1, 1)
    );
    let threads = [
        first.threads.lock().unwrap().clone(),
        second.threads.lock().unwrap().clone(),
    ]
    .concat();
    assert_eq!(threads[0], threads[1]);
    assert_ne!(threads[0], Thread::current());
}

#[test]
fn many_functions_of_many_threads_are_each_called_once() {
    const EACH: usize = 500;
    let (_one, _, driver) = driver();
    let talk = Talk::new(true);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let place = Place::new(driver);
                for _ in 0..EACH {
                    place.launch(wait, talk);
                }
                place.synchronize();
            });
        }
    });
    assert_eq!(talk.calls.load(SeqCst), 8 * EACH);
}

#[test]
fn a_latency_puts_the_function_off_and_not_the_launch() {
    let (_one, emulator, driver) = driver();
    let place = Place::new(driver);
    let talk = Talk::new(true);
    emulator.latency("cuLaunchHostFunc", LONG);
    let start = Instant::now();
    place.launch(wait, talk);
    emulator.latency("cuLaunchHostFunc", Duration::ZERO);
    assert!(place.is_busy());
    place.synchronize();
    assert!(start.elapsed() >= LONG);
    assert_eq!(talk.calls.load(SeqCst), 1);
}

#[test]
fn a_function_is_called_although_nobody_waits_for_the_work_before_it() {
    let (_one, emulator, driver) = driver();
    let place = Place::new(driver);
    let (talk, mut memory) = (Talk::new(true), 0);
    // SAFETY: pointers to locals, memory of this context.
    unsafe {
        driver.cuMemAlloc(&mut memory, SIZE).unwrap();
        emulator.latency("cuMemsetD8Async", LONG);
        driver
            .cuMemsetD8Async(memory, 1, SIZE, place.stream)
            .unwrap();
        emulator.latency("cuMemsetD8Async", Duration::ZERO);
    }
    place.launch(wait, talk);
    let end = Instant::now() + 50 * LONG;
    while talk.calls.load(SeqCst) == 0 {
        assert!(Instant::now() < end, "never called");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn held_streams_call_nothing() {
    let (_one, emulator, driver) = driver();
    let place = Place::new(driver);
    let talk = Talk::new(true);
    let held = emulator.hold_streams();
    place.launch(wait, talk);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(talk.calls.load(SeqCst), 0);
    drop(held);
    place.synchronize();
    assert_eq!(talk.calls.load(SeqCst), 1);
}

#[test]
fn a_context_goes_when_its_functions_have_returned() {
    let (_one, _, driver) = driver();
    let place = Place::new(driver);
    let (first, second) = (Talk::new(false), Talk::new(true));
    place.launch(wait, first);
    place.launch(wait, second);
    let let_go = std::thread::spawn(move || {
        std::thread::sleep(LONG);
        first.go.store(true, SeqCst);
    });
    let begin = Instant::now();
    drop(place);
    assert!(begin.elapsed() >= LONG);
    assert_eq!([first, second].map(|talk| talk.calls.load(SeqCst)), [1, 1]);
    let_go.join().unwrap();
}

#[test]
fn a_context_in_which_work_failed_calls_nothing() {
    let (_one, _, driver) = driver();
    let place = Place::new(driver);
    let (first, second) = (Talk::new(false), Talk::new(true));
    let memory = map(driver, DEVICE);
    place.launch(wait, first);
    // SAFETY: the memory is mapped.
    unsafe { driver.cuMemsetD8Async(memory, 1, SIZE, place.stream) }.unwrap();
    place.launch(wait, second);
    // SAFETY: as above.
    unsafe { driver.cuMemUnmap(memory, SIZE) }.unwrap();
    first.go.store(true, SeqCst);
    // SAFETY: the stream is alive.
    let waited = unsafe { driver.cuStreamSynchronize(place.stream) }.unwrap_err();
    assert_eq!(waited.code(), Some(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS));
    assert_eq!(first.calls.load(SeqCst), 1);
    // Whatever is called after it shows that its turn has passed.
    let other = Place::new(driver);
    other.launch(wait, first);
    other.synchronize();
    assert_eq!(second.calls.load(SeqCst), 0);
}

unsafe extern "C-unwind" fn end_the_thread(data: *mut c_void) {
    unsafe extern "C-unwind" {
        fn pthread_exit(value: *mut c_void) -> !;
    }
    // SAFETY: launched with a `Talk` that lives as long as the process; nothing here is to be dropped.
    unsafe {
        (*data.cast::<Talk>()).calls.fetch_add(1, SeqCst);
        pthread_exit(null_mut())
    }
}

/// As Python's do while the interpreter ends.
#[test]
fn a_function_may_end_its_thread() {
    let (_one, _, driver) = driver();
    let place = Place::new(driver);
    let (ending, talk) = (Talk::new(true), Talk::new(true));
    // SAFETY: only what happens when it unwinds is forgotten of the type, and nobody here minds.
    let end = unsafe {
        std::mem::transmute::<
            unsafe extern "C-unwind" fn(*mut c_void),
            unsafe extern "C" fn(*mut c_void),
        >(end_the_thread)
    };
    for _ in 0..10 {
        place.launch(end, ending);
        place.launch(wait, talk);
    }
    place.synchronize();
    assert_eq!(
        (ending.calls.load(SeqCst), talk.calls.load(SeqCst)),
        (10, 10)
    );
}

/// A function that launches itself anew.
#[test]
fn what_is_queued_after_the_wait_is_not_waited_for() {
    unsafe extern "C" fn again(data: *mut c_void) {
        // SAFETY: launched with a `Nested` that lives as long as the process.
        let nested = unsafe { &*data.cast::<Nested>() };
        nested.talk.calls.fetch_add(1, SeqCst);
        if !nested.talk.go.load(SeqCst) {
            let driver = INSIDE.get().unwrap();
            // SAFETY: the stream is alive until `go`.
            let _ =
                unsafe { driver.cuLaunchHostFunc(nested.stream as CUstream, Some(again), data) };
        }
    }
    let (_one, _, driver) = driver();
    let place = Place::new(driver);
    INSIDE.get_or_init(|| driver);
    let nested: &'static Nested = Box::leak(Box::new(Nested {
        stream: place.stream as usize,
        talk: Talk::new(false),
        right: AtomicBool::new(false),
    }));
    let mut memory = 0;
    // SAFETY: a pointer to a local.
    unsafe { driver.cuMemAlloc(&mut memory, SIZE) }.unwrap();
    place.launch(again, nested);
    place.synchronize();
    // SAFETY: the context is current, the memory is its.
    unsafe {
        driver.cuCtxSynchronize().unwrap();
        driver.cuMemFree(memory).unwrap();
    }
    nested.talk.go.store(true, SeqCst);
    place.synchronize();
    assert!(nested.talk.calls.load(SeqCst) > 1);
}

static INSIDE: OnceLock<&'static Driver> = OnceLock::new();

unsafe extern "C" fn launch_another(data: *mut c_void) {
    // SAFETY: launched with a `Nested` that lives as long as the process.
    let nested = unsafe { &*data.cast::<Nested>() };
    let driver = INSIDE.get().unwrap();
    let (mut context, talk) = (null_mut(), (&raw const *nested.talk).cast_mut().cast());
    // SAFETY: a stream that is alive, its function and what that takes, a pointer to a local.
    let (launched, current) = unsafe {
        (
            driver.cuLaunchHostFunc(nested.stream as CUstream, Some(wait), talk),
            driver.cuCtxGetCurrent(&mut context),
        )
    };
    let refused =
        current.is_err_and(|error| error.code() == Some(CUresult::CUDA_ERROR_NOT_PERMITTED));
    nested.right.store(launched.is_ok() && refused, SeqCst);
}

struct Nested {
    stream: usize,
    talk: &'static Talk,
    right: AtomicBool,
}

#[test]
fn a_function_launches_another_and_asks_for_no_context() {
    let (_one, _, driver) = driver();
    let (place, other) = (Place::new(driver), Place::new(driver));
    INSIDE.get_or_init(|| driver);
    let nested: &'static Nested = Box::leak(Box::new(Nested {
        stream: other.stream as usize,
        talk: Talk::new(true),
        right: AtomicBool::new(false),
    }));
    place.launch(launch_another, nested);
    place.synchronize();
    other.synchronize();
    assert!(nested.right.load(SeqCst));
    assert_eq!(nested.talk.calls.load(SeqCst), 1);
}

/// What the child of a function says that it saw, and whether another function was called in it.
unsafe extern "C" fn fork_here(data: *mut c_void) {
    // SAFETY: launched with an `AtomicUsize` that lives as long as the process; the child does nothing
    // but return from here.
    unsafe {
        let child = fork();
        if child != 0 {
            (*data.cast::<AtomicUsize>()).store(child as usize, SeqCst);
        }
    }
}

unsafe extern "C" fn tell_the_process(data: *mut c_void) {
    // SAFETY: as above.
    unsafe {
        if (*data.cast::<AtomicUsize>()).load(SeqCst) == 0 {
            _exit(9);
        }
    }
}

unsafe extern "C" {
    fn fork() -> std::ffi::c_int;
    fn _exit(code: std::ffi::c_int) -> !;
    fn waitpid(
        process: std::ffi::c_int,
        status: *mut std::ffi::c_int,
        options: std::ffi::c_int,
    ) -> std::ffi::c_int;
}

#[test]
fn the_child_of_a_function_that_forks_calls_no_other() {
    let (_one, _, driver) = driver();
    let place = Place::new(driver);
    let child: &'static AtomicUsize = Box::leak(Box::default());
    place.launch(fork_here, child);
    place.launch(tell_the_process, child);
    place.synchronize();
    let (process, mut status) = (child.load(SeqCst) as std::ffi::c_int, -1);
    // SAFETY: a child of this process, and a pointer to a local.
    let waited = unsafe { waitpid(process, &mut status, 0) };
    assert_eq!((waited, status), (process, 0));
}

/// What `/proc` says of the signals of the thread that calls.
unsafe extern "C" fn look_at_signals(data: *mut c_void) {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
    let mask = blocked.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // SAFETY: as above.
    unsafe { (*data.cast::<AtomicUsize>()).store(mask.unwrap_or(0) as usize, SeqCst) };
}

#[test]
fn a_signal_meets_the_threads_of_the_program() {
    const TERM: usize = 1 << 14;
    let (_one, _, driver) = driver();
    let place = Place::new(driver);
    let mask: &'static AtomicUsize = Box::leak(Box::default());
    place.launch(look_at_signals, mask);
    place.synchronize();
    assert_ne!(mask.load(SeqCst) & TERM, 0);
}

/// Runs this test alone in a process that ends while a function is being called.
#[test]
fn a_process_ends_in_the_middle_of_a_function() {
    const CHILD: &str = "HOST_FUNCTIONS_CHILD";
    if std::env::var_os(CHILD).is_some() {
        let (_one, _, driver) = driver();
        let place = Place::new(driver);
        place.launch(wait, Talk::new(false));
        std::thread::sleep(Duration::from_millis(20));
        std::process::exit(7);
    }
    let name = "a_process_ends_in_the_middle_of_a_function";
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--test-threads=1"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    assert_eq!(child.status.code(), Some(7));
}
