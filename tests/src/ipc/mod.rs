//! Sharing: `vmm-ipc` between processes, and against peers that mean no good.

mod broken;
mod few_files;
mod growth;
mod hostile;
mod hostile_handles;
mod hostile_importer;
mod hostile_importer_pace;
mod hostile_pace;
mod kill;
mod parts;
mod raw;
mod relay;
mod rollback;
mod round_trip;
mod volume;

use vmm::{Allocator, Buffer, ChunkPolicy, HandleTypes};
use vmm_ipc::{Channel, PeerPolicy};

use crate::{Case, Context, Failure, Peer, Role};

/// Every case on `vmm-ipc`.
pub fn cases() -> Vec<Case> {
    let lists: &[&[Case]] = &[
        broken::CASES,
        few_files::CASES,
        growth::CASES,
        hostile::CASES,
        hostile_handles::CASES,
        hostile_importer::CASES,
        hostile_importer_pace::CASES,
        hostile_pace::CASES,
        kill::CASES,
        parts::CASES,
        relay::CASES,
        rollback::CASES,
        round_trip::CASES,
        volume::CASES,
    ];
    lists.concat()
}

/// Every role of these cases.
pub const ROLES: &[Role] = &[
    Role {
        name: "ipc::importer",
        run: round_trip::importer,
    },
    Role {
        name: "ipc::late reader",
        run: round_trip::late_reader,
    },
    Role {
        name: "ipc::fabric importer",
        run: round_trip::importer,
    },
    Role {
        name: "ipc::growing importer",
        run: growth::growing_importer,
    },
    Role {
        name: "ipc::growing importer with few descriptors",
        run: growth::growing_importer_with_few_descriptors,
    },
    Role {
        name: "ipc::first of three",
        run: relay::first_of_three,
    },
    Role {
        name: "ipc::last of three",
        run: relay::last_of_three,
    },
    Role {
        name: "ipc::stepped exporter",
        run: kill::stepped_exporter,
    },
    Role {
        name: "ipc::stepped importer",
        run: kill::stepped_importer,
    },
];

/// An allocator of memory that is shared as file descriptors, in chunks of one granule.
fn allocator(context: &Context) -> Result<Allocator, Failure> {
    allocator_of(context, HandleTypes::POSIX_FD)
}

fn allocator_of(context: &Context, types: HandleTypes) -> Result<Allocator, Failure> {
    let device = context.device()?;
    let plain = Allocator::builder(&device).handle_types(types);
    let granularity = plain.build()?.granularity();
    Ok(Allocator::builder(&device)
        .handle_types(types)
        .chunk_policy(ChunkPolicy::exact().largest(granularity))
        .build()?)
}

/// A shareable buffer of so many chunks, filled with bytes that depend on the place and on `seed`.
fn filled(allocator: &Allocator, chunks: usize, seed: u8) -> Result<Buffer, Failure> {
    let buffer = allocator.allocate(chunks * allocator.granularity())?;
    assert_eq!(buffer.chunk_count(), chunks);
    fill(&buffer, seed)?;
    Ok(buffer)
}

/// Marks every chunk at its beginning and its end: enough to tell which is where.
fn fill(buffer: &Buffer, seed: u8) -> Result<(), Failure> {
    for (offset, bytes) in marks(buffer, seed) {
        buffer.write(offset, &bytes)?;
    }
    Ok(())
}

/// Checks the marks of the first `chunks` chunks.
#[track_caller]
fn expect_filled(buffer: &Buffer, chunks: usize, seed: u8) -> Result<(), Failure> {
    let mut checked = 0;
    for (offset, expected) in marks(buffer, seed).take(2 * chunks) {
        let mut bytes = [0; 16];
        buffer.read(offset, &mut bytes)?;
        if bytes != expected {
            let text = format!("at {offset}: {bytes:x?} instead of {expected:x?}");
            return Err(Failure::new(text));
        }
        checked += 1;
    }
    assert_eq!(checked, 2 * chunks, "the buffer has too few chunks");
    Ok(())
}

fn marks(buffer: &Buffer, seed: u8) -> impl Iterator<Item = (usize, [u8; 16])> + '_ {
    buffer.chunks().flat_map(move |chunk| {
        let mark = move |offset: usize| {
            let word = (offset as u64).to_le_bytes();
            (
                offset,
                std::array::from_fn(|i| word[i % 8] ^ seed ^ i as u8),
            )
        };
        let end = (chunk.offset + chunk.size).min(buffer.len());
        [mark(chunk.offset), mark(end - 16)]
    })
}

/// The case's channel to a peer that was started.
fn channel_to(peer: &mut Peer) -> Result<Channel, Failure> {
    Ok(Channel::from_fd(peer.take_data()?, PeerPolicy::SameUser)?)
}
