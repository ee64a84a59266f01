//! Sharing from end to end, on whatever driver is under test.

mod model;
mod refusals;
mod rollback;
mod share;

use std::time::Duration;

use vmm::{Allocator, Buffer, ChunkPolicy, HandleTypes};
use vmm_ipc::{Channel, PeerPolicy};

use crate::{Case, Context, Failure, Role};

/// Every case on sharing.
pub fn cases() -> Vec<Case> {
    [share::CASES, refusals::CASES, rollback::CASES, model::CASES].concat()
}

/// Every role of these cases.
pub const ROLES: &[Role] = share::ROLES;

/// An allocator of shareable memory that maps exactly what is asked for, and its granularity.
fn shareable(context: &Context) -> Result<(Allocator, usize), Failure> {
    let allocator = Allocator::builder(&context.device()?)
        .handle_types(HandleTypes::POSIX_FD)
        .chunk_policy(ChunkPolicy::exact())
        .build()?;
    let granularity = allocator.granularity();
    Ok((allocator, granularity))
}

/// A buffer of three chunks of different sizes.
fn three_chunks(context: &Context) -> Result<Buffer, Failure> {
    let (allocator, granularity) = shareable(context)?;
    let buffer = allocator
        .allocate(granularity)?
        .grow(3 * granularity)?
        .grow(6 * granularity)?;
    assert_eq!(buffer.chunk_count(), 3);
    Ok(buffer)
}

fn channel(data: std::os::fd::OwnedFd) -> Result<Channel, Failure> {
    let mut channel = Channel::from_fd(data, PeerPolicy::SameUser)?;
    channel.set_timeout(Duration::from_secs(20));
    Ok(channel)
}
