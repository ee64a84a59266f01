//! A model that sleeps: its memory goes back to the device while nobody asks for it, its addresses
//! stay, and after waking it is shared anew.
//!
//! ```text
//! cargo run -p vmm-ipc --example sleep_wake
//! ```

mod common;

use std::process::ExitCode;

use common::{Choice, Error, PATIENCE, Peer};
use vmm::{Buffer, Device, Driver};
use vmm_ipc::{Channel, Exporter, ImportOptions, Importer, Listener};

/// Stands for the model.
const MODEL: u64 = 0x6d6f_6465;

fn main() -> ExitCode {
    common::run(
        "Shares a model, puts it to sleep, wakes it and shares it again.\n",
        owner,
        client,
    )
}

fn owner(driver: &Driver, choice: &Choice) -> Result<(), Error> {
    let device = driver.device(0)?;
    let model = common::allocate(&device, &[8, 8, 16], 32)?;
    common::fill(&model, MODEL, |_| {})?;
    let (address, len) = (model.address(), model.len());
    serve(&device, &model, choice)?;

    let awake = device.memory_info()?.free;
    // The contents wait in host memory. `sleep` without them is for what can be loaded again.
    let sleeping = model.sleep_with_contents(|_| {})?;
    let asleep = device.memory_info()?.free;
    let [size, before, after] = [len, awake, asleep].map(common::size_text);
    println!("asleep: {size} in host memory, free on the device {before} -> {after}");
    if driver.is_emulator() && asleep < awake + len {
        // Elsewhere other programs may have taken it already.
        return Err("the memory did not go back to the device".into());
    }

    let model = sleeping.wake()?;
    if model.address() != address {
        return Err("the model moved in its sleep".into());
    }
    common::check(&model, MODEL, |_| {})?;
    println!("awake: the same bytes at the same address");
    // It is new memory: whoever imported the old one needs a new offer.
    serve(&device, &model, choice)
}

/// Shares the model with one client. Nothing of the export is left afterwards: file descriptors
/// would keep the memory while it sleeps.
fn serve(device: &Device, model: &Buffer, choice: &Choice) -> Result<(), Error> {
    let listener = Listener::new()?;
    let client = Peer::start("client", choice, &listener)?;
    Exporter::new(device)?.share(model, &mut listener.accept(PATIENCE)?)?;
    client.finish()
}

fn client(_: &str, driver: &Driver, path: &str) -> Result<(), Error> {
    let importer = Importer::new(&driver.device(0)?)?;
    let mut channel = Channel::connect(path)?;
    let model = importer.receive(ImportOptions::read_only(), &mut channel)?;
    common::check(model.buffer(), MODEL, |_| {})?;
    println!("client: the model is there");
    Ok(())
}
