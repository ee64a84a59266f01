//! A buffer shared with Python, both ways: `python/vmm_ipc.py` at the other end of the socket.
//!
//! ```text
//! cargo run -p vmm-ipc --example python_peer -- --python python3 --peer tests/python/share_with_rust.py
//! ```
//!
//! First Rust exports three chunks, grows the buffer by a fourth, and checks what Python wrote over
//! it; then Python does the same and Rust imports. `--torch` lets PyTorch's kernels read and write.

mod common;

use std::process::{Child, Command, ExitCode};
use std::time::{Duration, Instant};

use common::{Choice, Error, describe};
use lexopt::prelude::*;
use vmm::{Allocator, Buffer, ChunkPolicy, Device, HandleTypes};
use vmm_ipc::{Channel, ErrorKind, Exporter, ImportOptions, Importer, Listener};

const HELP: &str = "\
Shares buffers with a Python program, both ways, and checks every byte.

  --driver cuda|PATH  cuda (default), or a CUDA driver library, which Python has to find too
  --python PROGRAM    the interpreter, which needs cuda-bindings; python3 by default
  --peer FILE         tests/python/share_with_rust.py, or where it lies
  --torch             read and write with PyTorch there, and fail where it is not installed
";

/// How long either side waits for the other. Importing PyTorch takes most of it.
const PATIENCE: Duration = Duration::from_secs(120);

/// What the words hold that Rust and Python wrote; the same as in `share_with_rust.py`.
const FACTOR: u32 = 0x9e37_79b1;
const RUST: u32 = 0x0123_4567;
const PYTHON: u32 = 0x0765_4321;

struct Options {
    driver: Choice,
    python: String,
    peer: String,
    torch: bool,
}

fn main() -> ExitCode {
    common::exit(run())
}

fn run() -> Result<(), Error> {
    let Some(mut options) = options()? else {
        print!("{HELP}");
        return Ok(());
    };
    let driver = options.driver.open()?;
    println!("driver  {}", describe(&driver));
    let device = driver.device(0)?;
    rust_exports(&device, &options)?;
    println!("Rust exported, Python imported and wrote: OK");
    python_exports(&device, &options)?;
    println!("Python exported, Rust imported and wrote: OK");
    Ok(())
}

fn rust_exports(device: &Device, options: &Options) -> Result<(), Error> {
    let allocator = Allocator::builder(device)
        .handle_types(HandleTypes::POSIX_FD)
        .chunk_policy(ChunkPolicy::exact())
        .build()?;
    let unit = allocator.granularity();
    let mut buffer = allocator.allocate_with_capacity(unit, 8 * unit)?;
    for units in [3, 6] {
        buffer = buffer.grow(units * unit)?;
    }
    write(&buffer, RUST)?;

    let listener = Listener::new()?;
    let mut python = start(options, "import", &listener)?;
    let mut channel = accept(&listener, &mut python)?;
    let mut export = Exporter::new(device)?.share(&buffer, &mut channel)?;
    let buffer = buffer.grow(7 * unit)?;
    write(&buffer, RUST)?;
    export.grow(&buffer)?;
    export.send_updates(&mut channel, 0)?;
    finish(python)?;
    check(&buffer, PYTHON)
}

fn python_exports(device: &Device, options: &Options) -> Result<(), Error> {
    let listener = Listener::new()?;
    let mut python = start(options, "export", &listener)?;
    let mut channel = accept(&listener, &mut python)?;
    let mut imported = Importer::new(device)?.receive(ImportOptions::read_write(), &mut channel)?;
    let chunks = imported.buffer().chunks().count();
    if chunks != 3 {
        return Err(format!("three chunks were exported, {chunks} arrived").into());
    }
    imported.receive_update(&mut channel)?;
    check(imported.buffer(), PYTHON)?;
    write(imported.buffer(), RUST)?;
    // Hanging up says that it is written.
    drop(channel);
    finish(python)
}

fn start(options: &Options, role: &str, listener: &Listener) -> Result<Child, Error> {
    let how = if options.torch { "torch" } else { "plain" };
    let mut command = Command::new(&options.python);
    command.arg(&options.peer).arg(role);
    command.arg(listener.path()).arg(how);
    let child = command.spawn();
    child.map_err(|error| format!("{}: {error}", options.python).into())
}

/// Waits for Python to connect, or to end before it did.
fn accept(listener: &Listener, python: &mut Child) -> Result<Channel, Error> {
    let start = Instant::now();
    loop {
        match listener.accept(Duration::from_millis(200)) {
            Ok(mut channel) => {
                channel.set_timeout(PATIENCE);
                return Ok(channel);
            }
            Err(error) if error.kind() != ErrorKind::Timeout => return Err(error.into()),
            Err(error) if start.elapsed() > PATIENCE => return Err(error.into()),
            Err(_) => {}
        }
        if let Some(status) = python.try_wait()? {
            return Err(format!("Python ended before it connected ({status})").into());
        }
    }
}

fn finish(mut python: Child) -> Result<(), Error> {
    match python.wait()? {
        status if status.success() => Ok(()),
        status => Err(format!("Python failed ({status})").into()),
    }
}

fn pattern(len: usize, seed: u32) -> Vec<u8> {
    let words = 0..(len / 4) as u32;
    words
        .flat_map(|word| word.wrapping_mul(FACTOR).wrapping_add(seed).to_le_bytes())
        .collect()
}

fn write(buffer: &Buffer, seed: u32) -> Result<(), Error> {
    buffer.write(0, &pattern(buffer.len(), seed))?;
    Ok(buffer.synchronize()?)
}

fn check(buffer: &Buffer, seed: u32) -> Result<(), Error> {
    let mut found = vec![0; buffer.len()];
    buffer.read(0, &mut found)?;
    if found != pattern(buffer.len(), seed) {
        return Err(format!("the buffer does not hold the pattern of {seed:#x}").into());
    }
    Ok(())
}

fn options() -> Result<Option<Options>, lexopt::Error> {
    let mut options = Options {
        driver: Choice::Cuda,
        python: "python3".into(),
        peer: "tests/python/share_with_rust.py".into(),
        torch: false,
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("driver") => options.driver = Choice::parse(&parser.value()?.string()?)?,
            Long("python") => options.python = parser.value()?.string()?,
            Long("peer") => options.peer = parser.value()?.string()?,
            Long("torch") => options.torch = true,
            Short('h') | Long("help") => return Ok(None),
            other => return Err(other.unexpected()),
        }
    }
    Ok(Some(options))
}
