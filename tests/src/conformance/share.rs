//! One buffer in two processes, and twice in one.

use vmm::Buffer;
use vmm_ipc::{Exporter, ImportOptions};

use super::{channel, shareable, three_chunks};
use crate::vmm::{expect_pattern, write_pattern};
use crate::{Case, Context, Failure, Link, Role, cases};

pub const CASES: &[Case] = cases![
    another_process_reads_every_chunk_as_one_range_and_writes_back,
    a_buffer_grown_in_place_is_shared_whole,
    a_buffer_that_moved_is_shared_whole,
    three_hundred_chunks_are_one_range_there: timeout(120),
    several_importers_share_one_export,
    importing_in_the_same_process_aliases_the_bytes,
    an_import_keeps_the_memory_when_the_original_is_closed,
    the_importer_reads_on_when_the_exporter_has_exited,
    the_importer_reads_on_when_the_exporter_was_killed,
    an_importer_that_is_killed_leaves_the_exporter_as_it_was,
    a_read_only_import_cannot_be_written,
    importing_again_and_again_leaves_nothing: timeout(120),
];

pub const ROLES: &[Role] = &[
    Role {
        name: "share-importer",
        run: importer,
    },
    Role {
        name: "share-exporter",
        run: exporter,
    },
];

const SENT: u8 = 0x31;
const WRITTEN_BACK: u8 = 0xc7;

/// Receives a buffer, checks it, writes it over, and checks that again when told to.
fn importer(context: &Context, mut link: Link) -> Result<(), Failure> {
    let mut channel = channel(link.take_data()?)?;
    let imported = ImportOptions::read_write().receive(context.driver()?, &mut channel)?;
    let buffer = imported.buffer();
    let mut next = buffer.address();
    for chunk in buffer.chunks() {
        assert_eq!(chunk.address, next, "the chunks are not one range");
        next += chunk.size as u64;
    }
    expect_pattern(buffer, buffer.len(), SENT)?;
    link.say(&format!(
        "{} chunks of {} bytes",
        buffer.chunk_count(),
        buffer.len()
    ))?;
    link.step("checked")?;
    write_pattern(buffer, WRITTEN_BACK)?;
    link.step("written")?;
    expect_pattern(buffer, buffer.len(), WRITTEN_BACK)
}

/// Sends a buffer of three chunks and stays until it is told to end.
fn exporter(context: &Context, mut link: Link) -> Result<(), Failure> {
    let buffer = three_chunks(context)?;
    write_pattern(&buffer, SENT)?;
    let mut channel = channel(link.take_data()?)?;
    let export = Exporter::new(&context.device()?)?.share(&buffer, &mut channel)?;
    link.step("shared")?;
    drop(export);
    Ok(())
}

/// Shares `buffer` with a process of its own, both ways.
#[track_caller]
fn share_with_a_peer(context: &Context, buffer: &Buffer) -> Result<(), Failure> {
    write_pattern(buffer, SENT)?;
    let mut peer = context.peer("share-importer")?;
    let mut channel = channel(peer.take_data()?)?;
    let export = Exporter::new(&context.device()?)?.share(buffer, &mut channel)?;
    peer.expect(&format!(
        "{} chunks of {} bytes",
        buffer.chunk_count(),
        buffer.len()
    ))?;
    peer.expect("checked")?;
    peer.tell("go")?;
    peer.expect("written")?;
    expect_pattern(buffer, buffer.len(), WRITTEN_BACK)?;
    drop((export, channel));
    peer.tell("go")?;
    peer.finish()
}

fn another_process_reads_every_chunk_as_one_range_and_writes_back(
    context: &Context,
) -> Result<(), Failure> {
    context.leaves_nothing(|| share_with_a_peer(context, &three_chunks(context)?))
}

fn a_buffer_grown_in_place_is_shared_whole(context: &Context) -> Result<(), Failure> {
    let (allocator, granularity) = shareable(context)?;
    let buffer = allocator.allocate_with_capacity(granularity, 8 * granularity)?;
    let grown = buffer.grow(4 * granularity)?;
    assert_eq!(grown.address(), buffer.address());
    share_with_a_peer(context, &grown)
}

fn a_buffer_that_moved_is_shared_whole(context: &Context) -> Result<(), Failure> {
    let (allocator, granularity) = shareable(context)?;
    let buffer = allocator.allocate_with_capacity(granularity, 2 * granularity)?;
    let taken = buffer.grow(2 * granularity)?;
    let moved = buffer.grow(4 * granularity)?;
    assert_ne!(moved.address(), taken.address());
    share_with_a_peer(context, &moved)
}

fn three_hundred_chunks_are_one_range_there(context: &Context) -> Result<(), Failure> {
    let device = context.device()?;
    let allocator = ::vmm::Allocator::builder(&device)
        .handle_types(::vmm::HandleTypes::POSIX_FD)
        .chunk_policy(::vmm::ChunkPolicy::exact().largest(1))
        .build()?;
    let buffer = allocator.allocate(300 * allocator.granularity())?;
    assert_eq!(buffer.chunk_count(), 300);
    share_with_a_peer(context, &buffer)
}

fn several_importers_share_one_export(context: &Context) -> Result<(), Failure> {
    context.leaves_nothing(|| {
        let buffer = three_chunks(context)?;
        write_pattern(&buffer, SENT)?;
        let export = Exporter::new(&context.device()?)?.export(&buffer)?;
        let mut peers = Vec::new();
        for _ in 0..3 {
            let mut peer = context.peer("share-importer")?;
            export.send(&mut channel(peer.take_data()?)?)?;
            peers.push(peer);
        }
        drop((buffer, export));
        for peer in &mut peers {
            peer.hear()?;
            peer.expect("checked")?;
        }
        for peer in &mut peers {
            peer.tell("go")?;
            peer.expect("written")?;
        }
        for mut peer in peers {
            peer.tell("go")?;
            peer.finish()?;
        }
        Ok(())
    })
}

fn importing_in_the_same_process_aliases_the_bytes(context: &Context) -> Result<(), Failure> {
    context.leaves_nothing(|| {
        let buffer = three_chunks(context)?;
        write_pattern(&buffer, SENT)?;
        let export = Exporter::new(&context.device()?)?.export(&buffer)?;
        let (bytes, fds) = export.to_parts()?;
        let driver = context.driver()?;
        let imported = ImportOptions::read_write().import_parts(driver, &bytes, fds)?;
        assert_ne!(imported.buffer().address(), buffer.address());
        expect_pattern(imported.buffer(), buffer.len(), SENT)?;
        write_pattern(imported.buffer(), WRITTEN_BACK)?;
        expect_pattern(&buffer, buffer.len(), WRITTEN_BACK)
    })
}

fn an_import_keeps_the_memory_when_the_original_is_closed(
    context: &Context,
) -> Result<(), Failure> {
    context.leaves_nothing(|| {
        let start = context.snapshot()?;
        let buffer = three_chunks(context)?;
        let len = buffer.len();
        write_pattern(&buffer, SENT)?;
        let export = Exporter::new(&context.device()?)?.export(&buffer)?;
        let (bytes, fds) = export.into_parts();
        let driver = context.driver()?;
        let imported = ImportOptions::read_write().import_parts(driver, &bytes, fds)?;
        buffer.close()?;
        assert_eq!(context.snapshot()?.free(), start.free() - len);
        expect_pattern(imported.buffer(), len, SENT)?;
        imported.into_buffer().close()?;
        context.assert_as(&start)
    })
}

fn the_importer_reads_on_when_the_exporter_has_exited(context: &Context) -> Result<(), Failure> {
    outlive_the_exporter(context, false)
}

fn the_importer_reads_on_when_the_exporter_was_killed(context: &Context) -> Result<(), Failure> {
    outlive_the_exporter(context, true)
}

fn outlive_the_exporter(context: &Context, kill: bool) -> Result<(), Failure> {
    context.leaves_nothing(|| {
        let mut peer = context.peer("share-exporter")?;
        let mut channel = channel(peer.take_data()?)?;
        let imported = ImportOptions::read_write().receive(context.driver()?, &mut channel)?;
        peer.expect("shared")?;
        if kill {
            peer.kill()?;
        } else {
            peer.tell("go")?;
            peer.finish()?;
        }
        let buffer = imported.buffer();
        expect_pattern(buffer, buffer.len(), SENT)?;
        write_pattern(buffer, WRITTEN_BACK)?;
        expect_pattern(buffer, buffer.len(), WRITTEN_BACK)
    })
}

fn an_importer_that_is_killed_leaves_the_exporter_as_it_was(
    context: &Context,
) -> Result<(), Failure> {
    context.leaves_nothing(|| {
        let buffer = three_chunks(context)?;
        write_pattern(&buffer, SENT)?;
        let before = context.snapshot()?;
        let mut peer = context.peer("share-importer")?;
        let mut to_peer = channel(peer.take_data()?)?;
        let export = Exporter::new(&context.device()?)?.share(&buffer, &mut to_peer)?;
        peer.hear()?;
        peer.expect("checked")?;
        peer.kill()?;
        drop((peer, to_peer, export));
        context.assert_as(&before)?;
        expect_pattern(&buffer, buffer.len(), SENT)?;
        share_with_a_peer(context, &buffer)
    })
}

fn a_read_only_import_cannot_be_written(context: &Context) -> Result<(), Failure> {
    let buffer = three_chunks(context)?;
    write_pattern(&buffer, SENT)?;
    let (bytes, fds) = Exporter::new(&context.device()?)?
        .export(&buffer)?
        .into_parts();
    let imported = ImportOptions::read_only().import_parts(context.driver()?, &bytes, fds)?;
    assert!(imported.buffer().write(0, &[0; 64]).is_err());
    assert!(imported.buffer().fill(buffer.len() - 1, 1, 0).is_err());
    expect_pattern(imported.buffer(), buffer.len(), SENT)
}

fn importing_again_and_again_leaves_nothing(context: &Context) -> Result<(), Failure> {
    let buffer = three_chunks(context)?;
    write_pattern(&buffer, SENT)?;
    let export = Exporter::new(&context.device()?)?.export(&buffer)?;
    context.leaves_nothing(|| {
        for _ in 0..100 {
            let (bytes, fds) = export.to_parts()?;
            let driver = context.driver()?;
            let imported = ImportOptions::read_write().import_parts(driver, &bytes, fds)?;
            let mut last = [0];
            imported.buffer().read(buffer.len() - 1, &mut last)?;
        }
        Ok(())
    })
}
