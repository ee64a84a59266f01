//! The invariants of `vmm`, by the numbers that its crate page gives them.
//!
//! Invariant 13 (device memory is never a Rust reference) is one of the types: no function gives
//! such a reference, so there is nothing to run.

mod allocator;
mod bounds;
mod closing;
mod devices;
mod dlpack;
mod grow;
mod lifetime;
mod model;
mod options;
mod order;
mod rollback;
mod settle;
mod sleep;
mod threads;
mod waits;

use vmm::{Allocator, Buffer, ChunkPolicy, Device};

use crate::{Case, Context, Failure, Role};

/// Every case on `vmm`.
pub fn cases() -> Vec<Case> {
    let lists: &[&[Case]] = &[
        allocator::CASES,
        bounds::CASES,
        closing::CASES,
        devices::CASES,
        dlpack::CASES,
        grow::CASES,
        lifetime::CASES,
        model::CASES,
        options::CASES,
        order::CASES,
        rollback::CASES,
        settle::CASES,
        sleep::CASES,
        threads::CASES,
        waits::CASES,
    ];
    lists.concat()
}

/// Every role of these cases.
pub const ROLES: &[Role] = lifetime::ROLES;

/// An allocator that maps exactly what is asked for, and its granularity.
fn exact(context: &Context) -> Result<(Allocator, usize), Failure> {
    exact_on(&context.device()?)
}

fn exact_on(device: &Device) -> Result<(Allocator, usize), Failure> {
    let allocator = Allocator::builder(device)
        .chunk_policy(ChunkPolicy::exact())
        .build()?;
    let granularity = allocator.granularity();
    Ok((allocator, granularity))
}

/// As [`exact`], and there is room behind its first buffer. Which side of the last range the system gives
/// out next differs between machines.
fn exact_with_room(context: &Context) -> Result<(Allocator, usize), Failure> {
    let (allocator, granularity) = exact(context)?;
    let hole = allocator.allocate_with_capacity(0, 64 * granularity)?;
    let allocator = Allocator::builder(&context.device()?)
        .chunk_policy(ChunkPolicy::exact())
        .address_hint(hole.address())
        .build()?;
    Ok((allocator, granularity))
}

/// Writes a byte pattern that depends on `seed` over the whole of `buffer`.
pub(crate) fn write_pattern(buffer: &Buffer, seed: u8) -> Result<(), Failure> {
    Ok(buffer.write(0, &pattern(buffer.len(), seed))?)
}

/// Checks the first `len` bytes of `buffer` against what [`write_pattern`] wrote.
#[track_caller]
pub(crate) fn expect_pattern(buffer: &Buffer, len: usize, seed: u8) -> Result<(), Failure> {
    let mut bytes = vec![0; len];
    buffer.read(0, &mut bytes)?;
    let expected = pattern(len, seed);
    if bytes == expected {
        return Ok(());
    }
    match bytes.iter().zip(&expected).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(at) => Err(Failure::new(format!(
            "byte {at} is {}, not {}",
            bytes[at], expected[at]
        ))),
    }
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    let mut bytes = vec![0; len];
    for (word, part) in (u64::from(seed) << 48..).zip(bytes.chunks_mut(8)) {
        let value = word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let value = (value ^ (value >> 29)).to_le_bytes();
        part.copy_from_slice(&value[..part.len()]);
    }
    bytes
}
