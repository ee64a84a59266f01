//! Many chunks, many importers, many times.

use std::time::Duration;

use vmm_ipc::{Channel, Exporter, ImportOptions};

use super::{allocator, channel_to, expect_filled, filled};
use crate::{Case, Context, Failure, cases};

pub const CASES: &[Case] = cases![
    four_thousand_chunks_arrive_and_leave_nothing: timeout(180),
    twenty_importers_of_one_buffer_leave_nothing: timeout(180),
    a_thousand_shares_leave_nothing: timeout(300),
];

fn four_thousand_chunks_arrive_and_leave_nothing(context: &Context) -> Result<(), Failure> {
    let allocator = allocator(context)?;
    let exporter = Exporter::new(&context.device()?)?;
    let share = |chunks: usize| {
        let buffer = filled(&allocator, chunks, 1)?;
        let mut peer = context.peer_with("ipc::importer", &["1", "2"], &[])?;
        let mut channel = channel_to(&mut peer)?;
        channel.set_timeout(Duration::from_secs(60));
        let export = exporter.share(&buffer, &mut channel)?;
        assert_eq!(export.fds().len(), chunks);
        peer.expect("written")?;
        expect_filled(&buffer, chunks, 2)?;
        peer.tell("release")?;
        peer.expect("released")?;
        peer.finish()
    };
    share(1)?;
    let before = context.snapshot()?;
    share(4096)?;
    context.assert_as(&before)
}

fn twenty_importers_of_one_buffer_leave_nothing(context: &Context) -> Result<(), Failure> {
    let allocator = allocator(context)?;
    let exporter = Exporter::new(&context.device()?)?;
    let share = |importers: usize| {
        let buffer = filled(&allocator, 8, 1)?;
        let export = exporter.export(&buffer)?;
        let mut peers = Vec::new();
        for _ in 0..importers {
            // Each writes what it found, so that the next finds it as well.
            let mut peer = context.peer_with("ipc::importer", &["1", "1"], &[])?;
            export.send(&mut channel_to(&mut peer)?)?;
            peer.expect("written")?;
            peers.push(peer);
        }
        expect_filled(&buffer, 8, 1)?;
        for mut peer in peers {
            peer.tell("release")?;
            peer.expect("released")?;
            peer.finish()?;
        }
        Ok::<_, Failure>(())
    };
    share(1)?;
    let before = context.snapshot()?;
    share(20)?;
    context.assert_as(&before)
}

fn a_thousand_shares_leave_nothing(context: &Context) -> Result<(), Failure> {
    let allocator = allocator(context)?;
    let driver = context.driver()?;
    let exporter = Exporter::new(&context.device()?)?;
    let (mut ours, mut theirs) = Channel::pair()?;
    let mut share = || -> Result<(), Failure> {
        let buffer = filled(&allocator, 3, 1)?;
        let imported = std::thread::scope(|scope| -> Result<_, Failure> {
            let importing = scope.spawn(|| ImportOptions::read_only().receive(driver, &mut theirs));
            exporter.share(&buffer, &mut ours)?.retire();
            let imported = importing.join();
            Ok(imported.map_err(|_| Failure::new("the importer panicked"))??)
        })?;
        drop(buffer);
        expect_filled(imported.buffer(), 3, 1)
    };
    share()?;
    let before = context.snapshot()?;
    for _ in 0..1000 {
        share()?;
    }
    context.assert_as(&before)
}
