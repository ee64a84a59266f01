//! The exchange: a buffer of two chunks goes to a second process, which checks it and writes back.

use std::ffi::OsString;
use std::fmt::Display;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use vmm::{Allocator, Buffer, ChunkPolicy, Device, Driver, HandleTypes};
use vmm_ipc::{Channel, ErrorKind, Exporter, ImportOptions, Listener};

use crate::print::to_stdout;

/// The first argument of the second process.
pub const ROLE: &str = "import-for-vmm-doctor";

/// Initialising the driver takes seconds where there are many GPUs.
const PATIENCE: Duration = Duration::from_secs(60);

const SENT: u8 = 0xa5;
const ANSWER: u8 = 0x5a;

/// Why the exchange failed.
pub struct Failure {
    pub text: String,
    pub advice: &'static str,
}

/// This program, to be executed again; also where its file was replaced meanwhile.
pub fn this_program() -> PathBuf {
    "/proc/self/exe".into()
}

/// Does the exchange on `device`; the answer says what was done.
pub fn round_trip(device: &Device) -> Result<String, Failure> {
    let buffer = two_chunks(device).map_err(|error| failed("allocating", error, MEMORY))?;
    fill(&buffer, SENT).map_err(|error| failed("filling the buffer", error, MEMORY))?;
    let exporter =
        Exporter::new(device).map_err(|error| explain("preparing the export", &error))?;
    let listener = Listener::new().map_err(|error| explain("listening", &error))?;
    let mut child = Importer::start(&listener)?;

    let mut channel = child.accept(&listener)?;
    channel.set_timeout(PATIENCE);
    let shared = exporter.share(&buffer, &mut channel);
    drop(channel);
    // What the second process says is nearer to the cause than that it hung up.
    child.finish()?;
    shared.map_err(|error| explain("sharing", &error))?;
    check(&buffer, ANSWER)
        .map_err(|error| failed("reading what the second process wrote", error, MEMORY))?;
    Ok(format!(
        "{} chunks, {} MiB: sent, mapped, read and written by a second process",
        buffer.chunk_count(),
        buffer.len() >> 20
    ))
}

fn two_chunks(device: &Device) -> vmm::Result<Buffer> {
    let allocator = Allocator::builder(device)
        .handle_types(HandleTypes::POSIX_FD)
        .chunk_policy(ChunkPolicy::exact())
        .build()?;
    let size = allocator.granularity();
    allocator.allocate(size)?.grow(2 * size)
}

fn fill(buffer: &Buffer, byte: u8) -> vmm::Result<()> {
    buffer.fill(0, buffer.len(), byte)?;
    buffer.synchronize()
}

fn check(buffer: &Buffer, byte: u8) -> Result<(), String> {
    let mut bytes = vec![0; buffer.len()];
    buffer
        .read(0, &mut bytes)
        .map_err(|error| error.to_string())?;
    match bytes.iter().position(|&found| found != byte) {
        None => Ok(()),
        Some(at) => Err(format!("byte {at} is not what the other process wrote")),
    }
}

const MEMORY: &str = "see the findings on this GPU above";

fn failed(step: &str, error: impl Display, advice: &'static str) -> Failure {
    Failure {
        text: format!("{step}: {error}"),
        advice,
    }
}

fn explain(step: &str, error: &vmm_ipc::Error) -> Failure {
    failed(step, error, advice(error.kind()))
}

fn advice(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Timeout => "the other process hangs: see `nvidia-smi` and `dmesg`",
        ErrorKind::FdLimit => "raise the limit of open files: `ulimit -n 65536`",
        ErrorKind::InFlight => "too many file descriptors of this user are on their way",
        ErrorKind::NoDevice => {
            "both processes must see the GPU: the same CUDA_VISIBLE_DEVICES, the same container rights"
        }
        ErrorKind::NotShareable => "the driver or the GPU does not export memory",
        ErrorKind::NotAHandle => {
            "the descriptor did not survive the way: a sandbox (gVisor, seccomp) may replace it"
        }
        ErrorKind::System => {
            "Unix sockets must be allowed, and XDG_RUNTIME_DIR or TMPDIR be a folder to write to"
        }
        ErrorKind::Peer => "both processes must run as the same user",
        _ => MEMORY,
    }
}

// ---- the second process ----

/// The second process as the first one sees it; killed when dropped.
struct Importer(Child);

impl Importer {
    fn start(listener: &Listener) -> Result<Self, Failure> {
        Command::new(this_program())
            .arg(ROLE)
            .arg(listener.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map(Importer)
            .map_err(|error| {
                // EAGAIN, ENOMEM, ENFILE and EMFILE are not about the right to execute.
                let advice = match error.raw_os_error() {
                    Some(23 | 24) => "raise the limit of open files: `ulimit -n`",
                    Some(11 | 12) => {
                        "this user has too many processes, or the machine too little memory"
                    }
                    _ => "this program must be allowed to execute itself (/proc/self/exe)",
                };
                failed("starting a second process", error, advice)
            })
    }

    /// Waits for it to connect, but not once it has ended.
    fn accept(&mut self, listener: &Listener) -> Result<Channel, Failure> {
        let start = Instant::now();
        loop {
            match listener.accept(Duration::from_millis(100)) {
                Ok(channel) => return Ok(channel),
                Err(error) if error.kind() != ErrorKind::Timeout || start.elapsed() > PATIENCE => {
                    return Err(explain("waiting for the second process", &error));
                }
                Err(_) if matches!(self.0.try_wait(), Ok(Some(_))) => {
                    self.finish()?;
                    return Err(failed("the second process", "it ended too early", MEMORY));
                }
                Err(_) => {}
            }
        }
    }

    /// Waits for its end and repeats what it said.
    fn finish(&mut self) -> Result<(), Failure> {
        let start = Instant::now();
        let status = loop {
            match self.0.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if start.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Ok(None) => {
                    let advice = "the driver hangs: see `nvidia-smi` and `dmesg`";
                    return Err(failed("the second process", "it does not end", advice));
                }
                Err(error) => return Err(failed("the second process", error, MEMORY)),
            }
        };
        if status.success() {
            return Ok(());
        }
        let said = match self.0.stdout.take().map(std::io::read_to_string) {
            Some(Ok(said)) if !said.trim().is_empty() => said.trim().to_owned(),
            _ => format!("it ended with {status} and said nothing"),
        };
        // The advice comes from there as well, after a tab.
        let (text, kind) = said.rsplit_once('\t').unwrap_or((&said, ""));
        Err(failed("in the second process", text, child_advice(kind)))
    }
}

impl Drop for Importer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the second process names its failures, so that the first knows what to say of them.
fn child_advice(kind: &str) -> &'static str {
    match kind {
        "driver" => {
            "the first process could use the GPU and the second could not: see the compute mode, \
             and whether something limits the number of processes"
        }
        "FdLimit" => advice(ErrorKind::FdLimit),
        "NoDevice" => advice(ErrorKind::NoDevice),
        "NotAHandle" => advice(ErrorKind::NotAHandle),
        "System" => advice(ErrorKind::System),
        "Timeout" => advice(ErrorKind::Timeout),
        "Peer" => advice(ErrorKind::Peer),
        _ => {
            "the memory was sent, and importing, mapping or copying it failed: see the compute mode"
        }
    }
}

/// The second process itself.
pub fn importer(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let Some(path) = arguments.next() else {
        to_stdout("this is for vmm-doctor itself: run it without arguments\n");
        return ExitCode::from(2);
    };
    match import(path.into()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            to_stdout(&text.replace('\n', " "));
            ExitCode::FAILURE
        }
    }
}

fn import(path: PathBuf) -> Result<(), String> {
    let ipc = |error: vmm_ipc::Error| format!("{error}\t{:?}", error.kind());
    let driver = Driver::load().map_err(|error| format!("{error}\tdriver"))?;
    let mut channel = Channel::connect(path).map_err(ipc)?;
    channel.set_timeout(PATIENCE);
    let imported = ImportOptions::read_write()
        .receive(&driver, &mut channel)
        .map_err(ipc)?;
    check(imported.buffer(), SENT)?;
    fill(imported.buffer(), ANSWER).map_err(|error| error.to_string())
}
