//! Weights that are loaded once: a holder keeps them on the GPU, workers attach, use them and go,
//! and the next worker finds them there without loading anything.
//!
//! ```text
//! cargo run -p vmm-ipc --example weights_holder
//! ```

mod common;

use std::process::ExitCode;

use common::{Choice, Error, PATIENCE, Peer};
use vmm::Driver;
use vmm_ipc::{Channel, Exporter, ImportOptions, Importer, Listener};

/// Stands for what a file of weights contains.
const WEIGHTS: u64 = 0x77e1_6875;

fn main() -> ExitCode {
    common::run(
        "Loads weights once and lets three workers attach to them, one after another and together.\n",
        holder,
        worker,
    )
}

fn holder(driver: &Driver, choice: &Choice) -> Result<(), Error> {
    let device = driver.device(0)?;
    let weights = common::allocate(&device, &[4, 2, 6], 12)?;
    common::fill(&weights, WEIGHTS, |_| {})?;
    println!("holder: {} loaded", common::size_text(weights.len()));

    let listener = Listener::new()?;
    // Exported once: what it exports is kept, and the next worker is sent the same.
    let exporter = Exporter::new(&device)?;
    let attach = || -> Result<Peer, Error> {
        let worker = Peer::start("worker", choice, &listener)?;
        exporter.share(&weights, &mut listener.accept(PATIENCE)?)?;
        Ok(worker)
    };
    // One comes and goes.
    attach()?.finish()?;
    // Two are there at once, and the first of them may end while the second works.
    let workers = [attach()?, attach()?];
    for worker in workers {
        worker.finish()?;
    }
    // Nobody wrote: the workers map the weights for reading.
    common::check(&weights, WEIGHTS, |_| {})
}

fn worker(_: &str, driver: &Driver, path: &str) -> Result<(), Error> {
    let importer = Importer::new(&driver.device(0)?)?;
    let mut channel = Channel::connect(path)?;
    let weights = importer.receive(ImportOptions::read_only(), &mut channel)?;
    common::check(weights.buffer(), WEIGHTS, |_| {})?;
    println!("worker {}: every weight is there", std::process::id());
    Ok(())
}
