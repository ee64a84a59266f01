//! Several GPUs: memory of one that another reads and writes, and buffers that lie on two.
//!
//! The emulator has as many devices as a case asks for; on a machine with fewer GPUs a case is not
//! listed, and the runner says so.

mod speed;

use vmm::{Access, Allocator, Buffer, ChunkPolicy, Device, ErrorKind, HandleTypes, Stream};
use vmm_ipc::{Channel, ErrorKind as IpcError, Exporter, ImportOptions, PeerPolicy};

use crate::{Case, Context, Failure, Link, Role, cases};

/// Every case with several devices.
pub fn cases() -> Vec<Case> {
    [CASES, speed::CASES].concat()
}

const CASES: &[Case] = cases![
    another_device_reads_and_writes_what_it_was_given: devices(2),
    another_device_only_reads_what_it_may_only_read: devices(2),
    another_device_is_refused_what_it_was_not_given: devices(2),
    without_peer_access_the_option_is_refused_before_anything_is_mapped: emulator_only() devices(2),
    without_peer_access_given_memory_is_refused_before_anything_is_mapped: emulator_only() devices(2),
    a_buffer_grows_from_one_device_to_the_other: devices(2),
    a_buffer_moves_with_its_chunks_on_two_devices: devices(2),
    a_buffer_on_two_devices_arrives_as_one_range: devices(2),
    an_importer_that_numbers_its_devices_otherwise_finds_the_right_one: devices(2),
    an_importer_that_sees_one_device_by_uuid_finds_it: devices(2),
    an_importer_without_the_owners_device_is_refused_in_words: devices(2),
    an_importer_without_the_second_device_of_a_buffer_is_refused_in_words: devices(2),
    a_buffer_over_eight_devices_is_one_range: devices(8),
];

/// The roles of these cases.
pub const ROLES: &[Role] = &[
    Role {
        name: "peers::importer",
        run: importer,
    },
    Role {
        name: "peers::refused importer",
        run: refused_importer,
    },
    Role {
        name: "peers::working importer",
        run: speed::working_importer,
    },
];

fn device(context: &Context, ordinal: usize) -> Result<Device, Failure> {
    Ok(context.driver()?.device(ordinal)?)
}

/// Memory on `owner`, one granule a chunk, that every one of `all` reads and writes.
fn allocator(owner: &Device, all: &[Device]) -> Result<Allocator, Failure> {
    let mut builder = Allocator::builder(owner)
        .handle_types(HandleTypes::POSIX_FD)
        .chunk_policy(ChunkPolicy::exact());
    for peer in all.iter().filter(|peer| *peer != owner) {
        builder = builder.peer(peer, Access::ReadWrite);
    }
    Ok(builder.build()?)
}

/// Fills one chunk by a stream of `device`.
fn fill_by(device: &Device, buffer: &Buffer, chunk: usize, value: u8) -> Result<(), Failure> {
    let granule = buffer.granularity();
    let stream = Stream::new(device)?;
    buffer.fill_on(&stream, chunk * granule, granule, value)?;
    Ok(stream.synchronize()?)
}

fn expect(buffer: &Buffer, values: &[u8]) -> Result<(), Failure> {
    let granule = buffer.granularity();
    let mut bytes = vec![0; granule];
    for (chunk, &value) in values.iter().enumerate() {
        buffer.read(chunk * granule, &mut bytes)?;
        assert!(
            bytes.iter().all(|&byte| byte == value),
            "chunk {chunk} holds {} and not {value}",
            bytes[0]
        );
    }
    Ok(())
}

fn another_device_reads_and_writes_what_it_was_given(context: &Context) -> Result<(), Failure> {
    let (owner, peer) = (device(context, 0)?, device(context, 1)?);
    assert!(peer.can_access(&owner)?);
    let both = [owner.clone(), peer.clone()];
    let allocator = allocator(&owner, &both)?;
    let work = || {
        let granule = allocator.granularity();
        let buffer = allocator.allocate(granule)?;
        fill_by(&peer, &buffer, 0, 7)?;
        expect(&buffer, &[7])?;
        // The other way: the peer copies it into memory of its own.
        let there = Allocator::builder(&peer).build()?.allocate(granule)?;
        let stream = Stream::new(&peer)?;
        buffer.copy_to_on(&stream, 0, &there, 0, granule)?;
        stream.synchronize()?;
        expect(&there, &[7])
    };
    context.leaves_nothing(work)
}

fn another_device_only_reads_what_it_may_only_read(context: &Context) -> Result<(), Failure> {
    let (owner, peer) = (device(context, 0)?, device(context, 1)?);
    let allocator = Allocator::builder(&owner)
        .peer(&peer, Access::Read)
        .build()?;
    let granule = allocator.granularity();
    let buffer = allocator.allocate(granule)?;
    buffer.fill(0, granule, 3)?;
    buffer.synchronize()?;
    let there = Allocator::builder(&peer).build()?.allocate(granule)?;
    let stream = Stream::new(&peer)?;
    buffer.copy_to_on(&stream, 0, &there, 0, granule)?;
    stream.synchronize()?;
    expect(&there, &[3])?;
    assert!(buffer.fill_on(&stream, 0, granule, 4).is_err());
    expect(&buffer, &[3])
}

fn another_device_is_refused_what_it_was_not_given(context: &Context) -> Result<(), Failure> {
    let (owner, peer) = (device(context, 0)?, device(context, 1)?);
    let buffer = Allocator::builder(&owner).build()?.allocate(1)?;
    let stream = Stream::new(&peer)?;
    assert!(buffer.fill_on(&stream, 0, 1, 4).is_err());
    Ok(())
}

/// Two devices without peer access between them.
fn strangers(context: &Context) -> Result<(Device, Device), Failure> {
    vmm_emulator::Config::new()
        .devices(2)
        .peers(vmm_emulator::Peers::None)
        .install()?;
    Ok((device(context, 0)?, device(context, 1)?))
}

fn without_peer_access_the_option_is_refused_before_anything_is_mapped(
    context: &Context,
) -> Result<(), Failure> {
    let (owner, peer) = strangers(context)?;
    let build = || {
        Allocator::builder(&owner)
            .peer(&peer, Access::ReadWrite)
            .build()
    };
    let error = build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSupported);
    assert!(error.to_string().contains("no peer access"), "{error}");
    crate::emulated::start_trace();
    build().unwrap_err();
    let calls = crate::emulated::take_trace();
    assert!(
        calls
            .iter()
            .all(|call| call.function == "cuDeviceCanAccessPeer"),
        "{calls:?}"
    );
    Ok(())
}

fn without_peer_access_given_memory_is_refused_before_anything_is_mapped(
    context: &Context,
) -> Result<(), Failure> {
    let (here, far) = strangers(context)?;
    let own = Allocator::builder(&here).build()?;
    let other = Allocator::builder(&far).build()?;
    let size = own.granularity();
    let buffer = own.allocate_with_capacity(size, 4 * size)?;
    let attempts = || {
        let options = vmm::MapOptions::default();
        let foreign = vec![other.allocate_unmapped(size)?];
        let put_together = Buffer::from_allocations(&here, foreign, size, &options);
        let extended = buffer.extend(vec![other.allocate_unmapped(size)?], 2 * size);
        Ok::<_, Failure>([put_together.unwrap_err(), extended.unwrap_err()])
    };
    attempts()?;
    let before = context.snapshot()?;
    crate::emulated::start_trace();
    for error in attempts()? {
        assert_eq!(error.kind(), ErrorKind::NotSupported, "{error}");
        assert!(error.to_string().contains("no peer access"), "{error}");
    }
    let calls = crate::emulated::take_trace();
    let mapped = calls.iter().any(|call| call.function == "cuMemMap");
    assert!(!mapped, "{calls:?}");
    context.assert_as(&before)
}

fn a_buffer_grows_from_one_device_to_the_other(context: &Context) -> Result<(), Failure> {
    let both = [device(context, 0)?, device(context, 1)?];
    let (here, there) = (allocator(&both[0], &both)?, allocator(&both[1], &both)?);
    let granule = here.granularity();
    let work = || {
        let first = here.allocate_with_capacity(granule, 4 * granule)?;
        let second = first.grow_with(&there, 2 * granule)?;
        assert_eq!(second.address(), first.address());
        let devices: Vec<usize> = second
            .chunks()
            .map(|chunk| chunk.allocation.device().ordinal())
            .collect();
        assert_eq!(devices, [0, 1]);
        for by in &both {
            for chunk in 0..2 {
                let value = (10 * by.ordinal() + chunk + 1) as u8;
                fill_by(by, &second, chunk, value)?;
            }
        }
        expect(&second, &[11, 12])?;
        expect(&first, &[11])
    };
    context.leaves_nothing(work)
}

fn a_buffer_moves_with_its_chunks_on_two_devices(context: &Context) -> Result<(), Failure> {
    let both = [device(context, 0)?, device(context, 1)?];
    let (here, there) = (allocator(&both[0], &both)?, allocator(&both[1], &both)?);
    let granule = here.granularity();
    let first = here.allocate(granule)?;
    let second = first.grow_with(&there, 2 * granule)?;
    // Two owners of the same end: only one can grow in place.
    let third = second.grow_with(&here, 3 * granule)?;
    let other = second.grow_with(&here, 3 * granule)?;
    assert_ne!(third.address(), other.address());
    for chunk in 0..3 {
        fill_by(&both[1], &other, chunk, chunk as u8 + 1)?;
    }
    expect(&other, &[1, 2, 3])?;
    expect(&second, &[1, 2])
}

/// Imports what is offered with access for every device, says the ordinals of its chunks, checks
/// and overwrites it.
fn importer(context: &Context, mut link: Link) -> Result<(), Failure> {
    let driver = context.driver()?;
    let mut channel = Channel::from_fd(link.take_data()?, PeerPolicy::SameUser)?;
    let mut options = ImportOptions::read_write();
    for device in driver.devices() {
        options = options.peer(&device, Access::ReadWrite);
    }
    let imported = options.receive(driver, &mut channel)?;
    let buffer = imported.buffer();
    let uuids: Vec<String> = buffer
        .chunks()
        .map(|chunk| chunk.allocation.device().uuid().to_string())
        .collect();
    link.say(&uuids.join(" "))?;
    let values: Vec<u8> = (1..).take(buffer.chunk_count()).collect();
    expect(buffer, &values)?;
    for device in driver.devices() {
        for chunk in 0..buffer.chunk_count() {
            fill_by(&device, buffer, chunk, chunk as u8 + 101)?;
        }
    }
    link.say("written")
}

/// Says why it could not import.
fn refused_importer(context: &Context, mut link: Link) -> Result<(), Failure> {
    let driver = context.driver()?;
    let mut channel = Channel::from_fd(link.take_data()?, PeerPolicy::SameUser)?;
    let error = ImportOptions::read_write()
        .receive(driver, &mut channel)
        .unwrap_err();
    assert_eq!(error.kind(), IpcError::NoDevice, "{error}");
    link.say(&error.to_string().replace('\n', " "))
}

/// A buffer with one chunk on each of `devices`, the chunks filled with 1, 2, 3 and so on.
fn over(devices: &[Device]) -> Result<Buffer, Failure> {
    let first = allocator(&devices[0], devices)?;
    let granule = first.granularity();
    let mut buffer = first.allocate_with_capacity(granule, devices.len() * granule)?;
    for (index, device) in devices.iter().enumerate() {
        if index > 0 {
            buffer = buffer.grow_with(&allocator(device, devices)?, (index + 1) * granule)?;
        }
        fill_by(device, &buffer, index, index as u8 + 1)?;
    }
    Ok(buffer)
}

fn share(
    context: &Context,
    devices: &[Device],
    environment: &[(&str, &str)],
) -> Result<(), Failure> {
    let buffer = over(devices)?;
    let exporter = Exporter::new(&devices[0])?;
    let mut peer = context.peer_with("peers::importer", &[], environment)?;
    let mut channel = Channel::from_fd(peer.take_data()?, PeerPolicy::SameUser)?;
    exporter.share(&buffer, &mut channel)?;
    let uuids: Vec<String> = devices
        .iter()
        .map(|device| device.uuid().to_string())
        .collect();
    assert_eq!(peer.hear()?, uuids.join(" "));
    peer.expect("written")?;
    let values: Vec<u8> = (101..).take(devices.len()).collect();
    expect(&buffer, &values)?;
    peer.finish()
}

fn a_buffer_on_two_devices_arrives_as_one_range(context: &Context) -> Result<(), Failure> {
    share(context, &[device(context, 0)?, device(context, 1)?], &[])
}

fn a_buffer_over_eight_devices_is_one_range(context: &Context) -> Result<(), Failure> {
    let devices = context.driver()?.devices();
    assert!(devices.len() >= 8);
    share(context, &devices[..8], &[])
}

fn an_importer_that_numbers_its_devices_otherwise_finds_the_right_one(
    context: &Context,
) -> Result<(), Failure> {
    let devices = [device(context, 0)?, device(context, 1)?];
    share(context, &devices, &[("CUDA_VISIBLE_DEVICES", "1,0")])
}

fn an_importer_that_sees_one_device_by_uuid_finds_it(context: &Context) -> Result<(), Failure> {
    let owner = device(context, 1)?;
    let uuid = owner.uuid().to_string();
    share(context, &[owner], &[("CUDA_VISIBLE_DEVICES", &uuid)])
}

fn an_importer_without_the_owners_device_is_refused_in_words(
    context: &Context,
) -> Result<(), Failure> {
    let owner = device(context, 0)?;
    let said = refuse(context, std::slice::from_ref(&owner), "1")?;
    assert!(said.contains(&owner.uuid().to_string()), "{said}");
    assert!(said.contains("CUDA_VISIBLE_DEVICES"), "{said}");
    Ok(())
}

fn an_importer_without_the_second_device_of_a_buffer_is_refused_in_words(
    context: &Context,
) -> Result<(), Failure> {
    let devices = [device(context, 0)?, device(context, 1)?];
    let said = refuse(context, &devices, "0")?;
    assert!(said.contains("chunk 2 of 2"), "{said}");
    assert!(said.contains("CUDA_VISIBLE_DEVICES"), "{said}");
    Ok(())
}

/// Offers a buffer to an importer that sees only `visible`, which refuses. What it says.
fn refuse(context: &Context, devices: &[Device], visible: &str) -> Result<String, Failure> {
    let buffer = over(devices)?;
    let exporter = Exporter::new(&devices[0])?;
    let environment = [("CUDA_VISIBLE_DEVICES", visible)];
    let mut peer = context.peer_with("peers::refused importer", &[], &environment)?;
    let mut channel = Channel::from_fd(peer.take_data()?, PeerPolicy::SameUser)?;
    let error = exporter.share(&buffer, &mut channel).unwrap_err();
    assert_eq!(error.kind(), IpcError::Refused, "{error}");
    let said = peer.hear()?;
    peer.finish()?;
    Ok(said)
}
