//! Giving the memory back and keeping the addresses.

use vmm::{Buffer, ErrorKind, HandleTypes, SleepError, SleepingBuffer};

use super::{exact, expect_pattern, write_pattern};
use crate::{Case, Context, Failure, cases};

pub const CASES: &[Case] = cases![
    a_sleeping_buffer_gives_its_memory_back_and_wakes_at_its_address,
    what_was_in_a_buffer_is_back_after_the_sleep,
    the_bytes_past_the_length_do_not_travel,
    a_buffer_with_aliases_says_so_and_does_not_sleep,
    a_buffer_whose_memory_someone_holds_does_not_sleep,
    imported_memory_does_not_sleep,
    an_empty_buffer_sleeps_and_wakes,
    a_buffer_that_woke_grows_and_sleeps_again,
    a_wake_without_memory_leaves_it_asleep: emulator_only(),
    a_sleeping_buffer_that_is_dropped_frees_its_addresses,
];

/// Three chunks, with room.
fn three(context: &Context) -> Result<(Buffer, usize), Failure> {
    let (allocator, granule) = exact(context)?;
    let buffer = allocator
        .allocate_with_capacity(granule, 8 * granule)?
        .grow(2 * granule)?
        .grow(4 * granule)?;
    assert_eq!(buffer.chunk_count(), 3);
    Ok((buffer, granule))
}

fn slept(result: Result<SleepingBuffer, SleepError<Buffer>>) -> Result<SleepingBuffer, Failure> {
    result.map_err(|failed| Failure::new(failed.to_string()))
}

fn woken(result: Result<Buffer, SleepError<SleepingBuffer>>) -> Result<Buffer, Failure> {
    result.map_err(|failed| Failure::new(failed.to_string()))
}

fn a_sleeping_buffer_gives_its_memory_back_and_wakes_at_its_address(
    context: &Context,
) -> Result<(), Failure> {
    let device = context.device()?;
    let work = || {
        let (buffer, granule) = three(context)?;
        let (address, layout) = (buffer.address(), buffer.layout());
        let free = device.memory_info()?.free;
        let asleep = slept(buffer.sleep())?;
        assert_eq!(device.memory_info()?.free, free + 4 * granule);
        assert_eq!((asleep.address(), asleep.len()), (address, 4 * granule));
        assert!(!asleep.has_contents());
        let awake = woken(asleep.wake())?;
        assert_eq!(awake.layout(), layout);
        assert_eq!(device.memory_info()?.free, free);
        write_pattern(&awake, 1)?;
        expect_pattern(&awake, awake.len(), 1)
    };
    context.leaves_nothing(work)
}

fn what_was_in_a_buffer_is_back_after_the_sleep(context: &Context) -> Result<(), Failure> {
    let (buffer, granule) = three(context)?;
    write_pattern(&buffer, 5)?;
    let mut told = Vec::new();
    let asleep = slept(buffer.sleep_with_contents(|progress| told.push(progress)))?;
    assert!(asleep.has_contents());
    assert!(told.len() >= 3, "{told:?}");
    assert!(told.is_sorted_by_key(|progress| progress.done));
    assert!(told.iter().all(|progress| progress.total == 4 * granule));
    assert_eq!(told.last().map(|progress| progress.done), Some(4 * granule));
    let mut done = 0;
    let awake = woken(asleep.wake_with_progress(|progress| done = progress.done))?;
    assert_eq!(done, 4 * granule);
    expect_pattern(&awake, 4 * granule, 5)
}

fn the_bytes_past_the_length_do_not_travel(context: &Context) -> Result<(), Failure> {
    let (allocator, granule) = exact(context)?;
    let buffer = allocator.allocate(granule + 1)?;
    write_pattern(&buffer, 2)?;
    let mut total = 0;
    let asleep = slept(buffer.sleep_with_contents(|progress| total = progress.total))?;
    assert_eq!(total, granule + 1);
    let awake = woken(asleep.wake())?;
    assert_eq!(
        (awake.len(), awake.mapped_len()),
        (granule + 1, 2 * granule)
    );
    expect_pattern(&awake, granule + 1, 2)
}

/// That the buffer does not sleep for this reason, and is given back as it was.
fn refused(buffer: Buffer, kind: ErrorKind) -> Result<Buffer, Failure> {
    write_pattern(&buffer, 9)?;
    let layout = buffer.layout();
    let Err(failed) = buffer.sleep() else {
        return Err(Failure::new("it fell asleep"));
    };
    assert_eq!(failed.error.kind(), kind, "{}", failed.error);
    let Err(failed) = failed.buffer.sleep_with_contents(|_| {}) else {
        return Err(Failure::new("it fell asleep"));
    };
    assert_eq!(failed.error.kind(), kind, "{}", failed.error);
    assert_eq!(failed.buffer.layout(), layout);
    expect_pattern(&failed.buffer, failed.buffer.len(), 9)?;
    Ok(*failed.buffer)
}

fn a_buffer_with_aliases_says_so_and_does_not_sleep(context: &Context) -> Result<(), Failure> {
    let (buffer, granule) = three(context)?;
    let alias = buffer.alias();
    let buffer = refused(buffer, ErrorKind::Aliased)?;
    drop(alias);
    let slice = buffer.slice(..1)?;
    let buffer = refused(buffer, ErrorKind::Aliased)?;
    drop(slice);
    // The buffer that it grew from holds the first chunks.
    let grown = buffer.grow(5 * granule)?;
    let grown = refused(grown, ErrorKind::Aliased)?;
    drop(buffer);
    slept(grown.sleep()).map(drop)
}

fn a_buffer_whose_memory_someone_holds_does_not_sleep(context: &Context) -> Result<(), Failure> {
    let (buffer, _) = three(context)?;
    let held = buffer.chunks().nth(1).map(|chunk| chunk.allocation.clone());
    let buffer = refused(buffer, ErrorKind::Aliased)?;
    drop(held);
    slept(buffer.sleep()).map(drop)
}

fn imported_memory_does_not_sleep(context: &Context) -> Result<(), Failure> {
    let device = context.device()?;
    let allocator = vmm::Allocator::builder(&device)
        .handle_types(HandleTypes::POSIX_FD)
        .build()?;
    let memory = allocator.allocate_unmapped(1)?;
    let fd = memory.export_posix_fd()?;
    let size = memory.size();
    let imported = vmm::Allocation::import_posix_fd(&device, std::os::fd::AsFd::as_fd(&fd), size)?;
    let options = vmm::MapOptions::new(vmm::Access::ReadWrite);
    let buffer = Buffer::from_allocations(&device, vec![imported], size, &options)?;
    refused(buffer, ErrorKind::NotSupported).map(drop)
}

fn an_empty_buffer_sleeps_and_wakes(context: &Context) -> Result<(), Failure> {
    let (allocator, granule) = exact(context)?;
    for capacity in [0, 4 * granule] {
        let buffer = allocator.allocate_with_capacity(0, capacity)?;
        let address = buffer.address();
        let awake = woken(slept(buffer.sleep_with_contents(|_| {}))?.wake())?;
        assert_eq!((awake.address(), awake.capacity()), (address, capacity));
        let grown = awake.grow(granule)?;
        write_pattern(&grown, 1)?;
        expect_pattern(&grown, granule, 1)?;
    }
    Ok(())
}

fn a_buffer_that_woke_grows_and_sleeps_again(context: &Context) -> Result<(), Failure> {
    let (mut buffer, granule) = three(context)?;
    let address = buffer.address();
    for round in 0..3 {
        write_pattern(&buffer, round)?;
        let len = buffer.len();
        buffer = woken(slept(buffer.sleep_with_contents(|_| {}))?.wake())?;
        expect_pattern(&buffer, len, round)?;
        buffer = buffer.grow(len + granule)?;
        assert_eq!(buffer.address(), address);
        expect_pattern(&buffer, len, round)?;
    }
    Ok(())
}

fn a_wake_without_memory_leaves_it_asleep(context: &Context) -> Result<(), Failure> {
    let (allocator, granule) = exact(context)?;
    let buffer = allocator.allocate(granule)?.grow(2 * granule)?;
    write_pattern(&buffer, 3)?;
    let asleep = slept(buffer.sleep_with_contents(|_| {}))?;
    let free = context.device()?.memory_info()?.free;
    // All memory but one granule is somebody else's now.
    let other = allocator.allocate(free - granule)?;
    let Err(failed) = asleep.wake() else {
        return Err(Failure::new("it woke without memory"));
    };
    assert_eq!(
        failed.error.kind(),
        ErrorKind::OutOfMemory,
        "{}",
        failed.error
    );
    assert_eq!(context.device()?.memory_info()?.free, granule);
    drop(other);
    let awake = woken(failed.buffer.wake())?;
    expect_pattern(&awake, 2 * granule, 3)
}

fn a_sleeping_buffer_that_is_dropped_frees_its_addresses(context: &Context) -> Result<(), Failure> {
    context.leaves_nothing(|| {
        let (buffer, _) = three(context)?;
        drop(slept(buffer.sleep())?);
        let (buffer, _) = three(context)?;
        drop(slept(buffer.sleep_with_contents(|_| {}))?);
        Ok(())
    })
}
