//! What the crate keeps for many chunks, counted: in a program of its own, for it has an allocator of
//! its own.
//!
//! The driver here is the emulator, except that memory and mappings are numbers: 100 000 mappings are
//! more than Linux gives a process by default.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use vmm::{Allocator, Buffer, ChunkPolicy, Driver, HandleTypes};
use vmm_sys::{CUdriverProcAddressQueryResult, CUresult, cuuint64_t};

const CHUNK: usize = 2 << 20;

struct Counting;

thread_local! {
    // Each thread for itself: the test runner's own thread allocates while a test runs.
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    static BYTES: Cell<usize> = const { Cell::new(0) };
    static FREED: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        BYTES.set(BYTES.get() + layout.size());
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        FREED.set(FREED.get() + layout.size());
        // SAFETY: the caller's, and what `alloc` gave came from there.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static CALLS: [AtomicU64; 7] = [const { AtomicU64::new(0) }; 7];
const CREATE: usize = 0;
const RELEASE: usize = 1;
const RESERVE: usize = 2;
const FREE: usize = 3;
const MAP: usize = 4;
const UNMAP: usize = 5;
const SET_ACCESS: usize = 6;

fn counted(call: usize) -> CUresult {
    CALLS[call].fetch_add(1, Relaxed);
    CUresult::CUDA_SUCCESS
}

unsafe extern "C" fn create(handle: *mut u64, _: usize, _: *const c_void, _: u64) -> CUresult {
    let result = counted(CREATE);
    // SAFETY: the caller's pointer is valid for a write.
    unsafe { handle.write(CALLS[CREATE].load(Relaxed)) };
    result
}

unsafe extern "C" fn reserve(at: *mut u64, _: usize, _: usize, _: u64, _: u64) -> CUresult {
    let result = counted(RESERVE);
    // SAFETY: the caller's pointer is valid for a write. Each range has 16 TiB of its own.
    unsafe { at.write(CALLS[RESERVE].load(Relaxed) << 44) };
    result
}

extern "C" fn release(_: u64) -> CUresult {
    counted(RELEASE)
}

extern "C" fn free(_: u64, _: usize) -> CUresult {
    counted(FREE)
}

extern "C" fn map(_: u64, _: usize, _: usize, _: u64, _: u64) -> CUresult {
    counted(MAP)
}

extern "C" fn unmap(_: u64, _: usize) -> CUresult {
    counted(UNMAP)
}

extern "C" fn set_access(_: u64, _: usize, _: *const c_void, _: usize) -> CUresult {
    counted(SET_ACCESS)
}

unsafe extern "C" fn get_proc_address(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: cuuint64_t,
    status: *mut CUdriverProcAddressQueryResult,
) -> CUresult {
    // SAFETY: the caller's, which are the same.
    let result =
        unsafe { vmm_emulator::get_proc_address(symbol, function, version, flags, status) };
    // SAFETY: the caller gives a C string.
    let ours: *mut c_void = match unsafe { CStr::from_ptr(symbol) }.to_bytes() {
        b"cuMemCreate" => create as *mut c_void,
        b"cuMemRelease" => release as *mut c_void,
        b"cuMemAddressReserve" => reserve as *mut c_void,
        b"cuMemAddressFree" => free as *mut c_void,
        b"cuMemMap" => map as *mut c_void,
        b"cuMemUnmap" => unmap as *mut c_void,
        b"cuMemSetAccess" => set_access as *mut c_void,
        _ => return result,
    };
    // SAFETY: the caller's pointer is valid for a write.
    unsafe { function.write(ours) };
    result
}

/// What happened between two moments.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cost {
    allocations: usize,
    bytes: usize,
    kept: isize,
    calls: [u64; 7],
}

fn cost<T>(work: impl FnOnce() -> T) -> (T, Cost) {
    let read = || {
        (
            ALLOCATIONS.get(),
            BYTES.get(),
            FREED.get(),
            [0, 1, 2, 3, 4, 5, 6].map(|call: usize| CALLS[call].load(Relaxed)),
        )
    };
    let before = read();
    let value = work();
    let after = read();
    let bytes = after.1 - before.1;
    let cost = Cost {
        allocations: after.0 - before.0,
        bytes,
        kept: bytes as isize - (after.2 - before.2) as isize,
        calls: std::array::from_fn(|call| after.3[call] - before.3[call]),
    };
    (value, cost)
}

fn allocator(driver: &Driver) -> Allocator {
    let builder = Allocator::builder(&driver.device(0).unwrap());
    builder
        .handle_types(HandleTypes::POSIX_FD)
        .chunk_policy(ChunkPolicy::exact().largest(CHUNK))
        .build()
        .unwrap()
}

/// Ten times the chunks cost at most ten times as much, and what does not depend on them.
fn assert_linear(what: &str, one: Cost, ten: Cost) {
    const SLACK: usize = 4096;
    let allocations = one.allocations * 10 + 64;
    assert!(ten.allocations <= allocations, "{what}: {one:?}, {ten:?}");
    assert!(
        ten.bytes <= one.bytes * 10 + SLACK,
        "{what}: {one:?}, {ten:?}"
    );
}

fn allocate(allocator: &Allocator, chunks: usize) -> (Buffer, Cost) {
    let room = (chunks + 1) * CHUNK;
    let (buffer, cost) = cost(|| {
        allocator
            .allocate_with_capacity(chunks * CHUNK, room)
            .unwrap()
    });
    let n = chunks as u64;
    assert_eq!(buffer.chunk_count(), chunks);
    assert_eq!(cost.calls, [n, 0, 1, 0, n, 0, 1], "{chunks} chunks");
    assert!(
        cost.kept <= 128 * chunks as isize + 2048,
        "{chunks} chunks keep {} bytes",
        cost.kept
    );
    (buffer, cost)
}

#[test]
fn a_hundred_thousand_chunks_cost_ten_times_what_ten_thousand_do() {
    // SAFETY: answers as the emulator does; the functions put in have the types of theirs.
    let sys = unsafe { vmm_sys::Driver::from_get_proc_address(get_proc_address) }.unwrap();
    let driver = Driver::new(sys).unwrap();
    let allocator = allocator(&driver);
    drop(allocate(&allocator, 1)); // what is asked once for good is asked now

    let (few, few_made) = allocate(&allocator, 10_000);
    let (many, many_made) = allocate(&allocator, 100_000);
    assert_linear("allocate", few_made, many_made);

    // A grow by one chunk costs the same whatever the buffer's size.
    let (few_grown, few_grow) = cost(|| few.grow(few.len() + CHUNK).unwrap());
    let (many_grown, many_grow) = cost(|| many.grow(many.len() + CHUNK).unwrap());
    assert_eq!(many_grow, few_grow);
    assert_eq!(many_grow.calls, [1, 0, 0, 0, 1, 0, 1]);

    // What is shared is not taken down twice.
    let ((), shared) = cost(|| drop(many));
    assert_eq!(shared.calls, [0; 7]);
    drop(few);

    let ((), few_gone) = cost(|| few_grown.close().unwrap());
    let ((), many_gone) = cost(|| many_grown.close().unwrap());
    assert_linear("close", few_gone, many_gone);
    assert_eq!(many_gone.calls[RELEASE], 100_001);
    assert_eq!(many_gone.calls[FREE], 1);
    assert!(many_gone.calls[UNMAP] <= 100_001);
    // Nothing is kept of it all.
    let kept = many_made.kept + many_grow.kept + shared.kept + many_gone.kept;
    assert!(kept.abs() < 4096, "{kept} bytes are left");

    // A buffer that grows by one chunk, again and again.
    let grow_to = |chunks: usize| {
        let mut buffer = allocator
            .allocate_with_capacity(CHUNK, chunks * CHUNK)
            .unwrap();
        cost(move || {
            for count in 2..=chunks {
                buffer = buffer.grow(count * CHUNK).unwrap();
            }
            buffer
        })
    };
    let (_few, few_steps) = grow_to(1_001);
    let (_many, many_steps) = grow_to(10_001);
    assert_linear("grow step by step", few_steps, many_steps);
}
