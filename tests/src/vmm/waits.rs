//! Invariant 9 in awkward orders: memory is unmapped after the work in it, whoever goes first and
//! whatever fails in between. The runner fails a case in which the emulator saw it otherwise.

use std::ptr::null_mut;
use std::time::Duration;

use vmm::sys::{CUgraph, CUresult, CUstreamCaptureMode};
use vmm::{Allocator, Buffer, Location, Stream};

use super::{exact, exact_with_room, expect_pattern, write_pattern};
use crate::emulated::{Calls, fail, fail_all, set_latency};
use crate::{Case, Context, Failure, cases};

pub const CASES: &[Case] = cases![
    invariant_09_what_runs_in_two_neighbouring_ranges_is_waited_for_by_both: emulator_only(),
    invariant_09_a_wait_put_off_by_a_capture_is_made_up_for: emulator_only(),
    invariant_09_a_wait_that_failed_is_made_up_for: emulator_only(),
    invariant_09_a_sleep_that_could_not_wait_forgets_nothing: emulator_only(),
    invariant_09_a_sleep_waits_for_work_that_this_crate_knows_nothing_of: emulator_only(),
    invariant_09_host_memory_waits_for_the_default_stream: emulator_only(),
    invariant_09_a_slice_is_given_back_when_nothing_writes_to_it_any_more: emulator_only(),
    invariant_09_a_copy_that_cannot_be_waited_for_is_asked_after: emulator_only(),
    invariant_09_work_on_a_stream_recorded_before_is_waited_for: emulator_only(),
    invariant_09_a_wake_that_fails_waits_for_its_copies: emulator_only(),
    invariant_11_a_keeper_that_panics_stops_no_release: emulator_only(),
    invariant_11_what_a_hook_throws_may_panic_as_well: emulator_only(),
];

/// What is submitted from here on lasts this long.
const LONG: Duration = Duration::from_millis(200);

/// Two buffers at one address: the second has a chunk more, in a range of its own.
fn neighbours(context: &Context) -> Result<(Buffer, Buffer), Failure> {
    let (allocator, granularity) = exact_with_room(context)?;
    let first = allocator.allocate(granularity)?;
    let longer = first.grow(2 * granularity)?;
    assert_eq!(
        (first.address(), first.capacity(), longer.chunk_count()),
        (longer.address(), granularity, 2)
    );
    Ok((first, longer))
}

fn invariant_09_what_runs_in_two_neighbouring_ranges_is_waited_for_by_both(
    context: &Context,
) -> Result<(), Failure> {
    let stream = Stream::new(&context.device()?)?;
    let (first, longer) = neighbours(context)?;
    set_latency("cuMemsetD8Async", LONG);
    longer.fill_on(&stream, 0, longer.len(), 1)?;
    let waiting = std::thread::spawn(move || drop(longer));
    // Until the other thread has let go of the chunk that both have, and waits.
    std::thread::sleep(LONG / 4);
    drop(first);
    waiting.join().expect("a drop does not panic");
    Ok(stream.synchronize()?)
}

fn invariant_09_a_wait_put_off_by_a_capture_is_made_up_for(
    context: &Context,
) -> Result<(), Failure> {
    let stream = Stream::new(&context.device()?)?;
    let sys = context.driver()?.sys();
    let (first, longer) = neighbours(context)?;
    set_latency("cuMemsetD8Async", LONG);
    longer.fill_on(&stream, 0, first.len(), 1)?;
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: the stream lives, and its capture is ended below.
    unsafe { sys.cuStreamBeginCapture(stream.as_raw(), mode) }?;
    drop(longer);
    let mut graph: CUgraph = null_mut();
    // SAFETY: as above; the graph is destroyed at once.
    unsafe {
        sys.cuStreamEndCapture(stream.as_raw(), &mut graph)?;
        sys.cuGraphDestroy(graph)?;
    }
    drop(first);
    Ok(stream.synchronize()?)
}

fn invariant_09_a_wait_that_failed_is_made_up_for(context: &Context) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let stream = Stream::new(&context.device()?)?;
    let first = allocator.allocate_with_capacity(granularity, 2 * granularity)?;
    let longer = first.grow(2 * granularity)?;
    set_latency("cuMemsetD8Async", LONG);
    longer.fill_on(&stream, 0, granularity, 1)?;
    let code = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
    let failing = fail(Calls::Of("cuCtxPushCurrent"), 1, code);
    drop(longer);
    drop(failing);
    drop(first);
    Ok(stream.synchronize()?)
}

fn invariant_09_a_sleep_that_could_not_wait_forgets_nothing(
    context: &Context,
) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let stream = Stream::new(&context.device()?)?;
    let buffer = allocator.allocate(granularity)?;
    set_latency("cuMemsetD8Async", LONG);
    buffer.fill_on(&stream, 0, granularity, 1)?;
    let code = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
    let failing = fail(Calls::Of("cuCtxPushCurrent"), 1, code);
    let failed = buffer.sleep().unwrap_err();
    drop(failing);
    assert!(!failed.error.to_string().contains("released"), "{failed}");
    drop(failed.buffer);
    Ok(stream.synchronize()?)
}

/// A kernel of the caller's, here a memset that is put on the recorded stream behind the crate's back.
fn invariant_09_a_sleep_waits_for_work_that_this_crate_knows_nothing_of(
    context: &Context,
) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let stream = Stream::new(&context.device()?)?;
    let sys = context.driver()?.sys();
    set_latency("cuMemsetD8Async", LONG);
    for contents in [false, true] {
        let mut buffer = allocator.allocate(granularity)?;
        buffer.set_stream(Some(&stream));
        // SAFETY: mapped memory, and a stream that lives; the buffer waits for it.
        unsafe { sys.cuMemsetD8Async(buffer.address(), 7, granularity, stream.as_raw()) }?;
        let asleep = match contents {
            true => buffer.sleep_with_contents(|_| {}),
            false => buffer.sleep(),
        };
        let awake = asleep.map_err(|f| f.error)?.wake().map_err(|f| f.error)?;
        let mut byte = [0];
        awake.read(granularity - 1, &mut byte)?;
        assert!(!contents || byte == [7]);
    }
    Ok(())
}

fn invariant_09_host_memory_waits_for_the_default_stream(context: &Context) -> Result<(), Failure> {
    let device = context.device()?;
    let host = Allocator::builder(&device)
        .location(Location::HostNuma(0))
        .build()?;
    let (on_device, granularity) = exact(context)?;
    let host_only = host.allocate(granularity)?;
    let mixed = host.allocate(granularity)?;
    let mixed = mixed.grow_with(&on_device, 2 * granularity)?;
    // The primary context is there, and stays.
    device.memory_info()?;
    set_latency("cuMemsetD8Async", LONG);
    for buffer in [host_only, mixed] {
        // As a kernel of the caller's.
        let sys = context.driver()?.sys();
        let mut primary = null_mut();
        // SAFETY: pointers to values of the right types; the range is mapped, and what is retained and
        // pushed is popped and released.
        unsafe {
            sys.cuDevicePrimaryCtxRetain(&mut primary, 0)?;
            sys.cuCtxPushCurrent(primary)?;
            sys.cuMemsetD8Async(buffer.address(), 1, buffer.len(), null_mut())?;
            sys.cuCtxPopCurrent(&mut primary)?;
            sys.cuDevicePrimaryCtxRelease(0)?;
        }
        drop(buffer);
    }
    Ok(())
}

fn invariant_09_a_slice_is_given_back_when_nothing_writes_to_it_any_more(
    context: &Context,
) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let stream = Stream::new(&context.device()?)?;
    let mut buffer = allocator.allocate(granularity)?;
    buffer.set_stream(Some(&stream));
    write_pattern(&buffer, 5)?;
    let mut expected = vec![0; 64];
    buffer.read(0, &mut expected)?;
    set_latency("cuMemcpyDtoHAsync", LONG);
    let code = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    // Waiting for the stream fails: nothing was copied. Waiting for the copy fails: it is made up for.
    for (nth, copied) in [(1, false), (2, true)] {
        let mut bytes = vec![0; 64];
        let failing = fail(Calls::Of("cuStreamSynchronize"), nth, code);
        let result = buffer.read(0, &mut bytes);
        drop(failing);
        assert_eq!(result.is_ok(), copied, "{result:?}");
        let now = bytes.clone();
        std::thread::sleep(LONG + LONG / 2);
        context.device()?.memory_info()?;
        assert_eq!(bytes, now, "written after the slice was given back");
        assert_eq!(bytes == expected, copied);
    }
    Ok(())
}

fn invariant_09_a_copy_that_cannot_be_waited_for_is_asked_after(
    context: &Context,
) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let stream = Stream::new(&context.device()?)?;
    let mut buffer = allocator.allocate(granularity)?;
    write_pattern(&buffer, 5)?;
    buffer.set_stream(Some(&stream));
    set_latency("cuMemcpyHtoDAsync", LONG);
    let code = vmm_emulator::Code(CUresult::CUDA_ERROR_UNKNOWN.0.cast_signed());
    let calls = Calls::Of("cuStreamSynchronize");
    // The wait for the stream goes well, and no other does.
    let failing = vmm_emulator::Emulator::current().fail_from(calls, 2, code);
    buffer.write(0, &[9; 64])?;
    assert!(failing.fired() > 0);
    // Were the copy still under way, the emulator would see the memory go from under it.
    drop(buffer);
    drop(failing);
    Ok(())
}

/// Of which the crate knows only that it was recorded.
fn invariant_09_work_on_a_stream_recorded_before_is_waited_for(
    context: &Context,
) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let device = context.device()?;
    let (first, second) = (Stream::new(&device)?, Stream::new(&device)?);
    let sys = context.driver()?.sys();
    set_latency("cuMemsetD8Async", LONG);
    for next in [Some(&second), None] {
        let mut buffer = allocator.allocate(granularity)?;
        buffer.set_stream(Some(&first));
        // SAFETY: mapped memory, and a stream that lives; the buffer waits for it.
        unsafe { sys.cuMemsetD8Async(buffer.address(), 7, granularity, first.as_raw()) }?;
        buffer.set_stream(next);
        drop(buffer);
    }
    Ok(())
}

fn invariant_09_a_wake_that_fails_waits_for_its_copies(context: &Context) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let stream = Stream::new(&context.device()?)?;
    let mut buffer = allocator.allocate(2 * granularity)?;
    write_pattern(&buffer, 6)?;
    buffer.set_stream(Some(&stream));
    let asleep = buffer.sleep_with_contents(|_| {}).map_err(|f| f.error)?;
    set_latency("cuMemcpyHtoDAsync", LONG);
    let code = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    let failing = fail(Calls::Of("cuStreamSynchronize"), 1, code);
    let failed = asleep.wake().unwrap_err();
    drop(failing);
    let awake = failed.buffer.wake().map_err(|f| f.error)?;
    expect_pattern(&awake, 2 * granularity, 6)
}

/// Owns a stream, and panics when it goes.
struct Panics(#[expect(dead_code, reason = "it is owned")] Stream);

impl Drop for Panics {
    fn drop(&mut self) {
        panic!("on purpose");
    }
}

fn invariant_11_a_keeper_that_panics_stops_no_release(context: &Context) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let device = context.device()?;
    let (own, slow) = (Stream::new(&device)?, Stream::new(&device)?);
    // SAFETY: the keeper owns the stream.
    let foreign = unsafe { Stream::from_raw_kept(&device, own.as_raw(), Panics(own)) };
    let buffer = allocator.allocate(granularity)?;
    buffer.fill_on(&foreign, 0, granularity, 1)?;
    drop(foreign);
    set_latency("cuMemsetD8Async", LONG);
    buffer.fill_on(&slow, 0, granularity, 1)?;
    drop(buffer);
    Ok(slow.synchronize()?)
}

/// What a hook throws.
struct Thrown;

impl Drop for Thrown {
    fn drop(&mut self) {
        panic!("on purpose");
    }
}

fn invariant_11_what_a_hook_throws_may_panic_as_well(context: &Context) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let stream = Stream::new(&context.device()?)?;
    let mut buffer = allocator.allocate(granularity)?;
    buffer.set_stream(Some(&stream));
    let driver = context.driver()?;
    driver.on_release_error(|_| std::panic::panic_any(Thrown));
    let code = CUresult::CUDA_ERROR_UNKNOWN;
    let failing = fail_all(Calls::Of("cuStreamSynchronize"), code);
    drop(buffer);
    drop(failing);
    Ok(())
}
