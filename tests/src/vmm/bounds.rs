//! Ranges are checked by the crate: invariant 10, and the bounds of copies and slices.

use vmm::{Access, Allocation, Allocator, Buffer, ChunkPolicy, ErrorKind, MapOptions};

use super::{exact, expect_pattern, write_pattern};
use crate::{Case, Context, Failure, cases};

pub const CASES: &[Case] = cases![
    invariant_10_a_length_that_the_memory_does_not_cover_is_refused,
    invariant_10_sums_that_overflow_are_refused,
    invariant_10_an_import_of_a_stated_size_that_is_wrong_is_refused,
    a_grow_beyond_all_memory_is_refused_and_leaves_nothing: emulator_only(),
    the_device_is_not_its_own_peer,
    memory_without_the_access_says_so,
    copies_out_of_bounds_are_refused_and_change_nothing,
    slices_are_bounded_by_their_range,
    values_are_aligned_in_the_buffer_and_not_in_the_part,
    options_that_cannot_be_right_are_refused_before_any_driver_call,
];

#[track_caller]
fn expect_kind<T>(result: Result<T, vmm::Error>, kind: ErrorKind) {
    match result {
        Ok(_) => panic!("expected {kind:?}, and it succeeded"),
        Err(error) => assert_eq!(error.kind(), kind, "{error}"),
    }
}

fn chunk(allocator: &Allocator, size: usize) -> Result<Allocation, Failure> {
    let buffer = allocator.allocate(size)?;
    let chunk = buffer.chunks().next().map(|chunk| chunk.allocation.clone());
    chunk.ok_or_else(|| Failure::new("a buffer without a chunk"))
}

fn invariant_10_a_length_that_the_memory_does_not_cover_is_refused(
    context: &Context,
) -> Result<(), Failure> {
    context.leaves_nothing(|| {
        let (allocator, granularity) = exact(context)?;
        let device = context.device()?;
        let options = MapOptions::new(Access::ReadWrite).capacity(granularity);
        let two = || {
            Ok::<_, Failure>(vec![
                chunk(&allocator, granularity)?,
                chunk(&allocator, granularity)?,
            ])
        };
        let over = Buffer::from_allocations(&device, two()?, 2 * granularity + 1, &options);
        expect_kind(over, ErrorKind::InvalidArgument);
        let buffer = Buffer::from_allocations(&device, two()?, 2 * granularity, &options)?;
        assert_eq!(
            buffer.mapped_len(),
            2 * granularity,
            "a capacity that is too small grows"
        );
        expect_kind(
            buffer.extend(vec![], 2 * granularity + 1),
            ErrorKind::InvalidArgument,
        );
        expect_kind(
            buffer.extend(two()?, granularity),
            ErrorKind::InvalidArgument,
        );
        let longer = buffer.extend(two()?, 3 * granularity)?;
        write_pattern(&longer, 1)?;
        expect_pattern(&longer, longer.len(), 1)
    })
}

fn invariant_10_sums_that_overflow_are_refused(context: &Context) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let buffer = allocator.allocate(granularity)?;
    for size in [
        usize::MAX,
        usize::MAX - granularity,
        isize::MAX as usize + 1,
    ] {
        expect_kind(allocator.allocate(size), ErrorKind::InvalidArgument);
        expect_kind(
            allocator.allocate_with_capacity(0, size),
            ErrorKind::InvalidArgument,
        );
        expect_kind(buffer.grow(size), ErrorKind::InvalidArgument);
    }
    expect_kind(buffer.read(usize::MAX, &mut [0; 2]), ErrorKind::OutOfBounds);
    expect_kind(buffer.fill(1, usize::MAX, 0), ErrorKind::OutOfBounds);
    expect_kind(buffer.slice(usize::MAX..), ErrorKind::OutOfBounds);
    expect_kind(buffer.slice(..=usize::MAX), ErrorKind::OutOfBounds);
    Ok(())
}

fn invariant_10_an_import_of_a_stated_size_that_is_wrong_is_refused(
    context: &Context,
) -> Result<(), Failure> {
    context.leaves_nothing(|| {
        use std::os::fd::AsFd;
        let device = context.device()?;
        let shareable = Allocator::builder(&device)
            .handle_types(vmm::HandleTypes::POSIX_FD)
            .build()?;
        let granularity = shareable.granularity();
        let fd = chunk(&shareable, 2 * granularity)?.export_posix_fd()?;
        let options = MapOptions::new(Access::ReadWrite);
        for wrong in [granularity, 3 * granularity] {
            let imported = Allocation::import_posix_fd(&device, fd.as_fd(), wrong)?;
            let mapped = Buffer::from_allocations(&device, vec![imported], wrong, &options);
            expect_kind(mapped, ErrorKind::InvalidArgument);
        }
        for wrong in [0, 1] {
            let imported = Allocation::import_posix_fd(&device, fd.as_fd(), wrong)
                .and_then(|chunk| Buffer::from_allocations(&device, vec![chunk], wrong, &options));
            expect_kind(imported, ErrorKind::InvalidArgument);
        }
        Ok(())
    })
}

fn a_grow_beyond_all_memory_is_refused_and_leaves_nothing(
    context: &Context,
) -> Result<(), Failure> {
    context.leaves_nothing(|| {
        let (_, granularity) = exact(context)?;
        let allocator = Allocator::builder(&context.device()?)
            .chunk_policy(ChunkPolicy::exact().largest(granularity))
            .build()?;
        let buffer = allocator.allocate(granularity)?;
        // A list of so many chunks alone would be terabytes, and nobody has such a range.
        crate::emulated::start_trace();
        expect_kind(buffer.grow(1 << 62), ErrorKind::OutOfAddressSpace);
        let calls = crate::emulated::take_trace();
        assert!(calls.iter().all(|call| call.function != "cuMemCreate"));
        Ok(())
    })
}

fn the_device_is_not_its_own_peer(context: &Context) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let device = context.device()?;
    let options = MapOptions::new(Access::Read).peer(&device, Access::ReadWrite);
    let memory = vec![chunk(&allocator, granularity)?];
    let buffer = Buffer::from_allocations(&device, memory, granularity, &options);
    expect_kind(buffer, ErrorKind::InvalidArgument);
    Ok(())
}

fn memory_without_the_access_says_so(context: &Context) -> Result<(), Failure> {
    let (writable, granularity) = exact(context)?;
    let source = writable.allocate(granularity)?;
    for (access, reads) in [(Access::Read, true), (Access::None, false)] {
        let allocator = Allocator::builder(&context.device()?)
            .access(access)
            .build()?;
        let buffer = allocator.allocate(granularity)?;
        assert_eq!(buffer.read(0, &mut [0; 8]).is_ok(), reads);
        for refused in [
            buffer.write(0, &[1; 8]),
            buffer.fill(0, 8, 1),
            source.copy_to(0, &buffer, 0, 8),
        ] {
            let error = refused.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotPermitted, "{error}");
            assert!(error.to_string().contains(&access.to_string()), "{error}");
        }
    }
    Ok(())
}

fn copies_out_of_bounds_are_refused_and_change_nothing(context: &Context) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    // One byte less than is mapped: the driver would let the copies pass, the crate does not.
    let buffer = allocator.allocate(granularity - 1)?;
    let other = allocator.allocate(granularity)?;
    write_pattern(&buffer, 2)?;
    let len = buffer.len();
    for (offset, count) in [
        (0, len + 1),
        (len, 1),
        (len - 3, 4),
        (len + 1, 0),
        (2 * len, 1),
    ] {
        let mut bytes = vec![9; count];
        expect_kind(buffer.read(offset, &mut bytes), ErrorKind::OutOfBounds);
        assert!(bytes.iter().all(|byte| *byte == 9));
        expect_kind(buffer.write(offset, &bytes), ErrorKind::OutOfBounds);
        expect_kind(buffer.fill(offset, count, 1), ErrorKind::OutOfBounds);
        expect_kind(
            buffer.copy_to(offset, &other, 0, count),
            ErrorKind::OutOfBounds,
        );
        expect_kind(
            other.copy_to(0, &buffer, offset, count),
            ErrorKind::OutOfBounds,
        );
    }
    buffer.read(len, &mut [])?;
    expect_pattern(&buffer, len, 2)
}

fn slices_are_bounded_by_their_range(context: &Context) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let buffer = allocator.allocate(2 * granularity)?;
    buffer.fill(0, buffer.len(), 0)?;
    let slice = buffer.slice(granularity - 8..granularity + 8)?;
    assert_eq!((slice.len(), slice.offset()), (16, granularity - 8));
    assert_eq!(slice.address(), buffer.address() + slice.offset() as u64);
    slice.fill(7)?;
    expect_kind(slice.write(9, &[1; 8]), ErrorKind::OutOfBounds);
    expect_kind(slice.read(0, &mut [0; 17]), ErrorKind::OutOfBounds);
    expect_kind(slice.slice(4..17), ErrorKind::OutOfBounds);
    let inner = slice.slice(4..8)?;
    inner.write(0, &[1, 2, 3, 4])?;
    let mut around = [9; 18];
    buffer.read(granularity - 9, &mut around)?;
    assert_eq!(
        around,
        [0, 7, 7, 7, 7, 1, 2, 3, 4, 7, 7, 7, 7, 7, 7, 7, 7, 0]
    );
    Ok(())
}

fn values_are_aligned_in_the_buffer_and_not_in_the_part(context: &Context) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let buffer = allocator.allocate(granularity)?;
    write_pattern(&buffer, 2)?;
    let part = buffer.slice(2..)?;
    let values = [0x0102_0304_u32, 0x0506_0708];
    let mut back = [0_u32; 2];
    part.write_values(6, &values)?;
    part.read_values(6, &mut back)?;
    assert_eq!(back, values);
    buffer.read_values(8, &mut back)?;
    assert_eq!(back, values);
    for refused in [
        part.write_values(8, &values),
        part.read_values(8, &mut back),
        buffer.write_values(6, &values),
        buffer.read_values(6, &mut back),
    ] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("4 bytes"), "{error}");
    }
    let outside = part.write_values(granularity - 6, &values);
    expect_kind(outside, ErrorKind::OutOfBounds);
    // Nothing but what was meant was written.
    buffer.write_values(8, &[0_u64])?;
    let mut seen = [0; 24];
    buffer.read(0, &mut seen)?;
    write_pattern(&buffer, 2)?;
    buffer.write_values(8, &[0_u64])?;
    let mut expected = [0; 24];
    buffer.read(0, &mut expected)?;
    assert_eq!(seen, expected);
    Ok(())
}

fn options_that_cannot_be_right_are_refused_before_any_driver_call(
    context: &Context,
) -> Result<(), Failure> {
    let device = context.device()?;
    let build = |change: fn(vmm::AllocatorBuilder) -> vmm::AllocatorBuilder| {
        change(Allocator::builder(&device)).build()
    };
    expect_kind(
        build(|builder| builder.alignment(3)),
        ErrorKind::InvalidArgument,
    );
    let shared_host = build(|builder| {
        builder
            .location(vmm::Location::Host)
            .handle_types(vmm::HandleTypes::POSIX_FD)
    });
    assert!(shared_host.is_err());
    build(|builder| builder.alignment(1 << 30))?.allocate(1)?;
    let aligned = build(|builder| builder.alignment(1 << 30))?.allocate(1)?;
    assert_eq!(aligned.address() % (1 << 30), 0);
    Ok(())
}
