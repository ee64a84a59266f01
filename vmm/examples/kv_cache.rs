//! A key-value cache that grows without moving: 64 GiB of address space, 2 MiB of it mapped at first.
//!
//! `cargo run --release -p vmm --example kv_cache -- [--driver auto|cuda|emulator] [--up-to MIB]`

use std::error::Error;
use std::process::ExitCode;

use vmm::{Allocator, Buffer, ChunkPolicy, Driver};

/// One token's keys and values, in bytes: what a cache grows by.
const TOKEN: usize = 128 << 10;

fn main() -> ExitCode {
    let options = match options() {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(wrong) => {
            eprintln!("error: {wrong}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let driver = options.driver()?;
    let device = driver.device(0)?;
    let kind = if driver.is_emulator() {
        "software emulator"
    } else {
        device.name()
    };
    println!("driver   {kind}");

    // Chunks of a quarter of the cache, so that there are few, but never 64 MiB ahead.
    let policy = ChunkPolicy::growing().most_ahead(64 << 20);
    let allocator = Allocator::builder(&device).chunk_policy(policy).build()?;
    let mut cache = allocator.allocate_with_capacity(2 << 20, 64 << 30)?;
    let address = cache.address();
    println!(
        "reserved {} GiB at {address:#x}, mapped {} MiB",
        cache.capacity() >> 30,
        mib(&cache)
    );

    let tokens = options.up_to / TOKEN;
    for token in 0..tokens {
        let end = (token + 1) * TOKEN;
        if end > cache.len() {
            // The old value goes; the chunks that both have stay where they are.
            cache = cache.grow(end)?;
        }
        // What a kernel would do: append at the end.
        cache.write(token * TOKEN, &(token as u64).to_le_bytes())?;
    }
    assert_eq!(
        cache.address(),
        address,
        "a cache with capacity never moves"
    );

    for token in (0..tokens).step_by(tokens.div_ceil(64).max(1)) {
        let mut bytes = [0; 8];
        cache.read(token * TOKEN, &mut bytes)?;
        assert_eq!(u64::from_le_bytes(bytes), token as u64);
    }
    println!(
        "grew to  {} MiB in {} chunks, at {:#x} still",
        mib(&cache),
        cache.chunk_count(),
        cache.address()
    );
    cache.close()?;
    println!("OK");
    Ok(())
}

fn mib(buffer: &Buffer) -> usize {
    buffer.mapped_len() >> 20
}

const USAGE: &str = "\
usage: kv_cache [--driver auto|cuda|emulator] [--up-to MIB]

Grows a cache token by token, up to MIB (256 by default) of 64 GiB, at one address.
  --driver  auto (default): the GPU where there is one, else the software emulator";

struct Options {
    driver: String,
    /// In bytes.
    up_to: usize,
}

fn options() -> Result<Option<Options>, String> {
    let mut options = Options {
        driver: "auto".into(),
        up_to: 256 << 20,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} takes a value"));
        match word.as_str() {
            "-h" | "--help" => return Ok(None),
            "--driver" => {
                options.driver = value()?;
                if !["auto", "cuda", "emulator"].contains(&options.driver.as_str()) {
                    return Err(format!("--driver takes no {}", options.driver));
                }
            }
            "--up-to" => {
                let mebibytes = value()?.parse().ok();
                let bytes = mebibytes.and_then(|m: usize| m.checked_mul(1 << 20));
                options.up_to = bytes.ok_or("--up-to takes a whole number of MiB")?;
            }
            _ => return Err(format!("{word}: there is no such option")),
        }
    }
    Ok(Some(options))
}

impl Options {
    fn driver(&self) -> Result<Driver, Box<dyn Error>> {
        match self.driver.as_str() {
            "emulator" => emulator(),
            "cuda" => Ok(Driver::load()?),
            _ => match vmm::sys::Driver::load() {
                Ok(driver) => Ok(Driver::new(driver)?),
                Err(error) if error.kind().is_driver_absent() => {
                    eprintln!("no GPU is used ({error})");
                    emulator()
                }
                Err(error) => Err(error.into()),
            },
        }
    }
}

fn emulator() -> Result<Driver, Box<dyn Error>> {
    Ok(Driver::new(vmm_emulator::driver()?)?)
}
