//! What a host copy, a sleep and a wake have to wait for, and what waiting leaves behind.

use std::ptr::null_mut;
use std::time::Duration;

use vmm::sys::{CUgraph, CUresult, CUstreamCaptureMode, CUstreamCaptureStatus};
use vmm::{Buffer, ErrorKind, Stream};

use super::{exact, expect_pattern, write_pattern};
use crate::emulated::{live, set_latency};
use crate::{Case, Context, Failure, cases};

pub const CASES: &[Case] = cases![
    what_other_streams_write_is_kept_by_a_sleep: emulator_only(),
    a_wake_during_a_capture_can_be_tried_again,
    a_host_copy_waits_for_the_stream_recorded_before: emulator_only(),
    a_host_copy_waits_for_the_default_stream_used_before: emulator_only(),
    a_fresh_buffer_waits_for_no_default_stream: emulator_only(),
    a_moved_buffer_waits_for_what_was_done_at_its_old_place: emulator_only(),
    a_buffer_is_synchronized_with_every_stream_it_had: emulator_only(),
    written_bytes_are_there_for_every_stream: emulator_only(),
    streams_that_are_over_do_not_collect_in_a_buffer: emulator_only(),
    streams_that_two_buffers_know_do_not_collect_either: emulator_only(),
    a_stream_that_still_works_is_kept: emulator_only(),
    a_stream_that_went_in_a_capture_is_left_alone,
    a_foreign_stream_is_left_alone_once_nothing_is_mapped: emulator_only(),
];

/// What is submitted from here on lasts this long.
const LONG: Duration = Duration::from_millis(200);

fn expect_bytes(buffer: &Buffer, value: u8) -> Result<(), Failure> {
    let mut bytes = [0; 64];
    buffer.read(0, &mut bytes)?;
    assert_eq!(bytes, [value; 64]);
    Ok(())
}

fn what_other_streams_write_is_kept_by_a_sleep(context: &Context) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let device = context.device()?;
    let (recorded, other) = (Stream::new(&device)?, Stream::new(&device)?);
    set_latency("cuMemsetD8Async", LONG);
    for stream in [None, Some(&recorded)] {
        let mut buffer = allocator.allocate(granularity)?;
        buffer.set_stream(stream);
        buffer.fill_on(&other, 0, granularity, 0x42)?;
        let asleep = buffer.sleep_with_contents(|_| {}).map_err(|f| f.error)?;
        expect_bytes(&asleep.wake().map_err(|f| f.error)?, 0x42)?;
    }
    Ok(())
}

fn a_wake_during_a_capture_can_be_tried_again(context: &Context) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let stream = Stream::new(&context.device()?)?;
    let sys = context.driver()?.sys();
    let mut buffer = allocator.allocate_with_capacity(granularity, 4 * granularity)?;
    buffer = buffer.grow(2 * granularity)?;
    write_pattern(&buffer, 4)?;
    buffer.set_stream(Some(&stream));
    let (address, capacity) = (buffer.address(), buffer.capacity());
    let asleep = buffer.sleep_with_contents(|_| {}).map_err(|f| f.error)?;
    let before = context.snapshot()?;
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: the stream lives, and its capture is ended below.
    unsafe { sys.cuStreamBeginCapture(stream.as_raw(), mode) }?;
    let failed = asleep.wake().unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::Capturing, "{failed}");
    let mut graph: CUgraph = null_mut();
    // SAFETY: as above; the graph is destroyed at once.
    unsafe {
        sys.cuStreamEndCapture(stream.as_raw(), &mut graph)?;
        sys.cuGraphDestroy(graph)?;
    }
    context.assert_as(&before)?;
    let awake = failed.buffer.wake().map_err(|f| f.error)?;
    assert_eq!((awake.address(), awake.capacity()), (address, capacity));
    expect_pattern(&awake, 2 * granularity, 4)
}

fn a_host_copy_waits_for_the_stream_recorded_before(context: &Context) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let device = context.device()?;
    let (first, second) = (Stream::new(&device)?, Stream::new(&device)?);
    let mut buffer = allocator.allocate(granularity)?;
    set_latency("cuMemsetD8Async", LONG);
    for next in [Some(&second), None] {
        buffer.set_stream(Some(&first));
        buffer.fill(0, granularity, 7)?;
        buffer.set_stream(next);
        expect_bytes(&buffer, 7)?;
        buffer.fill(0, granularity, 8)?;
    }
    // Over two streams, and in an alias.
    buffer.set_stream(Some(&first));
    buffer.fill(0, granularity, 9)?;
    buffer.set_stream(Some(&second));
    buffer.set_stream(None);
    expect_bytes(&buffer.alias(), 9)
}

fn a_host_copy_waits_for_the_default_stream_used_before(context: &Context) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let stream = Stream::new(&context.device()?)?;
    let mut buffer = allocator.allocate(granularity)?;
    set_latency("cuMemsetD8", LONG);
    buffer.fill(0, granularity, 0x42)?;
    buffer.set_stream(Some(&stream));
    expect_bytes(&buffer, 0x42)
}

fn a_moved_buffer_waits_for_what_was_done_at_its_old_place(
    context: &Context,
) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let stream = Stream::new(&context.device()?)?;
    let buffer = allocator.allocate_with_capacity(granularity, 2 * granularity)?;
    set_latency("cuMemsetD8", LONG);
    buffer.fill(0, granularity, 0x42)?;
    let _taken = buffer.grow(2 * granularity)?;
    let mut moved = buffer.grow(2 * granularity)?;
    assert_ne!(moved.address(), buffer.address());
    moved.set_stream(Some(&stream));
    expect_bytes(&moved, 0x42)
}

fn a_buffer_is_synchronized_with_every_stream_it_had(context: &Context) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let device = context.device()?;
    let (producer, consumer) = (Stream::new(&device)?, Stream::new(&device)?);
    let mut buffer = allocator.allocate(granularity)?;
    buffer.set_stream(Some(&producer));
    set_latency("cuMemsetD8Async", LONG);
    buffer.fill(0, granularity, 1)?;
    buffer.set_stream(Some(&consumer));
    let start = std::time::Instant::now();
    buffer.synchronize()?;
    assert!(start.elapsed() > LONG / 2, "it did not wait");
    Ok(())
}

/// What no copy of this crate's used is not waited for: a kernel there may be meant to run on.
fn a_fresh_buffer_waits_for_no_default_stream(context: &Context) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let stream = Stream::new(&context.device()?)?;
    let busy = allocator.allocate(granularity)?;
    let mut buffer = allocator.allocate(granularity)?;
    buffer.set_stream(Some(&stream));
    set_latency("cuMemsetD8", 5 * LONG);
    busy.fill(0, granularity, 1)?;
    let start = std::time::Instant::now();
    buffer.write(0, &[3; 64])?;
    expect_bytes(&buffer, 3)?;
    assert!(start.elapsed() < 4 * LONG, "it waited for the other buffer");
    Ok(())
}

fn written_bytes_are_there_for_every_stream(context: &Context) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let stream = Stream::new(&context.device()?)?;
    let buffer = allocator.allocate(granularity)?;
    let mut other = buffer.alias();
    other.set_stream(Some(&stream));
    buffer.write(0, &[1; 64])?;
    crate::emulated::start_trace();
    buffer.write(0, &[2; 64])?;
    let calls = crate::emulated::take_trace();
    let names: Vec<_> = calls.iter().map(|call| call.function).collect();
    let copied = names.iter().position(|name| *name == "cuMemcpyHtoD");
    let waited = names.iter().position(|name| *name == "cuStreamSynchronize");
    assert!(copied.is_some() && copied < waited, "{names:?}");
    expect_bytes(&other, 2)
}

fn streams_that_are_over_do_not_collect_in_a_buffer(context: &Context) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let device = context.device()?;
    let buffer = allocator.allocate(granularity)?;
    // The primary context is there, with the stream that this crate has in it.
    device.memory_info()?;
    let before = live().streams;
    for _ in 0..1000 {
        let stream = Stream::new(&device)?;
        buffer.fill_on(&stream, 0, 64, 1)?;
        stream.synchronize()?;
    }
    assert!(live().streams - before < 40, "{:?}", live());
    // Those that somebody has stay, however many they are.
    let kept: Vec<Stream> = (0..100)
        .map(|_| Stream::new(&device))
        .collect::<Result<_, _>>()?;
    for stream in &kept {
        buffer.fill_on(stream, 0, 64, 2)?;
    }
    drop(buffer);
    assert_eq!(live().streams, before + 100);
    Ok(())
}

fn streams_that_two_buffers_know_do_not_collect_either(context: &Context) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let device = context.device()?;
    let mut buffer = allocator.allocate(granularity)?;
    let other = allocator.allocate(granularity)?;
    device.memory_info()?;
    let before = live().streams;
    for _ in 0..500 {
        let stream = Stream::new(&device)?;
        buffer.copy_to_on(&stream, 0, &other, 0, 64)?;
        buffer.set_stream(Some(&stream));
        buffer.fill(0, 64, 1)?;
        stream.synchronize()?;
    }
    assert!(live().streams - before < 100, "{:?}", live());
    drop((buffer, other));
    assert_eq!(live().streams, before);
    Ok(())
}

/// It joined the capture of another by an event, and the capture goes on without it.
fn a_stream_that_went_in_a_capture_is_left_alone(context: &Context) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let device = context.device()?;
    let sys = context.driver()?.sys();
    let buffer = allocator.allocate(granularity)?;
    let (origin, joined) = (Stream::new(&device)?, Stream::new(&device)?);
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    let (mut event, mut primary) = (null_mut(), null_mut());
    // SAFETY: the streams live; the event is destroyed below, and so is the graph. The context is
    // given back and taken off again.
    unsafe {
        sys.cuDevicePrimaryCtxRetain(&mut primary, device.ordinal() as i32)?;
        sys.cuCtxPushCurrent(primary)?;
        sys.cuEventCreate(&mut event, 2)?;
        sys.cuStreamBeginCapture(origin.as_raw(), mode)?;
        sys.cuEventRecord(event, origin.as_raw())?;
        sys.cuStreamWaitEvent(joined.as_raw(), event, 0)?;
    }
    buffer.fill_on(&joined, 0, 64, 1)?;
    // SAFETY: as above.
    unsafe {
        sys.cuEventRecord(event, joined.as_raw())?;
        sys.cuStreamWaitEvent(origin.as_raw(), event, 0)?;
    }
    drop(joined);
    // So many that the list of streams is looked through.
    for _ in 0..40 {
        buffer.fill_on(&Stream::new(&device)?, 0, 64, 2)?;
    }
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: a pointer to a value of the right type, and a stream that lives.
    unsafe { sys.cuStreamIsCapturing(origin.as_raw(), &mut status) }?;
    let active = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE;
    assert_eq!(status, active, "the capture is broken");
    let mut graph: CUgraph = null_mut();
    // SAFETY: as above.
    unsafe {
        // The emulator takes any stream that joined for one that did not come back.
        match sys.cuStreamEndCapture(origin.as_raw(), &mut graph) {
            Ok(()) => sys.cuGraphDestroy(graph)?,
            Err(error) => assert_eq!(
                error.code(),
                Some(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED)
            ),
        }
        sys.cuEventDestroy(event)?;
        sys.cuCtxPopCurrent(&mut primary)?;
        sys.cuDevicePrimaryCtxRelease(device.ordinal() as i32)?;
    }
    Ok(())
}

/// What its owner destroys when no memory is mapped any more in which it worked.
fn a_foreign_stream_is_left_alone_once_nothing_is_mapped(context: &Context) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let device = context.device()?;
    let own = Stream::new(&device)?;
    // SAFETY: destroyed when nothing is mapped in which it worked.
    let foreign = unsafe { Stream::from_raw(&device, own.as_raw()) };
    let mut buffer = allocator.allocate_with_capacity(granularity, 4 * granularity)?;
    buffer.set_stream(Some(&foreign));
    buffer.fill(0, granularity, 1)?;
    buffer.set_stream(None);
    let mut none = buffer.shrink(0)?;
    drop(buffer);
    none.set_stream(Some(&foreign));
    none.set_stream(None);
    drop((foreign, own));
    let again = none.grow(granularity)?;
    again.write(0, &[3; 64])?;
    expect_bytes(&again, 3)
}

fn a_stream_that_still_works_is_kept(context: &Context) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let device = context.device()?;
    let buffer = allocator.allocate(granularity)?;
    for _ in 0..100 {
        buffer.fill_on(&Stream::new(&device)?, 0, 64, 1)?;
    }
    let slow = Stream::new(&device)?;
    set_latency("cuMemsetD8Async", LONG);
    buffer.fill_on(&slow, 0, 64, 2)?;
    drop(slow);
    set_latency("cuMemsetD8Async", Duration::ZERO);
    for _ in 0..100 {
        buffer.fill_on(&Stream::new(&device)?, 0, 64, 1)?;
    }
    // The emulator would see memory go while the slow stream writes to it.
    drop(buffer);
    Ok(())
}
