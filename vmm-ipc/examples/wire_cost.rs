//! What encoding and decoding a descriptor take, in nanoseconds a chunk:
//! `cargo run --release -p vmm-ipc --example wire_cost`.

use std::hint::black_box;
use std::time::Instant;

use vmm_ipc::wire::{Descriptor, WireError};

fn main() -> Result<(), WireError> {
    println!("  chunks   decode ns/chunk   encode ns/chunk");
    for count in [1, 64, 1024, 4096, 100_000] {
        let bytes = descriptor(count);
        let decoded = Descriptor::decode(&bytes)?;
        let decode = median(|| drop(black_box(Descriptor::decode(black_box(&bytes)))));
        let encode = median(|| drop(black_box(black_box(&decoded).encode())));
        let per_chunk = |nanoseconds: f64| nanoseconds / f64::from(count);
        println!(
            "{count:>8}   {:>15.2}   {:>15.2}",
            per_chunk(decode),
            per_chunk(encode)
        );
    }
    Ok(())
}

/// The median of many rounds, in nanoseconds.
fn median(mut work: impl FnMut()) -> f64 {
    const EACH: u32 = 20;
    let mut rounds: Vec<f64> = (0..201)
        .map(|_| {
            let begin = Instant::now();
            (0..EACH).for_each(|_| work());
            begin.elapsed().as_nanos() as f64 / f64::from(EACH)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}

/// The bytes of a descriptor of so many chunks of 2 MiB, as `docs/protocol.md` has them.
fn descriptor(count: u32) -> Vec<u8> {
    let mapped = u64::from(count) << 21;
    let mut bytes = Vec::new();
    bytes.extend(b"VMMD");
    bytes.extend([1, 0, 0, 0]);
    bytes.extend((88 + count * 8).to_le_bytes());
    bytes.extend(count.to_le_bytes());
    bytes.extend([7; 40]);
    bytes.extend([1, 1, 0, 0, 0, 0, 0, 0]);
    for value in [1 << 21, mapped, mapped] {
        bytes.extend(u64::to_le_bytes(value));
    }
    bytes.extend((0..count).flat_map(|_| (1_u64 << 21).to_le_bytes()));
    bytes
}
