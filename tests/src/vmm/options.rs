//! What a device does not offer is refused in a sentence, each ability by itself; what it offers
//! is granted, and can be asked for.

use std::os::fd::AsFd;

use vmm::sys::CUdevice_attribute as Attribute;
use vmm::{
    Access, Allocation, Allocator, AllocatorBuilder, Buffer, ChunkPolicy, ErrorKind, Granularity,
    HandleTypes, Location, MapOptions,
};

use super::{exact, expect_pattern, write_pattern};
use crate::{Case, Context, Failure, cases};

pub const CASES: &[Case] = cases![
    an_ability_that_the_device_lacks_is_refused_by_its_name: emulator_only(),
    a_dma_buf_is_refused_where_there_is_none: emulator_only(),
    a_dma_buf_of_a_wrong_range_is_refused: emulator_only(),
    granularity_can_be_the_least,
    an_address_hint_is_followed_where_it_is_free,
    an_alignment_that_no_range_has_is_named: emulator_only(),
    a_policy_without_bounds_still_grows,
    a_buffer_is_readable_by_whoever_each_chunk_lies_with,
    allocations_say_whether_they_are_compressed,
];

type Options = fn(AllocatorBuilder) -> AllocatorBuilder;

/// Attributes, what an error says without each, and what needs it.
const ABILITIES: &[(Attribute, &str, Options)] = &[
    (
        Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
        "virtual memory management",
        |b| b,
    ),
    (
        Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
        "file descriptor",
        |b| b.handle_types(HandleTypes::POSIX_FD),
    ),
    (
        Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED,
        "fabric handle",
        |b| b.handle_types(HandleTypes::FABRIC),
    ),
    (
        Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
        "RDMA",
        |b| b.rdma(true),
    ),
    (
        Attribute::CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED,
        "compressible",
        |b| b.compression(true),
    ),
    (
        Attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
        "NUMA node",
        |b| b.location(Location::HostNuma(0)),
    ),
];

/// One emulated device for each ability, which lacks only that.
fn an_ability_that_the_device_lacks_is_refused_by_its_name(
    context: &Context,
) -> Result<(), Failure> {
    let number = |attribute: &Attribute| attribute.0.cast_signed();
    let mut config = vmm_emulator::Config::new()
        .devices(ABILITIES.len() + 1)
        .fabric(vmm_emulator::Fabric::Available);
    for (attribute, ..) in ABILITIES {
        config = config.attribute(number(attribute), 1);
    }
    for (ordinal, (attribute, ..)) in ABILITIES.iter().enumerate() {
        let lacking = number(attribute);
        config = config.device(ordinal, |device| {
            device.attributes.retain(|(known, _)| *known != lacking);
            device.attributes.push((lacking, 0));
        });
    }
    config.install()?;
    let driver = context.driver()?;
    for (ordinal, (_, words, options)) in ABILITIES.iter().enumerate() {
        let lacking = driver.device(ordinal)?;
        let error = options(Allocator::builder(&lacking)).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotSupported, "{error}");
        assert!(error.to_string().contains(words), "{error}: not {words}");
        // It is nothing else that is refused.
        let able = driver.device(ABILITIES.len())?;
        options(Allocator::builder(&able)).build()?;
        for (other, (_, _, options)) in ABILITIES.iter().enumerate() {
            if other != ordinal && ordinal != 0 {
                options(Allocator::builder(&lacking)).build()?;
            }
        }
    }
    Ok(())
}

fn a_dma_buf_is_refused_where_there_is_none(context: &Context) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let error = allocator.allocate(granularity)?.export_dma_buf(..);
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSupported);
    assert!(error.to_string().contains("dma-buf"), "{error}");
    Ok(())
}

fn a_dma_buf_of_a_wrong_range_is_refused(context: &Context) -> Result<(), Failure> {
    let dma_buf = Attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED;
    vmm_emulator::Config::new()
        .attribute(dma_buf.0.cast_signed(), 1)
        .install()?;
    let (allocator, granularity) = exact(context)?;
    let buffer = allocator.allocate(granularity)?;
    let kind = |range: std::ops::Range<usize>| {
        let exported = buffer.export_dma_buf(range);
        exported.map_err(|error| error.kind()).map(drop)
    };
    assert_eq!(kind(0..granularity + 1), Err(ErrorKind::OutOfBounds));
    assert_eq!(kind(8..8), Err(ErrorKind::InvalidArgument));
    // The emulator has none, whatever its attribute was set to: it must not pretend.
    assert_eq!(kind(0..granularity), Err(ErrorKind::NotSupported));
    Ok(())
}

fn granularity_can_be_the_least(context: &Context) -> Result<(), Failure> {
    let device = context.device()?;
    let with = |granularity| {
        Allocator::builder(&device)
            .granularity(granularity)
            .chunk_policy(ChunkPolicy::exact())
            .build()
    };
    let (least, usual) = (with(Granularity::Minimum)?, with(Granularity::Recommended)?);
    assert!(least.granularity() <= usual.granularity());
    assert_eq!(
        least.allocate(1)?.mapped_len(),
        least.granularity(),
        "a chunk is one granule"
    );
    let grown = least.allocate(1)?.grow(least.granularity() + 1)?;
    assert_eq!(grown.mapped_len(), 2 * least.granularity());
    Ok(())
}

fn an_address_hint_is_followed_where_it_is_free(context: &Context) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    // Where something was a moment ago something can be.
    let address = {
        let roomy = allocator.allocate_with_capacity(0, 64 * granularity)?;
        let inside = roomy.grow(granularity)?;
        inside.address() + 16 * granularity as u64
    };
    let hinted = Allocator::builder(&context.device()?)
        .address_hint(address)
        .build()?;
    let buffer = hinted.allocate(granularity)?;
    assert_eq!(buffer.address(), address);
    // Where it is not free, the next best is taken.
    assert_ne!(hinted.allocate(granularity)?.address(), address);
    Ok(())
}

fn an_alignment_that_no_range_has_is_named(context: &Context) -> Result<(), Failure> {
    let alignment = 1 << 50;
    let allocator = Allocator::builder(&context.device()?)
        .alignment(alignment)
        .build()?;
    let error = allocator.allocate(1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfAddressSpace, "{error}");
    let text = error.to_string();
    assert!(text.contains(&alignment.to_string()), "{text}");
    assert!(text.contains("smaller alignment"), "{text}");
    Ok(())
}

fn a_policy_without_bounds_still_grows(context: &Context) -> Result<(), Failure> {
    let policy = ChunkPolicy::growing()
        .smallest(usize::MAX)
        .most_ahead(usize::MAX);
    let allocator = Allocator::builder(&context.device()?)
        .chunk_policy(policy)
        .build()?;
    let granularity = allocator.granularity();
    let buffer = allocator.allocate(granularity)?;
    let grown = buffer.grow(2 * granularity)?;
    write_pattern(&grown, 1)?;
    expect_pattern(&grown, 2 * granularity, 1)
}

fn a_buffer_is_readable_by_whoever_each_chunk_lies_with(context: &Context) -> Result<(), Failure> {
    let device = context.device()?;
    let node = device.properties()?.host_numa_id.unwrap_or(0);
    let on = |location| {
        let builder = Allocator::builder(&device).location(location);
        builder.chunk_policy(ChunkPolicy::exact()).build()
    };
    let (here, there) = (on(Location::Device)?, on(Location::HostNuma(node))?);
    let size = here.granularity().max(there.granularity());
    let of = |allocator: &Allocator| allocator.allocate_unmapped(size);
    let options = MapOptions::new(Access::ReadWrite);
    for host in 0..2 {
        let mut chunks = vec![of(&here)?, of(&here)?];
        chunks[host] = of(&there)?;
        let buffer = Buffer::from_allocations(&device, chunks, 2 * size, &options)?;
        write_pattern(&buffer, 9)?;
        expect_pattern(&buffer, 2 * size, 9)?;
        let mut expected = vec![0; size];
        buffer.read(host * size, &mut expected)?;
        let address = buffer.address() as usize + host * size;
        let address = std::ptr::with_exposed_provenance::<u8>(address);
        // SAFETY: memory of the host, mapped with access for it for as long as `buffer` lives, and
        // no work is under way.
        let seen = unsafe { std::slice::from_raw_parts(address, size) };
        assert!(seen == expected, "the host sees other bytes");
        let grown = buffer.grow_with(&there, 3 * size)?;
        write_pattern(&grown, 10)?;
        expect_pattern(&grown, 3 * size, 10)?;
        // Over every bound, and back and forth.
        grown.fill(1, 3 * size - 2, 7)?;
        for bound in [size, 2 * size] {
            let mut bytes = [0; 16];
            grown.read(bound - 8, &mut bytes)?;
            assert_eq!(bytes, [7; 16], "at {bound}");
            grown.write(bound - 3, &[9; 6])?;
            grown.read(bound - 4, &mut bytes[..8])?;
            assert_eq!(bytes[..8], [7, 9, 9, 9, 9, 9, 9, 7], "at {bound}");
        }
        grown.fill(0, 3 * size, 8)?;
        let plain = here.allocate(3 * size)?;
        grown.copy_to(5, &plain, 5, 3 * size - 5)?;
        plain.copy_to(size / 2, &grown, 0, 2 * size)?;
        let mut bytes = vec![0; 3 * size];
        grown.read(0, &mut bytes)?;
        assert!(bytes.iter().all(|&byte| byte == 8));
    }
    Ok(())
}

fn allocations_say_whether_they_are_compressed(context: &Context) -> Result<(), Failure> {
    let device = context.device()?;
    let shared = Allocator::builder(&device)
        .handle_types(HandleTypes::POSIX_FD)
        .build()?;
    let plain = shared.allocate_unmapped(shared.granularity())?;
    assert!(!plain.is_compressed()?);
    if device.properties()?.compression {
        let builder = Allocator::builder(&device).compression(true);
        let allocator = builder.build()?;
        // A driver may grant less than was asked for: it is what it says that counts.
        let compressed = allocator.allocate_unmapped(allocator.granularity())?;
        println!("compression granted: {}", compressed.is_compressed()?);
    }
    let fd = plain.export_posix_fd()?;
    let imported = Allocation::import_posix_fd(&device, fd.as_fd(), plain.size())?;
    assert!(!imported.is_compressed()?);
    assert!(imported.is_imported() && !plain.is_imported());
    Ok(())
}
