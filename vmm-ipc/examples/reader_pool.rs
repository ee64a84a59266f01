//! A pool of readers: one process writes, several map the same memory for reading, and each checks a
//! part of it.
//!
//! Read-only guards against mistakes, not against malice: see docs/threat-model.md.
//!
//! ```text
//! cargo run -p vmm-ipc --example reader_pool
//! ```

mod common;

use std::process::ExitCode;

use common::{Choice, Error, PATIENCE, Peer};
use vmm::{Access, Driver};
use vmm_ipc::{Channel, Exporter, ImportOptions, Importer, Listener};

/// What the writer writes.
const DATA: u64 = 0x6461_7461;

const READERS: usize = 4;

fn main() -> ExitCode {
    common::run(
        "Shares one buffer with four processes that can only read it.\n",
        writer,
        reader,
    )
}

fn writer(driver: &Driver, choice: &Choice) -> Result<(), Error> {
    let device = driver.device(0)?;
    let data = common::allocate(&device, &[1, 2, 3], 6)?;
    common::fill(&data, DATA, |_| {})?;
    let listener = Listener::new()?;
    let exporter = Exporter::new(&device)?;
    let readers = (0..READERS)
        .map(|_| Peer::start("reader", choice, &listener))
        .collect::<Result<Vec<_>, _>>()?;
    // They connect in any order.
    for _ in 0..READERS {
        exporter.share(&data, &mut listener.accept(PATIENCE)?)?;
    }
    for reader in readers {
        reader.finish()?;
    }
    common::check(&data, DATA, |_| {})?;
    println!("writer: {READERS} readers were there, the data is as it was");
    Ok(())
}

fn reader(_: &str, driver: &Driver, path: &str) -> Result<(), Error> {
    let importer = Importer::new(&driver.device(0)?)?;
    let mut channel = Channel::connect(path)?;
    // A channel waits as long as the writer needs for those before.
    channel.set_timeout(PATIENCE);
    let data = importer.receive(ImportOptions::read_only(), &mut channel)?;
    let buffer = data.buffer();
    if buffer.chunks().any(|chunk| chunk.access != Access::Read) {
        return Err("a chunk is mapped for more than reading".into());
    }
    // The driver refuses a copy into it.
    if buffer.write(0, &[0]).is_ok() {
        return Err("a read-only buffer was written".into());
    }
    common::check(buffer, DATA, |_| {})?;
    println!("reader {}: read, and could not write", std::process::id());
    Ok(())
}
