//! One side is killed at every step of the exchange: the other hears of it in time, leaves nothing
//! behind, and goes on with the next.

use std::os::fd::{AsFd, BorrowedFd};

use vmm::Buffer;
use vmm_ipc::wire::{Message, Update};
use vmm_ipc::{Channel, ErrorKind, Export, Exporter, ImportOptions, PeerPolicy};

use super::{allocator, channel_to, expect_filled, fill};
use crate::{Case, Context, Failure, Link, Peer, cases};

pub const CASES: &[Case] = cases![
    an_exporter_killed_at_any_step_costs_the_importer_nothing: timeout(240),
    an_importer_killed_at_any_step_costs_the_exporter_nothing: timeout(240),
];

/// Chunks at first, handles in one message, and chunks more.
const CHUNKS: usize = 5;
const BATCH: usize = 2;
const MORE: usize = 3;

fn start(context: &Context) -> Result<Buffer, Failure> {
    let allocator = allocator(context)?;
    let granularity = allocator.granularity();
    let buffer = allocator.allocate_with_capacity(CHUNKS * granularity, 16 * granularity)?;
    fill(&buffer, 1)?;
    Ok(buffer)
}

fn grow(buffer: &Buffer) -> Result<Buffer, Failure> {
    let grown = buffer.grow(buffer.len() + MORE * buffer.granularity())?;
    fill(&grown, 1)?;
    Ok(grown)
}

/// Shares a buffer and grows it, message by message, and stops before each.
pub fn stepped_exporter(context: &Context, mut link: Link) -> Result<(), Failure> {
    let buffer = start(context)?;
    let exporter = Exporter::new(&context.device()?)?;
    link.step("ready")?;
    let mut channel = Channel::from_fd(link.take_data()?, PeerPolicy::SameUser)?;
    link.step("greeted")?;
    let mut export = exporter.export(&buffer)?;
    link.step("exported")?;
    channel.send(&Message::Offer(export.descriptor().clone()), &[])?;
    send_handles(&mut link, &mut channel, &export, 0, CHUNKS)?;
    link.step("sent")?;
    let answer = channel.receive()?.message;
    assert!(
        matches!(answer, Message::Accepted { generation: 0, .. }),
        "{answer:?}"
    );
    link.step("answered")?;
    let update = export.grow(&grow(&buffer)?)?.clone();
    link.step("grown")?;
    channel.send(&Message::Update(update), &[])?;
    send_handles(&mut link, &mut channel, &export, CHUNKS, CHUNKS + MORE)?;
    link.step("update sent")?;
    let answer = channel.receive()?.message;
    assert!(
        matches!(answer, Message::Accepted { generation: 1, .. }),
        "{answer:?}"
    );
    link.step("done")
}

fn send_handles(
    link: &mut Link,
    channel: &mut Channel,
    export: &Export,
    mut first: usize,
    end: usize,
) -> Result<(), Failure> {
    let id = export.descriptor().id();
    while first < end {
        link.step(&format!("before handles from {first} on"))?;
        let fds: Vec<BorrowedFd<'_>> = export.fds().take(end).skip(first).take(BATCH).collect();
        let count = fds.len();
        let message = Message::Handles {
            id,
            first: first as u32,
            count: count as u32,
        };
        channel.send(&message, &fds)?;
        first += count;
    }
    Ok(())
}

/// Takes a buffer and an update, message by message, and stops before each.
pub fn stepped_importer(_: &Context, mut link: Link) -> Result<(), Failure> {
    link.step("ready")?;
    let mut channel = Channel::from_fd(link.take_data()?, PeerPolicy::SameUser)?;
    link.step("greeted")?;
    let offer = match channel.receive()?.message {
        Message::Offer(descriptor) => descriptor,
        other => return Err(Failure::new(format!("{other:?} instead of an offer"))),
    };
    let id = offer.id();
    take_handles(&mut link, &mut channel, offer.sizes().len())?;
    link.step("before the answer")?;
    let generation = 0;
    channel.send(&Message::Accepted { id, generation }, &[])?;
    link.step("answered")?;
    let update: Update = match channel.receive()?.message {
        Message::Update(update) => update,
        other => return Err(Failure::new(format!("{other:?} instead of an update"))),
    };
    take_handles(&mut link, &mut channel, update.sizes().len())?;
    link.step("before the second answer")?;
    let generation = 1;
    channel.send(&Message::Accepted { id, generation }, &[])?;
    link.step("done")
}

fn take_handles(link: &mut Link, channel: &mut Channel, count: usize) -> Result<(), Failure> {
    let mut kept = Vec::new();
    while kept.len() < count {
        link.step(&format!("before handle {}", kept.len()))?;
        kept.extend(channel.receive()?.fds);
    }
    for fd in &kept {
        assert!(rustix::fs::fstat(fd.as_fd()).is_ok());
    }
    Ok(())
}

/// Lets the peer take so many steps and kills it before the next. Gives the name of that step, or
/// `None` where there was none: the peer has ended by itself.
fn kill_at(peer: &mut Peer, steps: usize) -> Result<Option<String>, Failure> {
    for _ in 0..steps {
        if peer.hear()? == "done" {
            peer.tell("go")?;
            return Ok(None);
        }
        peer.tell("go")?;
    }
    let step = peer.hear()?;
    peer.kill()?;
    Ok(Some(step))
}

/// How a whole exchange went on this side.
type Outcome = Result<(), vmm_ipc::Error>;

/// Kills the peer at its first step, its second, and so on until it comes through. `side` is the
/// other side of the exchange.
fn kill_at_every_step(
    context: &Context,
    role: &str,
    side: impl Fn(&mut Channel) -> Result<Outcome, Failure> + Sync,
) -> Result<(), Failure> {
    let run = |steps: usize| -> Result<Option<String>, Failure> {
        let mut peer = context.peer(role)?;
        let mut channel = channel_to(&mut peer)?;
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let begin = std::time::Instant::now();
                let outcome = side(&mut channel);
                (outcome, begin.elapsed())
            });
            let step = kill_at(&mut peer, steps)?;
            let killed = std::time::Instant::now();
            let (outcome, _) = other
                .join()
                .map_err(|_| Failure::new("this side panicked"))?;
            let late = killed.elapsed();
            match (&step, outcome?) {
                // The peer had sent all that it has to: this side may be through.
                (Some(step), Ok(())) if step == "done" || step == "update sent" => {}
                (Some(step), Err(error)) => {
                    assert_eq!(error.kind(), ErrorKind::Hangup, "{step}: {error}");
                    assert!(error.is_retryable());
                    assert!(late.as_secs() < 2, "{step}: only after {late:?}");
                }
                (None, Ok(())) => {}
                (step, outcome) => {
                    return Err(Failure::new(format!("{step:?}: {outcome:?}")));
                }
            }
            Ok(step)
        })
    };
    // Once without a kill: what is set up once for good is set up now.
    assert_eq!(run(usize::MAX)?, None);
    let before = context.snapshot()?;
    let mut killed = Vec::new();
    for steps in 0.. {
        let step = run(steps)?;
        let left = context.assert_as(&before);
        left.map_err(|failure| Failure::new(format!("killed at {step:?}: {failure}")))?;
        match step {
            Some(step) => killed.push(step),
            None => break,
        }
        // The next one gets everything, from the same process.
        assert_eq!(run(usize::MAX)?, None);
        context.assert_as(&before)?;
    }
    println!("killed at {killed:?}");
    assert!(killed.len() >= 8, "{killed:?}");
    Ok(())
}

fn an_exporter_killed_at_any_step_costs_the_importer_nothing(
    context: &Context,
) -> Result<(), Failure> {
    let driver = context.driver()?;
    kill_at_every_step(context, "ipc::stepped exporter", |channel| {
        let imported = ImportOptions::read_write().receive(driver, channel);
        let mut imported = match imported {
            Ok(imported) => imported,
            Err(error) => return Ok(Err(error)),
        };
        expect_filled(imported.buffer(), CHUNKS, 1)?;
        if let Err(error) = imported.receive_update(channel) {
            // What was there is there still, whoever is gone.
            expect_filled(imported.buffer(), CHUNKS, 1)?;
            assert_eq!(imported.generation(), 0);
            return Ok(Err(error));
        }
        expect_filled(imported.buffer(), CHUNKS + MORE, 1)?;
        Ok(Ok(()))
    })
}

fn an_importer_killed_at_any_step_costs_the_exporter_nothing(
    context: &Context,
) -> Result<(), Failure> {
    let buffer = start(context)?;
    let grown = grow(&buffer)?;
    let exporter = Exporter::new(&context.device()?)?;
    kill_at_every_step(context, "ipc::stepped importer", |channel| {
        let shared = exporter.share(&buffer, channel);
        let mut export = match shared {
            Ok(export) => export,
            Err(error) => return Ok(Err(error)),
        };
        export.grow(&grown)?;
        let result = export.send_updates(channel, 0).map(|_| ());
        expect_filled(&grown, CHUNKS + MORE, 1)?;
        Ok(result)
    })
}
