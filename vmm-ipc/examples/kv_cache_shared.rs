//! A key-value cache that grows in one process while another reads it: the reader keeps its address
//! and what it has mapped, and each update costs it the new chunk alone.
//!
//! ```text
//! cargo run -p vmm-ipc --example kv_cache_shared
//! ```

mod common;

use std::process::ExitCode;

use common::{Choice, Error, PATIENCE, Peer};
use vmm::Driver;
use vmm_ipc::{Channel, Exporter, ImportOptions, Importer, Listener};

/// Stands for the keys and values of a sequence.
const TOKENS: u64 = 0x6b76;

/// How often the cache grows by a granule.
const STEPS: usize = 5;

fn main() -> ExitCode {
    common::run(
        "Grows a cache in one process while another reads it.\n",
        writer,
        reader,
    )
}

fn writer(driver: &Driver, choice: &Choice) -> Result<(), Error> {
    let device = driver.device(0)?;
    // Address space costs nothing: reserve what the longest sequence needs.
    let mut cache = common::allocate(&device, &[1], 16)?;
    let (unit, address) = (cache.granularity(), cache.address());
    common::fill(&cache, TOKENS, |_| {})?;

    let listener = Listener::new()?;
    let reader = Peer::start("reader", choice, &listener)?;
    let mut channel = listener.accept(PATIENCE)?;
    channel.set_timeout(PATIENCE);
    let mut export = Exporter::new(&device)?.share(&cache, &mut channel)?;
    for _ in 0..STEPS {
        cache = cache.grow(cache.len() + unit)?;
        // What the reader has is written with the same bytes; it reads meanwhile.
        common::fill(&cache, TOKENS, |_| {})?;
        let generation = export.generation();
        export.grow(&cache)?;
        export.send_updates(&mut channel, generation)?;
    }
    export.send_retirement(&mut channel)?;
    if cache.address() != address {
        return Err("the cache moved, although there was room".into());
    }
    println!(
        "writer: grown {STEPS} times, to {}",
        common::size_text(cache.len())
    );
    reader.finish()
}

fn reader(_: &str, driver: &Driver, path: &str) -> Result<(), Error> {
    let importer = Importer::new(&driver.device(0)?)?;
    let mut channel = Channel::connect(path)?;
    channel.set_timeout(PATIENCE);
    let mut cache = importer.receive(ImportOptions::read_only(), &mut channel)?;
    let address = cache.buffer().address();
    common::check(cache.buffer(), TOKENS, |_| {})?;
    for _ in 0..STEPS {
        cache.receive_update(&mut channel)?;
        common::check(cache.buffer(), TOKENS, |_| {})?;
    }
    if cache.buffer().address() != address {
        return Err("the cache moved here, although there was room".into());
    }
    let (chunks, len) = (cache.buffer().chunks().count(), cache.buffer().len());
    let size = common::size_text(len);
    println!("reader: {size} in {chunks} chunks, at the same address throughout");
    Ok(())
}
