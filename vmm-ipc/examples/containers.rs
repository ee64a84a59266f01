//! The two programs of docs/how-to-containers.md: a holder that listens at a path in a mounted folder,
//! and a worker that connects to it from another container.
//!
//! ```text
//! containers holder PATH DRIVER [UID]     serves workers of user UID (default: its own) until killed
//! containers worker PATH DRIVER           attaches, checks every byte, and ends
//! ```
//!
//! DRIVER is `cuda` or `emulator`.

mod common;

use std::process::ExitCode;

use common::{Choice, Error, PATIENCE};
use vmm::Driver;
use vmm_ipc::{Channel, ErrorKind, Exporter, ImportOptions, Importer, Listener, PeerPolicy};

const USAGE: &str = "usage: containers holder PATH DRIVER [UID] | containers worker PATH DRIVER

  holder  serves workers at PATH, of its own user or of UID, until it is killed
  worker  attaches, checks every byte, and ends
  DRIVER  cuda, emulator, auto, or a path that contains a slash";

/// Stands for what the holder holds.
const CONTENTS: u64 = 0x636f_6e74;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    common::exit(match arguments.as_slice() {
        ["holder", path, driver] => {
            open(driver).and_then(|d| holder(&d, path, PeerPolicy::SameUser))
        }
        ["holder", path, driver, uid] => open(driver).and_then(|d| {
            let uid = uid
                .parse()
                .map_err(|_| lexopt::Error::from(format!("{uid} is no user id")))?;
            holder(&d, path, PeerPolicy::User(uid))
        }),
        ["worker", path, driver] => open(driver).and_then(|d| worker(&d, path)),
        ["-h" | "--help"] => {
            println!("{USAGE}");
            Ok(())
        }
        _ => Err(lexopt::Error::from(USAGE).into()),
    })
}

fn open(driver: &str) -> Result<Driver, Error> {
    Choice::parse(driver)?.open()
}

fn holder(driver: &Driver, path: &str, policy: PeerPolicy) -> Result<(), Error> {
    let device = driver.device(0)?;
    let buffer = common::allocate(&device, &[2, 4, 2], 8)?;
    common::fill(&buffer, CONTENTS, |_| {})?;
    let exporter = Exporter::new(&device)?;
    let listener = Listener::bind(path, policy)?;
    println!(
        "holder: {} bytes on {} at {path}",
        buffer.len(),
        device.uuid()
    );
    loop {
        let served = listener
            .accept(PATIENCE)
            .and_then(|mut channel| Ok((channel.peer(), exporter.share(&buffer, &mut channel)?)));
        match served {
            // The pid is 0 where the worker's PID namespace is not visible from here.
            Ok((peer, _)) => println!("holder: served user {}, pid {}", peer.uid, peer.pid),
            Err(error) if error.kind() == ErrorKind::Timeout => {}
            // One worker that fails is no reason to leave the others alone.
            Err(error) => eprintln!("holder: {error}"),
        }
    }
}

fn worker(driver: &Driver, path: &str) -> Result<(), Error> {
    // The holder may run as another user: the folder's permissions say who can be at that path.
    let mut channel = Channel::connect_with(path, PeerPolicy::Anyone)?;
    channel.set_timeout(PATIENCE);
    let importer = Importer::new(&driver.device(0)?)?;
    let imported = importer.receive(ImportOptions::read_only(), &mut channel)?;
    common::check(imported.buffer(), CONTENTS, |_| {})?;
    println!(
        "worker: {} are there",
        common::size_text(imported.buffer().len())
    );
    Ok(())
}
