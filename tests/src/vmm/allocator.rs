//! The options of an allocator, and what many operations cost.

use std::time::{Duration, Instant};

use vmm::{
    Access, Allocator, AllocatorBuilder, Buffer, ErrorKind, HandleTypes, Location, MapOptions,
};

use super::{exact, expect_pattern, write_pattern};
use crate::driver::Choice;
use crate::{Case, Context, Failure, cases};

pub const CASES: &[Case] = cases![
    what_cannot_be_is_refused_before_anything_is_allocated: emulator_only(),
    sizes_round_up_and_the_buffer_says_both,
    a_length_that_overflows_is_refused,
    an_empty_buffer_makes_no_driver_call: emulator_only(),
    alignment_is_kept,
    a_buffer_of_given_allocations_is_shared_as_each_of_them_can,
    the_host_reads_memory_of_its_node_at_the_same_address,
    compression_and_rdma_are_granted_or_refused_in_words,
    a_thousand_grows_and_drops_give_every_byte_back: timeout(120),
    the_thousandth_grow_costs_as_much_as_the_tenth: timeout(120),
    the_thousandth_grow_makes_the_calls_of_the_tenth: emulator_only(),
];

fn what_cannot_be_is_refused_before_anything_is_allocated(
    context: &Context,
) -> Result<(), Failure> {
    let device = context.device()?;
    device.properties()?;
    type Options = fn(AllocatorBuilder) -> AllocatorBuilder;
    let wrong: &[(&str, Options)] = &[
        ("shared", |b| {
            b.location(Location::Host)
                .handle_types(HandleTypes::POSIX_FD)
        }),
        ("shared", |b| {
            b.location(Location::Host).handle_types(HandleTypes::FABRIC)
        }),
        ("negative", |b| b.location(Location::HostNuma(-1))),
        ("no such NUMA node", |b| {
            b.location(Location::HostNuma(9999))
        }),
        ("device memory", |b| {
            b.location(Location::HostNuma(0)).rdma(true)
        }),
        ("device memory", |b| {
            b.location(Location::Host).compression(true)
        }),
        ("power of two", |b| b.alignment(3)),
        ("multiple of", |b| b.address_hint(4096)),
    ];
    for (word, options) in wrong {
        crate::emulated::start_trace();
        let error = options(Allocator::builder(&device)).build().unwrap_err();
        assert!(
            error.to_string().contains(word),
            "{error} says nothing of {word}"
        );
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let calls = crate::emulated::take_trace();
        let asked = |call: &vmm_emulator::Call| call.function == "cuMemGetAllocationGranularity";
        assert!(calls.iter().all(asked), "{word}: {calls:?}");
    }
    let own = Allocator::builder(&device).peer(&device, Access::Read);
    assert_eq!(own.build().unwrap_err().kind(), ErrorKind::InvalidArgument);
    Ok(())
}

fn sizes_round_up_and_the_buffer_says_both(context: &Context) -> Result<(), Failure> {
    let (allocator, granule) = exact(context)?;
    for (len, mapped) in [(1, granule), (granule, granule), (granule + 1, 2 * granule)] {
        let buffer = allocator.allocate(len)?;
        assert_eq!((buffer.len(), buffer.mapped_len()), (len, mapped));
        assert_eq!(
            buffer.read(len, &mut [0]).unwrap_err().kind(),
            ErrorKind::OutOfBounds
        );
    }
    Ok(())
}

fn a_length_that_overflows_is_refused(context: &Context) -> Result<(), Failure> {
    let (allocator, granule) = exact(context)?;
    let buffer = allocator.allocate(granule)?;
    for len in [
        usize::MAX,
        usize::MAX - granule + 1,
        isize::MAX as usize + 1,
    ] {
        for error in [
            allocator.allocate(len).unwrap_err(),
            allocator.allocate_with_capacity(0, len).unwrap_err(),
            allocator.allocate_unmapped(len).unwrap_err(),
            buffer.grow(len).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        }
    }
    Ok(())
}

fn an_empty_buffer_makes_no_driver_call(context: &Context) -> Result<(), Failure> {
    let (allocator, _) = exact(context)?;
    crate::emulated::start_trace();
    let buffer = allocator.allocate(0)?;
    assert_eq!(
        (buffer.len(), buffer.address(), buffer.chunk_count()),
        (0, 0, 0)
    );
    buffer.read(0, &mut [])?;
    buffer.write(0, &[])?;
    drop(buffer.alias());
    buffer.close()?;
    let calls = crate::emulated::take_trace();
    assert!(calls.is_empty(), "{calls:?}");
    Ok(())
}

fn a_buffer_of_given_allocations_is_shared_as_each_of_them_can(
    context: &Context,
) -> Result<(), Failure> {
    let device = context.device()?;
    let private = Allocator::builder(&device).build()?;
    let shared = Allocator::builder(&device)
        .handle_types(HandleTypes::POSIX_FD)
        .build()?;
    let size = shared.granularity();
    let (first, second) = (
        shared.allocate_unmapped(size)?,
        shared.allocate_unmapped(size)?,
    );
    let options = MapOptions::new(Access::ReadWrite).capacity(3 * size);
    let buffer = Buffer::from_allocations(&device, vec![first], size, &options)?;
    assert_eq!(buffer.handle_types(), HandleTypes::POSIX_FD);
    let longer = buffer.extend(vec![second], 2 * size)?;
    assert_eq!(longer.handle_types(), HandleTypes::POSIX_FD);
    let mixed = longer.extend(vec![private.allocate_unmapped(size)?], 3 * size)?;
    assert!(!mixed.is_shareable(), "one chunk of three cannot be shared");
    assert!(longer.is_shareable());
    Ok(())
}

fn alignment_is_kept(context: &Context) -> Result<(), Failure> {
    let alignment = 1 << 30;
    let allocator = Allocator::builder(&context.device()?)
        .alignment(alignment)
        .build()?;
    for _ in 0..4 {
        assert_eq!(allocator.allocate(1)?.address() % alignment as u64, 0);
    }
    Ok(())
}

fn the_host_reads_memory_of_its_node_at_the_same_address(context: &Context) -> Result<(), Failure> {
    let device = context.device()?;
    let node = device.properties()?.host_numa_id.unwrap_or(0);
    let allocator = Allocator::builder(&device)
        .location(Location::HostNuma(node))
        .handle_types(HandleTypes::POSIX_FD)
        .build()?;
    let buffer = allocator.allocate(2 * allocator.granularity())?;
    write_pattern(&buffer, 6)?;
    buffer.synchronize()?;
    let mut expected = vec![0; buffer.len()];
    buffer.read(0, &mut expected)?;
    let address = std::ptr::with_exposed_provenance::<u8>(buffer.address() as usize);
    // SAFETY: memory of the host, mapped with access for it for as long as `buffer` lives, and no
    // work is under way.
    let seen = unsafe { std::slice::from_raw_parts(address, buffer.len()) };
    assert!(seen == expected, "the host sees other bytes");
    expect_pattern(&buffer, buffer.len(), 6)
}

fn compression_and_rdma_are_granted_or_refused_in_words(context: &Context) -> Result<(), Failure> {
    let device = context.device()?;
    let can = device.properties()?.clone();
    for (offered, builder) in [
        (
            can.compression,
            Allocator::builder(&device).compression(true),
        ),
        (can.rdma, Allocator::builder(&device).rdma(true)),
    ] {
        match builder.build() {
            Ok(allocator) => {
                assert!(offered);
                let buffer = allocator.allocate(1)?;
                write_pattern(&buffer, 1)?;
                expect_pattern(&buffer, 1, 1)?;
            }
            Err(error) => {
                assert!(!offered, "{error}");
                assert_eq!(error.kind(), ErrorKind::NotSupported);
            }
        }
    }
    Ok(())
}

fn a_thousand_grows_and_drops_give_every_byte_back(context: &Context) -> Result<(), Failure> {
    let (allocator, granule) = exact(context)?;
    context.leaves_nothing(|| {
        for round in 0..1000 {
            let buffer = allocator.allocate(granule)?;
            let grown = buffer.grow((2 + round % 3) * granule)?;
            // Now and then both ends grow, so that one of them has to move.
            let other = (round % 10 == 0)
                .then(|| buffer.grow(3 * granule))
                .transpose()?;
            drop((buffer, grown, other));
        }
        Ok(())
    })
}

fn the_thousandth_grow_costs_as_much_as_the_tenth(context: &Context) -> Result<(), Failure> {
    // The emulator's own cost grows with what it holds: there, calls are counted instead.
    let limit = if *context.choice() == Choice::Emulator {
        20.0
    } else {
        1.5
    };
    let (allocator, granule) = exact(context)?;
    let mut buffer = allocator.allocate_with_capacity(granule, 1100 * granule)?;
    let mut times = Vec::new();
    for chunks in 2..=1050 {
        let start = Instant::now();
        buffer = buffer.grow(chunks * granule)?;
        times.push(start.elapsed());
    }
    let median = |times: &[Duration]| {
        let mut times = times.to_vec();
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64()
    };
    let (early, late) = (median(&times[5..55]), median(&times[950..1050 - 1]));
    println!("grows around the 10th {early:.2e} s, around the 1000th {late:.2e} s");
    assert!(late <= limit * early, "{late:.2e} s against {early:.2e} s");
    Ok(())
}

fn the_thousandth_grow_makes_the_calls_of_the_tenth(context: &Context) -> Result<(), Failure> {
    let (allocator, granule) = exact(context)?;
    let mut buffer = allocator.allocate_with_capacity(granule, 1001 * granule)?;
    let mut tenth = Vec::new();
    for chunks in 2..=1001 {
        crate::emulated::start_trace();
        buffer = buffer.grow(chunks * granule)?;
        let calls: Vec<_> = crate::emulated::take_trace()
            .into_iter()
            .map(|call| call.function)
            .collect();
        if chunks == 10 {
            tenth = calls;
        } else if chunks > 10 {
            assert_eq!(calls, tenth, "the grow to {chunks} chunks");
        }
    }
    for call in ["cuMemCreate", "cuMemMap", "cuMemSetAccess"] {
        assert_eq!(
            tenth.iter().filter(|name| **name == call).count(),
            1,
            "{tenth:?}"
        );
    }
    Ok(())
}
