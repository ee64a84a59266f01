//! One buffer, two processes: what is written on one side is read on the other.

use std::collections::BTreeMap;

use vmm::{Access, HandleTypes};
use vmm_ipc::{ErrorKind, Exporter, ImportOptions, Importer, PeerPolicy};

use super::{allocator, allocator_of, channel_to, expect_filled, fill, filled};
use crate::{Case, Context, Failure, Link, cases, emulated};

pub const CASES: &[Case] = cases![
    what_is_written_on_one_side_is_read_on_the_other,
    a_stream_carries_what_packets_carry,
    a_buffer_that_grew_arrives_as_one_range,
    a_read_only_import_cannot_be_written,
    an_importer_reads_on_when_the_exporter_is_gone,
    host_memory_of_a_numa_node_is_shared_like_device_memory,
    fabric_handles_travel_as_bytes_alone: emulator_only(),
    without_an_imex_channel_fabric_memory_is_refused_with_what_is_missing,
    an_exporter_costs_one_descriptor_and_gives_it_back,
    an_importer_keeps_one_granule_and_gives_it_back,
    a_buffer_is_exported_once_however_many_importers_come: emulator_only(),
    an_import_makes_the_fewest_calls: emulator_only(),
    an_export_waits_for_the_recorded_stream: emulator_only(),
];

/// Imports what it is offered, checks it against the first seed, and fills it with the second.
pub fn importer(context: &Context, mut link: Link) -> Result<(), Failure> {
    let (before, after) = (link.argument(0)?.parse()?, link.argument(1)?.parse()?);
    let mut channel = vmm_ipc::Channel::from_fd(link.take_data()?, PeerPolicy::SameUser)?;
    let options = ImportOptions::read_write();
    let imported = options.receive(context.driver()?, &mut channel)?;
    let buffer = imported.buffer();
    expect_filled(buffer, buffer.chunk_count(), before)?;
    fill(buffer, after)?;
    buffer.synchronize()?;
    link.say("written")?;
    assert_eq!(link.hear()?, "release");
    drop(imported);
    link.say("released")
}

/// Imports what it is offered, and reads it when told to.
pub fn late_reader(context: &Context, mut link: Link) -> Result<(), Failure> {
    let mut channel = vmm_ipc::Channel::from_fd(link.take_data()?, PeerPolicy::SameUser)?;
    let options = ImportOptions::read_only();
    let imported = options.receive(context.driver()?, &mut channel)?;
    assert_eq!(imported.buffer().access(), Access::Read);
    link.say("mapped")?;
    // The exporter's side of the exchange hangs up: nothing but the memory is left of it.
    let error = channel.receive().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Hangup, "{error}");
    expect_filled(imported.buffer(), imported.buffer().chunk_count(), 9)?;
    link.say("read")
}

fn what_is_written_on_one_side_is_read_on_the_other(context: &Context) -> Result<(), Failure> {
    let allocator = allocator(context)?;
    let exporter = Exporter::new(&context.device()?)?;
    let share = || {
        // More chunks than go with one message.
        let buffer = filled(&allocator, 130, 1)?;
        let mut peer = context.peer_with("ipc::importer", &["1", "2"], &[])?;
        let export = exporter.share(&buffer, &mut channel_to(&mut peer)?)?;
        assert_eq!(export.fds().len(), 130);
        peer.expect("written")?;
        expect_filled(&buffer, 130, 2)?;
        peer.tell("release")?;
        peer.expect("released")?;
        export.retire();
        peer.finish()
    };
    context.leaves_nothing(share)
}

fn a_stream_carries_what_packets_carry(context: &Context) -> Result<(), Failure> {
    let driver = context.driver()?;
    let allocator = allocator(context)?;
    let granularity = allocator.granularity();
    let exporter = Exporter::new(&context.device()?)?;
    context.leaves_nothing(|| {
        let buffer = allocator.allocate_with_capacity(300 * granularity, 310 * granularity)?;
        fill(&buffer, 1)?;
        let (ours, theirs) = super::raw::sockets(rustix::net::SocketType::STREAM)?;
        let mut ours = vmm_ipc::Channel::from_fd(ours, PeerPolicy::SameUser)?;
        let mut theirs = vmm_ipc::Channel::from_fd(theirs, PeerPolicy::SameUser)?;
        let imported = std::thread::scope(|scope| -> Result<_, Failure> {
            let importing = scope.spawn(|| {
                let options = ImportOptions::read_only();
                let mut imported = options.receive(driver, &mut theirs)?;
                imported.receive_update(&mut theirs).map(|()| imported)
            });
            let mut export = exporter.share(&buffer, &mut ours)?;
            let grown = buffer.grow(305 * granularity)?;
            fill(&grown, 1)?;
            export.grow(&grown)?;
            assert_eq!(export.send_updates(&mut ours, 0)?, 1);
            let imported = importing.join();
            Ok(imported.map_err(|_| Failure::new("the importer panicked"))??)
        })?;
        expect_filled(imported.buffer(), 305, 1)
    })
}

fn a_buffer_that_grew_arrives_as_one_range(context: &Context) -> Result<(), Failure> {
    let allocator = allocator(context)?;
    let granularity = allocator.granularity();
    let exporter = Exporter::new(&context.device()?)?;
    let buffer = allocator.allocate(granularity)?.grow(3 * granularity)?;
    let buffer = buffer.grow(7 * granularity - 5)?;
    fill(&buffer, 3)?;
    let mut peer = context.peer_with("ipc::importer", &["3", "4"], &[])?;
    let export = exporter.export(&buffer)?;
    export.send(&mut channel_to(&mut peer)?)?;
    peer.expect("written")?;
    expect_filled(&buffer, buffer.chunk_count(), 4)?;
    peer.tell("release")?;
    peer.expect("released")?;
    peer.finish()
}

fn a_read_only_import_cannot_be_written(context: &Context) -> Result<(), Failure> {
    let buffer = filled(&allocator(context)?, 2, 5)?;
    let exporter = Exporter::new(&context.device()?)?;
    let (bytes, fds) = exporter.export(&buffer)?.into_parts();
    let options = ImportOptions::read_only();
    let imported = options.import_parts(context.driver()?, &bytes, fds)?;
    expect_filled(imported.buffer(), 2, 5)?;
    assert!(imported.buffer().write(0, &[0; 4]).is_err());
    expect_filled(imported.buffer(), 2, 5)
}

fn an_importer_reads_on_when_the_exporter_is_gone(context: &Context) -> Result<(), Failure> {
    let buffer = filled(&allocator(context)?, 3, 9)?;
    let exporter = Exporter::new(&context.device()?)?;
    let mut peer = context.peer("ipc::late reader")?;
    let mut channel = channel_to(&mut peer)?;
    let export = exporter.share(&buffer, &mut channel)?;
    peer.expect("mapped")?;
    drop((export, exporter, buffer));
    drop(channel);
    peer.expect("read")?;
    peer.finish()
}

fn host_memory_of_a_numa_node_is_shared_like_device_memory(
    context: &Context,
) -> Result<(), Failure> {
    let device = context.device()?;
    let allocator = vmm::Allocator::builder(&device)
        .location(vmm::Location::HostNuma(0))
        .handle_types(HandleTypes::POSIX_FD)
        .build()?;
    let buffer = allocator.allocate(2 * allocator.granularity())?;
    fill(&buffer, 1)?;
    let mut peer = context.peer_with("ipc::importer", &["1", "2"], &[])?;
    let export = Exporter::new(&device)?.share(&buffer, &mut channel_to(&mut peer)?)?;
    peer.expect("written")?;
    expect_filled(&buffer, buffer.chunk_count(), 2)?;
    drop(export);
    peer.tell("release")?;
    peer.expect("released")?;
    peer.finish()
}

fn fabric_handles_travel_as_bytes_alone(context: &Context) -> Result<(), Failure> {
    let environment = [("VMM_EMULATOR_FABRIC", "available")];
    vmm_emulator::Config::new()
        .fabric(vmm_emulator::Fabric::Available)
        .install()?;
    let buffer = filled(&allocator_of(context, HandleTypes::FABRIC)?, 3, 1)?;
    let exporter = Exporter::for_fabric(&context.device()?);
    let export = exporter.export(&buffer)?;
    assert_eq!(export.fds().len(), 0);
    let mut peer = context.peer_with("ipc::fabric importer", &["1", "2"], &environment)?;
    export.send(&mut channel_to(&mut peer)?)?;
    peer.expect("written")?;
    expect_filled(&buffer, 3, 2)?;
    peer.tell("release")?;
    peer.expect("released")?;
    peer.finish()?;
    // By any means that carries bytes.
    let (bytes, fds) = export.into_parts();
    assert!(fds.is_empty());
    let options = ImportOptions::read_only();
    let imported = options.import_parts(context.driver()?, &bytes, fds)?;
    expect_filled(imported.buffer(), 3, 2)
}

fn without_an_imex_channel_fabric_memory_is_refused_with_what_is_missing(
    context: &Context,
) -> Result<(), Failure> {
    let device = context.device()?;
    let allocator = vmm::Allocator::builder(&device).handle_types(HandleTypes::FABRIC);
    let result = allocator
        .build()
        .and_then(|allocator| allocator.allocate(1));
    match result {
        // On a machine with a channel there is nothing to refuse; then it has to work.
        Ok(buffer) => {
            assert!(!context.driver()?.is_emulator());
            Exporter::for_fabric(&device).export(&buffer)?;
        }
        Err(error) => {
            let text = error.to_string();
            assert_eq!(error.kind(), vmm::ErrorKind::NotPermitted, "{text}");
            assert!(text.contains("/dev/nvidia-caps-imex-channels"), "{text}");
        }
    }
    Ok(())
}

fn an_exporter_costs_one_descriptor_and_gives_it_back(context: &Context) -> Result<(), Failure> {
    let device = context.device()?;
    let allocator = allocator(context)?;
    context.leaves_nothing(|| {
        let before = context.open_fds();
        let exporter = Exporter::new(&device)?;
        assert_eq!(exporter.open_fds(), 1);
        let with = context.snapshot()?;
        let buffer = filled(&allocator, 3, 1)?;
        let export = exporter.export(&buffer)?;
        drop(buffer);
        // The exports alone keep the memory, and are owned by one value.
        assert_eq!(export.fds().len(), 3);
        assert!(context.open_fds() >= before + 4);
        export.retire();
        context.assert_as(&with)?;
        Ok(())
    })
}

fn an_importer_keeps_one_granule_and_gives_it_back(context: &Context) -> Result<(), Failure> {
    let device = context.device()?;
    let allocator = allocator(context)?;
    let exporter = Exporter::new(&device)?;
    let buffer = filled(&allocator, 3, 1)?;
    let export = exporter.export(&buffer)?;
    context.leaves_nothing(|| {
        let free = device.memory_info()?.free;
        let importer = Importer::new(&device)?;
        let granule = device.memory_info()?.free;
        assert_eq!(free - granule, allocator.granularity());
        let (bytes, fds) = export.to_parts()?;
        let imported = ImportOptions::read_only().import_parts(importer.driver(), &bytes, fds)?;
        expect_filled(imported.buffer(), 3, 1)?;
        // What was imported does not need the importer to live.
        drop(importer);
        expect_filled(imported.buffer(), 3, 1)?;
        Ok(())
    })
}

fn a_buffer_is_exported_once_however_many_importers_come(context: &Context) -> Result<(), Failure> {
    let calls = |name: &str| vmm_emulator::Emulator::current().calls(name);
    let buffer = filled(&allocator(context)?, 5, 1)?;
    let exporter = Exporter::new(&context.device()?)?;
    let before = calls("cuMemExportToShareableHandle");
    let export = exporter.export(&buffer)?;
    for _ in 0..4 {
        let (mut ours, mut theirs) = vmm_ipc::Channel::pair()?;
        std::thread::scope(|scope| -> Result<(), Failure> {
            let importing = scope.spawn(|| {
                ImportOptions::read_only()
                    .receive(context.driver()?, &mut theirs)
                    .map_err(Failure::from)
            });
            export.send(&mut ours)?;
            let imported = importing
                .join()
                .map_err(|_| Failure::new("the importer panicked"))??;
            expect_filled(imported.buffer(), 5, 1)
        })?;
    }
    assert_eq!(calls("cuMemExportToShareableHandle") - before, 5);
    Ok(())
}

fn an_import_makes_the_fewest_calls(context: &Context) -> Result<(), Failure> {
    let driver = context.driver()?;
    let exporter = Exporter::new(&context.device()?)?;
    // What is asked once for good is asked now.
    let first = exporter.export(&filled(&allocator(context)?, 1, 1)?)?;
    let (bytes, fds) = first.into_parts();
    drop(ImportOptions::read_only().import_parts(driver, &bytes, fds)?);
    for (chunks, messages) in [(1, 1), (5, 1), (128, 1), (260, 3)] {
        let buffer = filled(&allocator(context)?, chunks, 1)?;
        let export = exporter.export(&buffer)?;
        let (mut ours, mut theirs) = vmm_ipc::Channel::pair()?;
        let (imported, made) = emulated::calls_of(|| {
            std::thread::scope(|scope| {
                let importing =
                    scope.spawn(|| ImportOptions::read_only().receive(driver, &mut theirs));
                let sent = export.send(&mut ours);
                let imported = importing
                    .join()
                    .map_err(|_| Failure::new("the importer panicked"))??;
                sent?;
                Ok::<_, Failure>(imported)
            })
        });
        assert_eq!(imported?.buffer().chunk_count(), chunks);
        let n = chunks as u64;
        // All of them, on both sides: what is not named here must not be called at all.
        let expected = BTreeMap::from([
            ("cuMemImportFromShareableHandle", n),
            ("cuMemGetAllocationPropertiesFromHandle", n),
            ("cuMemAddressReserve", 1),
            ("cuMemMap", n),
            ("cuMemSetAccess", messages),
            // There and back: when the range is made, and with each message.
            ("cuThreadExchangeStreamCaptureMode", 2 * messages + 2),
        ]);
        assert_eq!(made, expected, "{chunks} chunks");
    }
    Ok(())
}

fn an_export_waits_for_the_recorded_stream(context: &Context) -> Result<(), Failure> {
    let device = context.device()?;
    let mut buffer = filled(&allocator(context)?, 1, 1)?;
    let stream = vmm::Stream::new(&device)?;
    buffer.set_stream(Some(&stream));
    let exporter = Exporter::new(&device)?;
    vmm_emulator::Emulator::current().start_trace();
    exporter.export(&buffer)?;
    let trace = vmm_emulator::Emulator::current().take_trace();
    let position = |name: &str| trace.iter().position(|call| call.function == name);
    let waited = position("cuStreamSynchronize");
    let exported = position("cuMemExportToShareableHandle");
    assert!(waited.is_some() && waited < exported, "{trace:?}");
    Ok(())
}
