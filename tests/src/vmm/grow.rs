//! Buffers that grow and shrink: invariants 4, 5, 6 and 7.

use vmm::{Access, Allocator, Buffer, ChunkPolicy, ErrorKind};

use super::{exact, exact_with_room, expect_pattern, write_pattern};
use crate::{Case, Context, Failure, cases};

pub const CASES: &[Case] = cases![
    invariant_04_chunks_are_ascending_and_contiguous,
    invariant_04_the_length_is_a_prefix_of_the_chunks,
    invariant_04_growing_and_shrinking_leave_the_input_as_it_was,
    what_grew_in_place_starts_with_what_was_there,
    invariant_05_growing_in_place_keeps_address_and_bytes,
    invariant_05_growing_moved_keeps_the_bytes_and_both_alias,
    invariant_05_a_chain_of_moves_keeps_every_byte,
    invariant_05_shrink_then_grow_uses_the_same_addresses,
    invariant_05_a_shrink_after_a_grow_beside_keeps_the_addresses: emulator_only(),
    invariant_05_small_steps_make_few_chunks,
    invariant_06_the_address_holds_up_to_the_capacity,
    invariant_06_beyond_the_capacity_it_still_grows,
    invariant_07_access_stays_with_the_chunk_when_growing_in_place,
    invariant_07_access_travels_with_the_chunk_when_moved,
    empty_buffers_take_no_memory_and_can_grow,
];

#[track_caller]
fn assert_contiguous(buffer: &Buffer) {
    let mut next = buffer.address();
    let mut offset = 0;
    for (index, chunk) in buffer.chunks().enumerate() {
        assert_eq!(chunk.index, index);
        assert_eq!(chunk.address, next);
        assert_eq!(chunk.offset, offset);
        assert_eq!(chunk.size, chunk.allocation.size());
        next += chunk.size as u64;
        offset += chunk.size;
    }
    assert_eq!(offset, buffer.mapped_len());
    assert_eq!(buffer.chunks().len(), buffer.chunk_count());
    assert!(buffer.len() <= buffer.mapped_len());
    assert!(buffer.mapped_len() <= buffer.capacity());
}

fn invariant_04_chunks_are_ascending_and_contiguous(context: &Context) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let mut buffer = allocator.allocate(3 * granularity)?;
    assert_contiguous(&buffer);
    for step in [1, 5, 2, 7, 1] {
        buffer = buffer.grow(buffer.mapped_len() + step * granularity)?;
        assert_contiguous(&buffer);
        assert_contiguous(&buffer.shrink(2 * granularity + 1)?);
    }
    assert_eq!(buffer.chunk_count(), 6);
    let sizes: Vec<usize> = buffer
        .chunks()
        .map(|chunk| chunk.size / granularity)
        .collect();
    assert_eq!(sizes, [3, 1, 5, 2, 7, 1]);
    Ok(())
}

fn invariant_04_the_length_is_a_prefix_of_the_chunks(context: &Context) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let buffer = allocator.allocate(granularity + 1)?;
    assert_eq!(
        (buffer.len(), buffer.mapped_len()),
        (granularity + 1, 2 * granularity)
    );
    let free = context.snapshot()?.free();
    let longer = buffer.grow(2 * granularity)?;
    assert_eq!(context.snapshot()?.free(), free, "it was mapped already");
    assert_eq!((longer.len(), longer.chunk_count()), (2 * granularity, 1));
    let shorter = longer.shrink(1)?;
    assert_eq!((shorter.len(), shorter.mapped_len()), (1, 2 * granularity));
    let none = longer.shrink(0)?;
    assert_eq!(
        (none.len(), none.mapped_len(), none.chunk_count()),
        (0, 0, 0)
    );
    assert!(buffer.grow(1).is_err(), "that is what shrink is for");
    assert!(
        buffer.shrink(2 * granularity).is_err(),
        "that is what grow is for"
    );
    Ok(())
}

fn invariant_04_growing_and_shrinking_leave_the_input_as_it_was(
    context: &Context,
) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let buffer = allocator.allocate_with_capacity(2 * granularity, 16 * granularity)?;
    write_pattern(&buffer, 4)?;
    let layout = buffer.layout();
    let grown = buffer.grow(4 * granularity)?;
    let shrunk = grown.shrink(granularity)?;
    let other = buffer.grow(8 * granularity)?;
    assert_eq!(buffer.layout().rows, layout.rows);
    assert_eq!(buffer.len(), 2 * granularity);
    expect_pattern(&buffer, buffer.len(), 4)?;
    drop((grown, shrunk, other));
    assert_eq!(buffer.layout().rows, layout.rows);
    expect_pattern(&buffer, buffer.len(), 4)
}

fn what_grew_in_place_starts_with_what_was_there(context: &Context) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let work = || {
        let shorter = allocator.allocate_with_capacity(granularity, 4 * granularity)?;
        let buffer = shorter.grow(2 * granularity)?;
        let (prefix, nothing) = (buffer.prefix(), allocator.allocate(0)?.prefix());
        let longer = buffer.grow(3 * granularity)?;
        let longest = longer.grow(4 * granularity)?;
        let alias = buffer.alias();
        for begins in [&buffer, &alias, &longer, &longest] {
            assert!(begins.starts_with(&prefix));
            assert!(begins.starts_with(&nothing));
        }
        assert!(longest.shrink(2 * granularity)?.starts_with(&prefix));
        assert!(!shorter.starts_with(&prefix));
        assert!(!buffer.starts_with(&longer.prefix()));
        let other = allocator.allocate(2 * granularity)?;
        assert!(!other.starts_with(&prefix));
        // The addresses behind are taken, so it moves.
        let moved = buffer.grow(3 * granularity)?;
        assert_ne!(moved.address(), buffer.address());
        assert!(!moved.starts_with(&prefix));
        // Other memory at the same addresses.
        let address = buffer.address();
        drop((buffer, alias, longer, longest));
        let again = shorter.grow(2 * granularity)?;
        assert_eq!(again.address(), address);
        assert!(!again.starts_with(&prefix));
        assert!(again.starts_with(&shorter.prefix()));
        Ok(())
    };
    work()?;
    context.leaves_nothing(work)
}

fn invariant_05_growing_in_place_keeps_address_and_bytes(context: &Context) -> Result<(), Failure> {
    context.leaves_nothing(|| {
        let (allocator, granularity) = exact(context)?;
        let buffer = allocator.allocate_with_capacity(2 * granularity, 8 * granularity)?;
        write_pattern(&buffer, 5)?;
        let grown = buffer.grow(5 * granularity)?;
        assert_eq!(grown.address(), buffer.address());
        expect_pattern(&grown, buffer.len(), 5)?;
        expect_aliasing(&buffer, &grown)
    })
}

fn invariant_05_growing_moved_keeps_the_bytes_and_both_alias(
    context: &Context,
) -> Result<(), Failure> {
    context.leaves_nothing(|| {
        let (allocator, granularity) = exact(context)?;
        let buffer = allocator.allocate_with_capacity(2 * granularity, 3 * granularity)?;
        write_pattern(&buffer, 6)?;
        let in_place = buffer.grow(3 * granularity)?;
        in_place.write(2 * granularity, &[0x55; 64])?;
        // The place behind is taken by the other, so this one has to move.
        let moved = buffer.grow(3 * granularity)?;
        assert_eq!(in_place.address(), buffer.address());
        assert_ne!(moved.address(), buffer.address());
        expect_pattern(&moved, buffer.len(), 6)?;
        moved.write(2 * granularity, &[0xaa; 64])?;
        let mut bytes = [0; 64];
        in_place.read(2 * granularity, &mut bytes)?;
        assert_eq!(bytes, [0x55; 64], "the new chunks are apart");
        expect_aliasing(&buffer, &moved)?;
        expect_aliasing(&in_place.shrink(2 * granularity)?, &moved)?;
        drop(buffer);
        drop(in_place);
        expect_pattern(&moved, 8, 6)
            .err()
            .ok_or_else(|| Failure::new("written over above"))?;
        Ok(())
    })
}

/// Bytes written through one are read through the other, both ways.
#[track_caller]
fn expect_aliasing(a: &Buffer, b: &Buffer) -> Result<(), Failure> {
    for (from, to, value) in [(a, b, 0x11), (b, a, 0x22)] {
        from.write(a.len() - 32, &[value; 32])?;
        from.write(0, &[value; 32])?;
        let mut bytes = [0; 32];
        for offset in [0, a.len() - 32] {
            to.read(offset, &mut bytes)?;
            assert_eq!(bytes, [value; 32]);
        }
    }
    Ok(())
}

fn invariant_05_a_chain_of_moves_keeps_every_byte(context: &Context) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let mut buffer = allocator.allocate(granularity)?;
    write_pattern(&buffer, 7)?;
    let mut addresses = vec![buffer.address()];
    for _ in 0..12 {
        // Takes the place behind the buffer, where that is free, so that the next one moves.
        let squatter = buffer.grow(buffer.capacity() + granularity)?;
        let grown = buffer.grow(buffer.len() + granularity)?;
        expect_pattern(&grown, buffer.len(), 7)?;
        write_pattern(&grown, 7)?;
        addresses.push(grown.address());
        buffer = grown;
        drop(squatter);
    }
    addresses.sort_unstable();
    addresses.dedup();
    assert!(addresses.len() > 1, "it never moved");
    expect_pattern(&buffer, buffer.len(), 7)
}

fn invariant_05_shrink_then_grow_uses_the_same_addresses(context: &Context) -> Result<(), Failure> {
    context.leaves_nothing(|| {
        let (allocator, granularity) = exact(context)?;
        let first = allocator.allocate_with_capacity(granularity, 8 * granularity)?;
        let long = first.grow(6 * granularity)?;
        write_pattern(&long, 8)?;
        let short = long.shrink(granularity)?;
        drop((first, long));
        let again = short.grow(4 * granularity)?;
        assert_eq!(again.address(), short.address());
        assert_eq!(again.capacity(), 8 * granularity);
        expect_pattern(&again, granularity, 8)
    })
}

/// Where the end lies in a second reservation, its room is kept by what was cut before it.
fn invariant_05_a_shrink_after_a_grow_beside_keeps_the_addresses(
    context: &Context,
) -> Result<(), Failure> {
    context.leaves_nothing(|| {
        let (allocator, granularity) = exact_with_room(context)?;
        let full = allocator.allocate_with_capacity(2 * granularity, 2 * granularity)?;
        let beside = full.grow(5 * granularity)?;
        assert_eq!(beside.address(), full.address(), "it moved");
        // And into a third reservation, behind the whole of the second.
        let capacity = beside.capacity();
        let third = beside.grow(capacity + granularity)?;
        assert_eq!(third.address(), full.address(), "it moved");
        assert!(third.capacity() > capacity);
        write_pattern(&third, 3)?;
        for len in [4 * granularity, 2 * granularity, granularity, 1] {
            let short = third.shrink(len)?;
            let kept = if len > 2 * granularity {
                third.capacity()
            } else {
                capacity
            };
            assert_eq!(short.capacity(), kept, "{len} bytes");
        }
        let short = third.shrink(2 * granularity)?;
        drop((beside, full, third));
        // What somebody else would take now stays out of the range.
        let (allocator, _) = exact(context)?;
        let others = [allocator.allocate(granularity)?, allocator.allocate(1)?];
        let again = short.grow(5 * granularity)?;
        assert_eq!(again.address(), short.address());
        expect_pattern(&again, 2 * granularity, 3)?;
        drop(others);
        Ok(())
    })
}

fn invariant_05_small_steps_make_few_chunks(context: &Context) -> Result<(), Failure> {
    let allocator = Allocator::builder(&context.device()?)
        .chunk_policy(ChunkPolicy::growing())
        .build()?;
    let granularity = allocator.granularity();
    let mut buffer = allocator.allocate_with_capacity(granularity, 512 * granularity)?;
    let address = buffer.address();
    for step in 2..=256 {
        buffer = buffer.grow(step * granularity)?;
    }
    assert_contiguous(&buffer);
    assert_eq!(buffer.address(), address);
    assert!(
        buffer.chunk_count() <= 32,
        "{} chunks",
        buffer.chunk_count()
    );
    Ok(())
}

fn invariant_06_the_address_holds_up_to_the_capacity(context: &Context) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let capacity = 32 * granularity;
    let mut buffer = allocator.allocate_with_capacity(granularity, capacity)?;
    let address = buffer.address();
    for step in 2..=32 {
        buffer = buffer.grow(step * granularity)?;
        assert_eq!(buffer.address(), address);
        assert!(buffer.capacity() >= capacity);
    }
    assert_eq!(buffer.mapped_len(), capacity);
    Ok(())
}

fn invariant_06_beyond_the_capacity_it_still_grows(context: &Context) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let buffer = allocator.allocate_with_capacity(granularity, 2 * granularity)?;
    write_pattern(&buffer, 9)?;
    let grown = buffer.grow(5 * granularity)?;
    assert_contiguous(&grown);
    expect_pattern(&grown, granularity, 9)
}

fn with_access(context: &Context, access: Access) -> Result<Allocator, Failure> {
    Ok(Allocator::builder(&context.device()?)
        .chunk_policy(ChunkPolicy::exact())
        .access(access)
        .build()?)
}

fn invariant_07_access_stays_with_the_chunk_when_growing_in_place(
    context: &Context,
) -> Result<(), Failure> {
    let writable = with_access(context, Access::ReadWrite)?;
    let readable = with_access(context, Access::Read)?;
    let granularity = writable.granularity();
    let buffer = readable.allocate_with_capacity(granularity, 4 * granularity)?;
    let grown = buffer.grow_with(&writable, 2 * granularity)?;
    assert_eq!(grown.address(), buffer.address());
    expect_read_only_then_writable(&grown, granularity)
}

fn invariant_07_access_travels_with_the_chunk_when_moved(context: &Context) -> Result<(), Failure> {
    let writable = with_access(context, Access::ReadWrite)?;
    let readable = with_access(context, Access::Read)?;
    let granularity = writable.granularity();
    let buffer = readable.allocate_with_capacity(granularity, 2 * granularity)?;
    let taken = buffer.grow(2 * granularity)?;
    let moved = buffer.grow_with(&writable, 2 * granularity)?;
    assert_ne!(moved.address(), taken.address());
    expect_read_only_then_writable(&moved, granularity)
}

#[track_caller]
fn expect_read_only_then_writable(buffer: &Buffer, granularity: usize) -> Result<(), Failure> {
    let access: Vec<Access> = buffer.chunks().map(|chunk| chunk.access).collect();
    assert_eq!(access, [Access::Read, Access::ReadWrite]);
    buffer.read(0, &mut [0; 16])?;
    assert!(
        buffer.write(0, &[1; 16]).is_err(),
        "the first chunk is read-only"
    );
    assert!(
        buffer.write(granularity - 8, &[1; 16]).is_err(),
        "and is not written in part"
    );
    buffer.write(granularity, &[1; 16])?;
    let mut bytes = [0; 16];
    buffer.read(granularity, &mut bytes)?;
    assert_eq!(bytes, [1; 16]);
    Ok(())
}

fn empty_buffers_take_no_memory_and_can_grow(context: &Context) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let before = context.snapshot()?;
    let empty = allocator.allocate(0)?;
    context.assert_as(&before)?;
    assert!(empty.is_empty());
    assert_eq!(empty.chunk_count(), 0);
    empty.read(0, &mut [])?;
    let grown = empty.grow(granularity)?;
    write_pattern(&grown, 10)?;
    let error = allocator.allocate(usize::MAX).err();
    let kind = error.map(|error| error.kind());
    assert_eq!(kind, Some(ErrorKind::InvalidArgument));
    Ok(())
}
