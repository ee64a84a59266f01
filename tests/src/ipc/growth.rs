//! A buffer that grows while others have it mapped.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use vmm::Buffer;
use vmm_ipc::wire::Update;
use vmm_ipc::{
    Capacity, Channel, ErrorKind, Export, Exporter, ImportOptions, Imported, Limits, PeerPolicy,
};

use super::{allocator, channel_to, expect_filled, fill};
use crate::{Case, Context, Failure, Link, cases, emulated};

pub const CASES: &[Case] = cases![
    growth_reaches_several_importers_at_the_same_address,
    an_update_of_more_chunks_than_descriptors_are_left_arrives,
    updates_go_on_where_one_was_refused,
    what_is_shorter_than_the_exported_buffer_is_refused,
    a_grow_exports_and_sends_the_new_chunks_alone: emulator_only(),
    an_importer_with_too_little_room_moves_and_its_old_value_stays_valid,
    updates_that_were_missed_or_repeated_are_refused_and_a_new_offer_works,
    an_update_of_another_buffer_is_refused,
    what_did_not_grow_from_the_exported_buffer_is_refused,
    updates_that_are_not_here_are_no_success,
    a_descriptor_states_the_room_that_the_grown_buffer_has,
];

/// Imports a buffer, then takes updates until there are no more, and says after each what it has.
pub fn growing_importer(context: &Context, mut link: Link) -> Result<(), Failure> {
    let mut channel = vmm_ipc::Channel::from_fd(link.take_data()?, PeerPolicy::SameUser)?;
    let mut imported = ImportOptions::read_write().receive(context.driver()?, &mut channel)?;
    let address = imported.buffer().address();
    loop {
        expect_filled(imported.buffer(), imported.buffer().chunk_count(), 1)?;
        assert_eq!(imported.buffer().address(), address, "the buffer moved");
        link.say(&format!(
            "{} chunks of generation {}",
            imported.buffer().chunk_count(),
            imported.generation()
        ))?;
        match imported.receive_update(&mut channel) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Hangup => return link.say("hangup"),
            Err(error) => return Err(error.into()),
        }
    }
}

/// As [`growing_importer`], with 256 file descriptors at most.
pub fn growing_importer_with_few_descriptors(context: &Context, link: Link) -> Result<(), Failure> {
    let limit = getrlimit(Resource::Nofile);
    let lower = Rlimit {
        current: Some(256),
        ..limit
    };
    setrlimit(Resource::Nofile, lower)?;
    growing_importer(context, link)
}

/// A buffer of two chunks with room for `room`, and its export.
fn start(context: &Context, room: usize) -> Result<(Buffer, Export), Failure> {
    let allocator = allocator(context)?;
    let granularity = allocator.granularity();
    let buffer = allocator.allocate_with_capacity(2 * granularity, room * granularity)?;
    fill(&buffer, 1)?;
    let export = Exporter::new(&context.device()?)?.export(&buffer)?;
    Ok((buffer, export))
}

/// The buffer with so many chunks more.
fn grown(buffer: &Buffer, chunks: usize) -> Result<Buffer, Failure> {
    let grown = buffer.grow(buffer.len() + chunks * buffer.granularity())?;
    fill(&grown, 1)?;
    Ok(grown)
}

fn import(context: &Context, export: &Export, options: ImportOptions) -> Result<Imported, Failure> {
    let (bytes, fds) = export.to_parts()?;
    Ok(options.import_parts(context.driver()?, &bytes, fds)?)
}

/// What travels with an update.
fn update_fds(export: &Export, update: &Update) -> Result<Vec<OwnedFd>, Failure> {
    let (bytes, fds) = export.update_to_parts(update.generation())?;
    assert_eq!(Update::decode(&bytes)?, *update);
    Ok(fds)
}

fn growth_reaches_several_importers_at_the_same_address(context: &Context) -> Result<(), Failure> {
    let (mut buffer, mut export) = start(context, 100)?;
    let mut peers = Vec::new();
    for _ in 0..3 {
        let mut peer = context.peer("ipc::growing importer")?;
        let mut channel = channel_to(&mut peer)?;
        export.send(&mut channel)?;
        peer.expect("2 chunks of generation 0")?;
        peers.push((peer, channel));
    }
    // The second step does not fit one message.
    for (generation, (more, all)) in [(1, 3), (80, 83), (2, 85)].into_iter().enumerate() {
        buffer = grown(&buffer, more)?;
        let update = export.grow(&buffer)?;
        assert_eq!(update.sizes().len(), more);
        for (peer, channel) in &mut peers {
            let reached = export.send_updates(channel, generation as u64)?;
            assert_eq!(reached, generation as u64 + 1);
            peer.expect(&format!("{all} chunks of generation {reached}"))?;
        }
    }
    // Who comes late gets everything at once.
    let mut late = context.peer("ipc::growing importer")?;
    let mut channel = channel_to(&mut late)?;
    export.send(&mut channel)?;
    late.expect("85 chunks of generation 3")?;
    peers.push((late, channel));
    for (mut peer, channel) in peers {
        drop(channel);
        peer.expect("hangup")?;
        peer.finish()?;
    }
    Ok(())
}

fn an_update_of_more_chunks_than_descriptors_are_left_arrives(
    context: &Context,
) -> Result<(), Failure> {
    let (buffer, mut export) = start(context, 302)?;
    let mut peer = context.peer("ipc::growing importer with few descriptors")?;
    let mut channel = channel_to(&mut peer)?;
    export.send(&mut channel)?;
    peer.expect("2 chunks of generation 0")?;
    export.grow(&grown(&buffer, 300)?)?;
    export.send_updates(&mut channel, 0)?;
    peer.expect("302 chunks of generation 1")?;
    drop(channel);
    peer.expect("hangup")?;
    peer.finish()
}

fn updates_go_on_where_one_was_refused(context: &Context) -> Result<(), Failure> {
    let (mut buffer, mut export) = start(context, 64)?;
    let granularity = buffer.granularity() as u64;
    let (mut out, mut inn) = Channel::pair()?;
    let importer = std::thread::scope(|scope| {
        let importer = scope.spawn(move || -> Result<(Imported, Channel), Failure> {
            let options = ImportOptions::read_write().limits(Limits::new().bytes(4 * granularity));
            let mut imported = options.receive(context.driver()?, &mut inn)?;
            while imported.receive_update(&mut inn).is_ok() {}
            Ok((imported, inn))
        });
        export.send(&mut out)?;
        for _ in 0..4 {
            buffer = grown(&buffer, 1)?;
            export.grow(&buffer)?;
        }
        let error = export.send_updates(&mut out, 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        assert_eq!(error.reached(), Some(2), "four chunks of six fit");
        importer
            .join()
            .unwrap_or_else(|_| Err(Failure::new("the importer panicked")))
    });
    let (imported, _channel) = importer?;
    assert_eq!(imported.generation(), 2);
    Ok(())
}

fn what_is_shorter_than_the_exported_buffer_is_refused(context: &Context) -> Result<(), Failure> {
    let (buffer, mut export) = start(context, 64)?;
    let granularity = buffer.granularity();
    let private = vmm::Allocator::builder(&context.device()?)
        .handle_types(vmm::HandleTypes::POSIX_FD)
        .build()?;
    let more = vec![private.allocate_unmapped(granularity)?];
    let short = buffer
        .shrink(granularity + 1)?
        .extend(more, granularity + 2)?;
    let error = export.grow(&short).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert_eq!(export.generation(), 0);
    export.grow(&grown(&buffer, 1)?)?;
    Ok(())
}

fn a_grow_exports_and_sends_the_new_chunks_alone(context: &Context) -> Result<(), Failure> {
    let (buffer, mut export) = start(context, 64)?;
    let mut imported = import(context, &export, ImportOptions::read_only())?;
    let buffer = grown(&buffer, 1)?;
    let (update, exporting) = emulated::calls_of(|| -> Result<_, Failure> {
        let update = export.grow(&buffer)?.clone();
        Ok((update_fds(&export, &update)?, update))
    });
    let (fds, update) = update?;
    let (result, importing) = emulated::calls_of(|| imported.extend(&update, fds));
    result?;
    // All of them: what is not named here must not be called at all.
    let expected = BTreeMap::from([
        // What was written is waited for.
        ("cuDevicePrimaryCtxGetState", 1),
        ("cuCtxPushCurrent", 1),
        ("cuStreamIsCapturing", 1),
        ("cuStreamSynchronize", 1),
        ("cuCtxPopCurrent", 1),
        ("cuThreadExchangeStreamCaptureMode", 2),
        ("cuMemExportToShareableHandle", 1),
    ]);
    assert_eq!(exporting, expected);
    let expected = BTreeMap::from([
        ("cuMemImportFromShareableHandle", 1),
        ("cuMemGetAllocationPropertiesFromHandle", 1),
        ("cuMemMap", 1),
        ("cuMemSetAccess", 1),
        ("cuThreadExchangeStreamCaptureMode", 2),
    ]);
    assert_eq!(importing, expected);
    expect_filled(imported.buffer(), 3, 1)
}

fn an_importer_with_too_little_room_moves_and_its_old_value_stays_valid(
    context: &Context,
) -> Result<(), Failure> {
    let (buffer, mut export) = start(context, 64)?;
    let mut imported = import(
        context,
        &export,
        ImportOptions::read_write().capacity(Capacity::Exact),
    )?;
    let old = imported.buffer().alias();
    let buffer = grown(&buffer, 3)?;
    let update = export.grow(&buffer)?.clone();
    imported.extend(&update, update_fds(&export, &update)?)?;
    assert_eq!(imported.buffer().len(), buffer.len());
    expect_filled(imported.buffer(), 5, 1)?;
    expect_filled(&old, 2, 1)?;
    old.write(5, b"through the old value")?;
    old.synchronize()?;
    let mut bytes = [0; 21];
    imported.buffer().read(5, &mut bytes)?;
    assert_eq!(&bytes, b"through the old value");
    buffer.read(5, &mut bytes)?;
    assert_eq!(&bytes, b"through the old value");
    Ok(())
}

fn updates_that_were_missed_or_repeated_are_refused_and_a_new_offer_works(
    context: &Context,
) -> Result<(), Failure> {
    let (buffer, mut export) = start(context, 64)?;
    let mut imported = import(context, &export, ImportOptions::read_only())?;
    let buffer = grown(&buffer, 1)?;
    let first = export.grow(&buffer)?.clone();
    let buffer = grown(&buffer, 2)?;
    let second = export.grow(&buffer)?.clone();
    assert_eq!(export.updates_since(0).len(), 2);
    assert_eq!(export.updates_since(1), std::slice::from_ref(&second));

    let before = context.snapshot()?;
    let refused = |imported: &mut Imported, update: &Update, word: &str| {
        let error = imported
            .extend(update, update_fds(&export, update)?)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfOrder, "{error}");
        assert!(error.to_string().contains(word), "{error}");
        Ok::<_, Failure>(())
    };
    refused(&mut imported, &second, "missed")?;
    context.assert_as(&before)?;
    expect_filled(imported.buffer(), 2, 1)?;
    imported.extend(&first, update_fds(&export, &first)?)?;
    let before = context.snapshot()?;
    refused(&mut imported, &first, "repetition")?;
    context.assert_as(&before)?;
    imported.extend(&second, update_fds(&export, &second)?)?;
    refused(&mut imported, &first, "repetition")?;
    expect_filled(imported.buffer(), 5, 1)?;
    let anew = import(context, &export, ImportOptions::read_only())?;
    assert_eq!((anew.generation(), anew.id()), (2, imported.id()));
    expect_filled(anew.buffer(), 5, 1)
}

fn an_update_of_another_buffer_is_refused(context: &Context) -> Result<(), Failure> {
    let (_, export) = start(context, 8)?;
    let mut imported = import(context, &export, ImportOptions::read_only())?;
    let (other, mut its_export) = start(context, 8)?;
    let update = its_export.grow(&grown(&other, 1)?)?.clone();
    let fds = update_fds(&its_export, &update)?;
    let error = imported.extend(&update, fds).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfOrder, "{error}");
    expect_filled(imported.buffer(), 2, 1)
}

fn what_did_not_grow_from_the_exported_buffer_is_refused(context: &Context) -> Result<(), Failure> {
    let (buffer, mut export) = start(context, 8)?;
    let (other, _) = start(context, 8)?;
    // Put together by hand: the last chunk is the exported one, the first is not; and the other way.
    let device = context.device()?;
    let memory = |buffer: &Buffer, chunk: usize| {
        let chunk = buffer.chunks().nth(chunk);
        chunk.map(|chunk| chunk.allocation.clone()).into_iter()
    };
    let by_hand = |first: &Buffer, second: &Buffer| {
        let memory: Vec<_> = memory(first, 0)
            .chain(memory(second, 1))
            .chain(memory(&other, 0))
            .collect();
        let len = memory.len() * buffer.granularity();
        let options = vmm::MapOptions::new(vmm::Access::ReadWrite);
        Buffer::from_allocations(&device, memory, len, &options)
    };
    let (same_end, same_begin) = (by_hand(&other, &buffer)?, by_hand(&buffer, &other)?);
    let more = grown(&other, 1)?;
    let before = context.snapshot()?;
    for wrong in [&buffer, &more, &same_end, &same_begin] {
        let error = export.grow(wrong).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert_eq!((export.generation(), export.fds().len()), (0, 2));
    }
    context.assert_as(&before)?;
    // What is the same memory is taken, however it was put together.
    export.grow(&by_hand(&buffer, &buffer)?)?;
    Ok(())
}

fn updates_that_are_not_here_are_no_success(context: &Context) -> Result<(), Failure> {
    let (buffer, mut export) = start(context, 64)?;
    export.grow(&grown(&buffer, 1)?)?;
    // Put together from parts, it has what the buffer is, not how that came about.
    let (bytes, fds) = export.to_parts()?;
    let again = Export::from_parts(&bytes, fds)?;
    let (mut ours, mut theirs) = Channel::pair()?;
    for (export, since) in [(&again, 0), (&export, 99), (&export, u64::MAX)] {
        let error = export.send_updates(&mut ours, since).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfOrder, "{error}");
        assert!(error.to_string().contains("Export::send"), "{error}");
        assert_eq!(error.reached(), Some(since));
    }
    assert_eq!(again.send_updates(&mut ours, 1)?, 1);
    assert!(theirs.try_receive()?.is_none(), "something was sent");
    let error = again.update_to_parts(1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfOrder, "{error}");
    Ok(())
}

fn a_descriptor_states_the_room_that_the_grown_buffer_has(
    context: &Context,
) -> Result<(), Failure> {
    let (buffer, mut export) = start(context, 2)?;
    let granularity = buffer.granularity();
    // The same memory and one chunk more, in a range with more room.
    let mut memory: Vec<_> = buffer.chunks().map(|c| c.allocation.clone()).collect();
    memory.push(allocator(context)?.allocate_unmapped(granularity)?);
    let options = vmm::MapOptions::new(vmm::Access::ReadWrite).capacity(16 * granularity);
    let device = context.device()?;
    let moved = Buffer::from_allocations(&device, memory, 3 * granularity, &options)?;
    export.grow(&moved)?;
    assert_eq!(moved.capacity(), 16 * granularity);
    assert_eq!(export.descriptor().capacity(), moved.capacity() as u64);
    let late = import(context, &export, ImportOptions::read_only())?;
    assert!(late.buffer().capacity() >= moved.capacity());
    Ok(())
}
