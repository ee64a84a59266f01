//! What the examples have in common: choosing the driver, reading sizes, filling and checking.

#![allow(dead_code, reason = "every example uses its own part of this")]

use std::fmt;
use std::io;
use std::process::{Child, Command, ExitCode};
use std::time::Duration;

use vmm::{Allocator, Buffer, ChunkPolicy, Device, Driver, HandleTypes};
use vmm_ipc::Listener;

/// What an example fails with: one clear line.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// The driver that was asked for on the command line.
#[derive(Clone, Debug)]
pub enum Choice {
    /// The GPU's where there is a driver, else the emulator.
    Auto,
    /// `libcuda.so.1`.
    Cuda,
    /// The emulator, inside this process.
    Emulator,
    /// A driver library at this path.
    Path(String),
}

impl Choice {
    /// Reads the value of `--driver`.
    pub fn parse(text: &str) -> Result<Choice, lexopt::Error> {
        match text {
            "auto" => Ok(Choice::Auto),
            "cuda" => Ok(Choice::Cuda),
            "emulator" => Ok(Choice::Emulator),
            path if path.contains('/') => Ok(Choice::Path(path.into())),
            other => Err(format!(
                "--driver {other}: expected auto, cuda, emulator, or a path that contains a slash"
            )
            .into()),
        }
    }

    /// Opens the driver. For `Auto` the choice that it came to replaces it, so that other processes
    /// can be told the same.
    pub fn open(&mut self) -> Result<Driver, Error> {
        match self {
            Choice::Auto => match vmm::sys::Driver::load() {
                Ok(driver) => {
                    *self = Choice::Cuda;
                    let driver = Driver::new(driver);
                    driver.map_err(|error| {
                        format!("{error}; `--driver emulator` needs no GPU").into()
                    })
                }
                Err(error) if error.kind().is_driver_absent() => {
                    eprintln!("no GPU is used ({error})");
                    *self = Choice::Emulator;
                    self.open()
                }
                Err(error) => Err(error.into()),
            },
            Choice::Cuda => Ok(Driver::load()?),
            Choice::Emulator => {
                vmm_emulator::Config::from_env()?.install()?;
                Ok(Driver::new(vmm_emulator::driver()?)?)
            }
            // SAFETY: whoever names the path on the command line says that it is a CUDA driver.
            Choice::Path(path) => Ok(unsafe { Driver::load_from(&*path) }?),
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Choice::Auto => "auto",
            Choice::Cuda => "cuda",
            Choice::Emulator => "emulator",
            Choice::Path(path) => path,
        })
    }
}

/// The driver in words: its name, the CUDA version, and for the emulator that it is one.
pub fn describe(driver: &Driver) -> String {
    let (major, minor) = (driver.version() / 1000, driver.version() % 1000 / 10);
    if driver.is_emulator() {
        return format!("software emulator, CUDA {major}.{minor} (no GPU is used)");
    }
    let module = std::fs::read_to_string("/sys/module/nvidia/version").unwrap_or_default();
    match module.trim() {
        "" => format!("NVIDIA, CUDA {major}.{minor}"),
        version => format!("NVIDIA {version}, CUDA {major}.{minor}"),
    }
}

/// Reads a size such as `4096`, `512K`, `64M` or `1G`.
pub fn parse_size(option: &str, text: &str) -> Result<usize, lexopt::Error> {
    let wrong = || format!("{option} {text}: expected a size such as 4194304, 64M or 1G");
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match text.strip_prefix(digits).unwrap_or_default() {
        "" => 0,
        "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        _ => return Err(wrong().into()),
    };
    let number: usize = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(|| {
        format!("{option} {text}: that is more than this machine can address").into()
    })
}

/// A size in the unit that it is a whole number of.
pub fn size_text(bytes: usize) -> String {
    match bytes {
        0 => "0 B".into(),
        _ if bytes.is_multiple_of(1 << 30) => format!("{} GiB", bytes >> 30),
        _ if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}

/// Bytes that are copied at a time between a buffer and host memory.
const STAGE: usize = 8 << 20;

/// Fills `buffer` with bytes that depend on their position and on `seed`. `progress` is told the
/// bytes that are done.
pub fn fill(buffer: &Buffer, seed: u64, mut progress: impl FnMut(usize)) -> Result<(), Error> {
    let mut stage = vec![0; STAGE.min(buffer.len())];
    for offset in (0..buffer.len()).step_by(STAGE) {
        let bytes = stage_of(&mut stage, buffer, offset);
        pattern(seed, offset, bytes);
        buffer.write(offset, bytes)?;
        progress(offset + bytes.len());
    }
    Ok(())
}

/// Checks that `buffer` holds what [`fill`] with the same seed writes; the error names the first
/// byte that differs.
pub fn check(buffer: &Buffer, seed: u64, mut progress: impl FnMut(usize)) -> Result<(), Error> {
    let mut stage = vec![0; STAGE.min(buffer.len())];
    let mut expected = stage.clone();
    for offset in (0..buffer.len()).step_by(STAGE) {
        let bytes = stage_of(&mut stage, buffer, offset);
        let expected = stage_of(&mut expected, buffer, offset);
        buffer.read(offset, bytes)?;
        pattern(seed, offset, expected);
        if bytes != expected {
            let at = bytes
                .iter()
                .zip(&*expected)
                .take_while(|(a, b)| a == b)
                .count();
            let found = bytes.get(at).copied().unwrap_or_default();
            let wanted = expected.get(at).copied().unwrap_or_default();
            return Err(format!(
                "mismatch: byte {} is {found:#04x} where {wanted:#04x} was written",
                offset + at
            )
            .into());
        }
        progress(offset + bytes.len());
    }
    Ok(())
}

fn stage_of<'a>(stage: &'a mut [u8], buffer: &Buffer, offset: usize) -> &'a mut [u8] {
    let len = stage.len().min(buffer.len() - offset);
    &mut stage[..len]
}

/// The bytes at `offset`, which is a multiple of 8.
fn pattern(seed: u64, offset: usize, bytes: &mut [u8]) {
    let mut word = (offset as u64 / 8) ^ seed;
    for part in bytes.chunks_mut(8) {
        let value = word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let value = (value ^ (value >> 29)).to_le_bytes();
        part.copy_from_slice(&value[..part.len()]);
        word = word.wrapping_add(1);
    }
}

/// Prints a failure as one line and says so by the exit status: 2 where the command line was wrong.
pub fn exit(result: Result<(), Error>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            match error.is::<lexopt::Error>() {
                true => ExitCode::from(2),
                false => ExitCode::FAILURE,
            }
        }
    }
}

/// Reads one line, without its end; none at the end of the stream.
pub fn read_line(reader: &mut impl io::BufRead) -> io::Result<Option<String>> {
    let mut line = String::new();
    match reader.read_line(&mut line)? {
        0 => Ok(None),
        _ => Ok(Some(line.trim_end_matches('\n').to_owned())),
    }
}

/// How long the programs of an example wait for each other.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Runs an example whose only option is `--driver`. It starts itself again in other roles, with the
/// driver and the socket as arguments; `main` is what the person started, `role` is every other.
pub fn run(
    help: &str,
    main: fn(&Driver, &Choice) -> Result<(), Error>,
    role: fn(&str, &Driver, &str) -> Result<(), Error>,
) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let in_role = |driver: &str, name: &str, path: &str| {
        let driver = Choice::parse(driver)?.open()?;
        role(name, &driver, path).map_err(|error| Error::from(format!("{name}: {error}")))
    };
    let from_start = |driver: &str| {
        let mut choice = Choice::parse(driver)?;
        let driver = choice.open()?;
        println!("driver: {}", describe(&driver));
        main(&driver, &choice)?;
        println!("OK");
        Ok(())
    };
    exit(match arguments.as_slice() {
        ["--role", name, driver, path] => in_role(driver, name, path),
        ["--driver", driver] => from_start(driver),
        [] => from_start("auto"),
        ["-h" | "--help"] => {
            print!("{help}\n  --driver auto|cuda|emulator|PATH  auto by default\n");
            Ok(())
        }
        [other, ..] => Err(lexopt::Error::from(format!(
            "{other}: expected --driver auto|cuda|emulator|PATH"
        ))
        .into()),
    })
}

/// Another process of the same program. Dropping it kills it.
pub struct Peer(Child);

impl Peer {
    /// Starts one that is to connect to `listener`.
    pub fn start(role: &str, choice: &Choice, listener: &Listener) -> Result<Peer, Error> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--role", role, &choice.to_string()]);
        Ok(Peer(command.arg(listener.path()).spawn()?))
    }

    /// Waits for its end, which must be a good one.
    pub fn finish(mut self) -> Result<(), Error> {
        match self.0.wait()? {
            status if status.success() => Ok(()),
            status => Err(format!("another process failed ({status})").into()),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Both fail only for a process that has ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Allocates a buffer of chunks of these sizes, in granules, that can be shared.
pub fn allocate(device: &Device, granules: &[usize], capacity: usize) -> Result<Buffer, Error> {
    let allocator = Allocator::builder(device)
        .handle_types(HandleTypes::POSIX_FD)
        .chunk_policy(ChunkPolicy::exact())
        .build()?;
    let unit = allocator.granularity();
    let (first, rest) = granules.split_first().ok_or("a buffer without chunks")?;
    let mut buffer = allocator.allocate_with_capacity(first * unit, capacity * unit)?;
    for granules in rest {
        buffer = buffer.grow(buffer.len() + granules * unit)?;
    }
    Ok(buffer)
}
