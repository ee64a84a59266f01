//! Contexts, streams and captures: invariants 8 and 9.

use std::ptr::null_mut;
use std::sync::Arc;

use vmm::sys::{CUcontext, CUgraph, CUstreamCaptureMode, CUstreamCaptureStatus};
use vmm::{Buffer, Stream};

use super::{exact, expect_pattern, write_pattern};
use crate::{Case, Context, Failure, cases, emulated};

pub const CASES: &[Case] = cases![
    invariant_08_no_operation_needs_or_sets_a_current_context,
    invariant_08_the_callers_context_stays_current,
    invariant_09_a_drop_waits_for_the_recorded_stream,
    invariant_09_a_drop_of_an_alias_waits_for_nothing_of_the_other,
    invariant_09_without_a_recorded_stream_the_default_stream_is_waited_for,
    invariant_09_work_on_the_default_stream_is_waited_for_after_another_was_recorded,
    invariant_09_a_foreign_stream_is_kept_until_nothing_waits_for_it,
    invariant_09_of_two_values_for_a_stream_the_keeping_one_is_kept,
    invariant_09_a_drop_leaves_a_capture_valid,
];

fn current(context: &Context) -> Result<CUcontext, Failure> {
    let mut current: CUcontext = null_mut();
    // SAFETY: the pointer is to a value of the right type that outlives the call.
    unsafe { context.driver()?.sys().cuCtxGetCurrent(&mut current) }?;
    Ok(current)
}

/// One of everything that touches the driver.
fn everything(context: &Context) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let device = context.device()?;
    device.memory_info()?;
    let buffer = allocator.allocate_with_capacity(granularity, 4 * granularity)?;
    write_pattern(&buffer, 1)?;
    buffer.fill(0, 64, 7)?;
    let grown = buffer.grow(3 * granularity)?;
    buffer.copy_to(0, &grown, granularity, granularity)?;
    let stream = Stream::new(&device)?;
    grown.fill_on(&stream, 0, granularity, 9)?;
    stream.synchronize()?;
    drop((buffer, stream));
    let asleep = grown
        .sleep_with_contents(|_| {})
        .map_err(|failed| failed.error)?;
    let awake = asleep.wake().map_err(|failed| failed.error)?;
    awake.synchronize()?;
    awake.close()?;
    Ok(())
}

fn invariant_08_no_operation_needs_or_sets_a_current_context(
    context: &Context,
) -> Result<(), Failure> {
    std::thread::scope(|scope| {
        let work = scope.spawn(|| {
            assert!(current(context)?.is_null());
            everything(context)?;
            assert!(current(context)?.is_null());
            Ok(())
        });
        work.join()
            .unwrap_or_else(|_| Err(Failure::new("the thread panicked")))
    })
}

fn invariant_08_the_callers_context_stays_current(context: &Context) -> Result<(), Failure> {
    let sys = context.driver()?.sys();
    let mut own: CUcontext = null_mut();
    // SAFETY: pointers to values of the right types, and a context that lives until it is destroyed
    // below.
    unsafe { sys.cuCtxCreate(&mut own, 0, 0) }?;
    assert_eq!(current(context)?, own);
    everything(context)?;
    assert_eq!(current(context)?, own);
    // SAFETY: made above, and used by nothing that is left.
    unsafe { sys.cuCtxDestroy(own) }?;
    Ok(())
}

/// Puts work on `stream` that writes to `buffer` and takes long enough to be caught by a release
/// that does not wait: tens of milliseconds.
fn long_work(context: &Context, buffer: &Buffer, stream: &Stream) -> Result<(), Failure> {
    if context.driver()?.is_emulator() {
        emulated::set_latency("cuMemsetD8Async", std::time::Duration::from_millis(50));
        buffer.fill_on(stream, 0, buffer.len(), 0x42)?;
    } else {
        for _ in 0..(200 << 30) / buffer.len() {
            buffer.fill_on(stream, 0, buffer.len(), 0x42)?;
        }
    }
    Ok(())
}

/// Large enough on a GPU that the work takes time; on the emulator its latency does.
fn large(context: &Context, granularity: usize) -> Result<usize, Failure> {
    let emulated = context.driver()?.is_emulator();
    Ok(if emulated {
        4 * granularity
    } else {
        512 * granularity
    })
}

/// Fails where earlier work faulted: such an error stays with the context.
#[track_caller]
fn expect_no_fault(context: &Context) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let buffer = allocator.allocate(granularity)?;
    write_pattern(&buffer, 2)?;
    expect_pattern(&buffer, granularity, 2)
}

fn invariant_09_a_drop_waits_for_the_recorded_stream(context: &Context) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let stream = Stream::new(&context.device()?)?;
    for closed in [false, true] {
        let mut buffer = allocator.allocate(large(context, granularity)?)?;
        buffer.set_stream(Some(&stream));
        long_work(context, &buffer, &stream)?;
        match closed {
            false => drop(buffer),
            true => buffer.close()?,
        }
        stream.synchronize()?;
        expect_no_fault(context)?;
    }
    Ok(())
}

fn invariant_09_a_drop_of_an_alias_waits_for_nothing_of_the_other(
    context: &Context,
) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let stream = Stream::new(&context.device()?)?;
    let mut buffer = allocator.allocate(large(context, granularity)?)?;
    buffer.set_stream(Some(&stream));
    let alias = buffer.alias();
    long_work(context, &buffer, &stream)?;
    drop(buffer);
    let mut byte = [0];
    stream.synchronize()?;
    alias.read(alias.len() - 1, &mut byte)?;
    assert_eq!(byte, [0x42]);
    drop(alias);
    expect_no_fault(context)
}

fn invariant_09_without_a_recorded_stream_the_default_stream_is_waited_for(
    context: &Context,
) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let device = context.device()?;
    // SAFETY: null is the handle of the default stream, which is never destroyed.
    let default = unsafe { Stream::from_raw(&device, null_mut()) };
    let buffer = allocator.allocate(large(context, granularity)?)?;
    long_work(context, &buffer, &default)?;
    drop(buffer);
    default.synchronize()?;
    expect_no_fault(context)
}

fn invariant_09_work_on_the_default_stream_is_waited_for_after_another_was_recorded(
    context: &Context,
) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let stream = Stream::new(&context.device()?)?;
    let len = large(context, granularity)?;
    let source = allocator.allocate(len)?;
    let emulated = context.driver()?.is_emulator();
    if emulated {
        for call in ["cuMemsetD8", "cuMemcpyDtoD"] {
            emulated::set_latency(call, std::time::Duration::from_millis(50));
        }
    }
    let rounds = if emulated { 1 } else { (200 << 30) / len };
    for filled in [true, false] {
        let mut buffer = allocator.allocate(len)?;
        for _ in 0..rounds {
            match filled {
                true => buffer.fill(0, len, 0x42)?,
                false => source.copy_to(0, &buffer, 0, len)?,
            }
        }
        buffer.set_stream(Some(&stream));
        drop(buffer);
        context.device()?.memory_info()?;
        expect_no_fault(context)?;
    }
    Ok(())
}

fn invariant_09_a_foreign_stream_is_kept_until_nothing_waits_for_it(
    context: &Context,
) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let device = context.device()?;
    let owner = Arc::new(Stream::new(&device)?);
    let kept = Arc::downgrade(&owner);
    // SAFETY: the keeper owns the stream.
    let foreign = unsafe { Stream::from_raw_kept(&device, owner.as_raw(), owner) };
    let mut buffer = allocator.allocate(granularity)?;
    buffer.set_stream(Some(&foreign));
    let longer = buffer.grow(2 * granularity)?;
    drop(foreign);
    assert!(kept.upgrade().is_some(), "a buffer has recorded it");
    drop(buffer);
    assert!(kept.upgrade().is_some(), "the chunk is still mapped");
    drop(longer);
    assert!(kept.upgrade().is_none(), "nothing waits for it any more");
    Ok(())
}

/// The same stream by a value that keeps it and by one that does not, in either order.
fn invariant_09_of_two_values_for_a_stream_the_keeping_one_is_kept(
    context: &Context,
) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let device = context.device()?;
    for keeping_first in [true, false] {
        let owner = Arc::new(Stream::new(&device)?);
        let alive = Arc::downgrade(&owner);
        // SAFETY: the other value keeps the stream for as long as there is work.
        let plain = unsafe { Stream::from_raw(&device, owner.as_raw()) };
        // SAFETY: the keeper owns the stream.
        let keeping = unsafe { Stream::from_raw_kept(&device, owner.as_raw(), owner) };
        let buffer = allocator.allocate(granularity)?;
        let mut values = [plain, keeping];
        if keeping_first {
            values.reverse();
        }
        for stream in &values {
            buffer.fill_on(stream, 0, granularity, 1)?;
        }
        drop(values);
        assert!(alive.upgrade().is_some(), "{keeping_first}: it went early");
        drop(buffer);
        assert!(alive.upgrade().is_none(), "nothing waits for it any more");
    }
    Ok(())
}

fn invariant_09_a_drop_leaves_a_capture_valid(context: &Context) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let stream = Stream::new(&context.device()?)?;
    let sys = context.driver()?.sys();
    for mode in [
        CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
        CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    ] {
        let plain = allocator.allocate(granularity)?;
        let mut recorded = allocator.allocate(granularity)?;
        recorded.set_stream(Some(&stream));
        let target = allocator.allocate(granularity)?;
        // SAFETY: the stream lives, and its capture is ended below.
        unsafe { sys.cuStreamBeginCapture(stream.as_raw(), mode) }?;
        assert!(stream.is_capturing()?);
        target.fill_on(&stream, 0, granularity, 1)?;
        drop(plain);
        drop(recorded);
        drop(allocator.allocate(granularity)?.grow(2 * granularity)?);
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: a pointer to a value of the right type, and a stream that lives.
        unsafe { sys.cuStreamIsCapturing(stream.as_raw(), &mut status) }?;
        assert_eq!(
            status,
            CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE
        );
        let mut graph: CUgraph = null_mut();
        // SAFETY: as above; the graph is destroyed at once.
        unsafe {
            sys.cuStreamEndCapture(stream.as_raw(), &mut graph)?;
            sys.cuGraphDestroy(graph)?;
        }
    }
    Ok(())
}
