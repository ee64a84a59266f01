//! The crate's side of the benchmark: the same rounds as the C baselines in `tests/baseline`.
//!
//! One line on standard input, `share CHUNKS SIZE`, is one round, answered by one line of JSON with
//! microseconds. The importers are processes of their own and stay for all rounds.

use std::error::Error;
use std::hint::black_box;
use std::io::{BufRead, Write};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use vmm::{Allocator, ChunkPolicy, Driver, HandleTypes};
use vmm_ipc::wire::{Descriptor, Message};
use vmm_ipc::{Channel, Exporter, ImportOptions, Imported, Importer, Listener};

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

const GROW: usize = 2 << 20;

fn main() -> Result {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [word, path] if word == "importer" => importer(path),
        [word] if word == "describe" => describe(),
        [word] if word == "codec" => codec(),
        [word] if word == "--help" || word == "-h" => {
            println!(
                "bench-crate is a part of vmm-bench, which starts it and talks to it by lines"
            );
            Ok(())
        }
        _ => exporter(),
    }
}

/// The device and the driver, one line.
fn describe() -> Result {
    let driver = vmm_tests::driver::from_environment().map_err(|failure| failure.to_string())?;
    let device = driver.device(0)?;
    let module = std::fs::read_to_string("/sys/module/nvidia/version");
    let version = match module {
        _ if driver.is_emulator() => "software emulator, whose times say nothing of a GPU".into(),
        Ok(version) => format!("driver {}", version.trim()),
        Err(_) => "driver of unknown version".into(),
    };
    let cuda = driver.version();
    println!(
        "{}, {version}, CUDA {}.{}",
        device.name(),
        cuda / 1000,
        cuda % 1000 / 10
    );
    Ok(())
}

/// Encoding and decoding, in nanoseconds a chunk: one line of JSON for each number of chunks. No
/// driver is needed.
fn codec() -> Result {
    for chunks in [1, 1024, 100_000_u32] {
        let encoded = descriptor_bytes(chunks);
        let descriptor = Descriptor::decode(&encoded)?;
        if descriptor.encode() != encoded {
            return Err("a descriptor does not encode to what it was decoded from".into());
        }
        let encode = nanoseconds(chunks, || {
            black_box(black_box(&descriptor).encode());
            Ok(())
        })?;
        let decode = nanoseconds(chunks, || {
            black_box(Descriptor::decode(black_box(&encoded))?);
            Ok(())
        })?;
        println!("{{\"chunks\":{chunks},\"encode\":{encode:.3},\"decode\":{decode:.3}}}");
    }
    Ok(())
}

/// A descriptor of chunks of 2 MiB that travel as file descriptors, as `docs/protocol.md` has it.
fn descriptor_bytes(chunks: u32) -> Vec<u8> {
    let granularity = 2_u64 << 20;
    let len = granularity * u64::from(chunks);
    let mut bytes = b"VMMD".to_vec();
    bytes.extend([1, 0, 0, 0]);
    bytes.extend((88 + 8 * chunks).to_le_bytes());
    bytes.extend(chunks.to_le_bytes());
    bytes.extend([7; 40]);
    bytes.extend([1, 1, 0, 0, 0, 0, 0, 0]);
    bytes.extend(
        [granularity, len, len]
            .into_iter()
            .flat_map(u64::to_le_bytes),
    );
    bytes.extend((0..chunks).flat_map(|_| granularity.to_le_bytes()));
    bytes
}

/// The median of 31 runs, each of at least 200 000 chunks, by chunk.
fn nanoseconds(chunks: u32, mut work: impl FnMut() -> Result) -> Result<f64> {
    let times = (200_000 / chunks).max(1);
    let mut samples = Vec::new();
    for _ in 0..31 {
        let start = Instant::now();
        for _ in 0..times {
            work()?;
        }
        samples.push(start.elapsed().as_nanos() as f64 / f64::from(times) / f64::from(chunks));
    }
    samples.sort_by(f64::total_cmp);
    samples.get(15).copied().ok_or_else(|| "no samples".into())
}

fn importer(path: &str) -> Result {
    let driver = vmm_tests::driver::from_environment().map_err(|failure| failure.to_string())?;
    // As the exporter, a process that imports makes one of these early and keeps it.
    let importer = Importer::new(&driver.device(0)?)?;
    let mut channel = Channel::connect(path)?;
    channel.set_timeout(Duration::from_secs(600));
    let mut imported: Option<Imported> = None;
    // Ready.
    channel.send(
        &Message::Retired {
            id: vmm_ipc::wire::BufferId([0; 16]),
        },
        &[],
    )?;
    loop {
        let received = match channel.receive() {
            Ok(received) => received,
            Err(error) if error.kind() == vmm_ipc::ErrorKind::Hangup => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        match received.message {
            Message::Offer(descriptor) => {
                let options = ImportOptions::read_write();
                imported =
                    Some(options.receive_offered(importer.driver(), &mut channel, descriptor)?);
            }
            Message::Update(update) => {
                let imported = imported.as_mut().ok_or("an update came first")?;
                imported.receive_offered_update(&mut channel, &update)?;
            }
            Message::Retired { id } => {
                if let Some(imported) = imported.take() {
                    imported.into_buffer().close()?;
                }
                channel.send(&Message::Retired { id }, &[])?;
            }
            other => return Err(format!("{:?} came", other.kind()).into()),
        }
    }
}

fn exporter() -> Result {
    let listener = Listener::new()?;
    let driver = vmm_tests::driver::from_environment().map_err(|failure| failure.to_string())?;
    let mut importers = [Peer::start(&listener)?, Peer::start(&listener)?];
    let device = driver.device(0)?;
    let exporter = Exporter::new(&device)?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["share", chunks, size] = words.as_slice() else {
            return Err("expected: share CHUNKS SIZE".into());
        };
        let json = round(
            &driver,
            &exporter,
            &mut importers,
            chunks.parse()?,
            size.parse()?,
        )?;
        let mut out = std::io::stdout().lock();
        writeln!(out, "{json}")?;
        out.flush()?;
    }
    Ok(())
}

fn round(
    driver: &Driver,
    exporter: &Exporter,
    [a, b]: &mut [Peer; 2],
    chunks: usize,
    size: usize,
) -> Result<String> {
    let allocator = Allocator::builder(&driver.device(0)?)
        .handle_types(HandleTypes::POSIX_FD)
        .chunk_policy(ChunkPolicy::exact().largest(size))
        .build()?;
    let buffer = allocator.allocate_with_capacity(chunks * size, chunks * size + 2 * GROW)?;
    if buffer.chunk_count() != chunks {
        return Err(format!("{} chunks instead of {chunks}", buffer.chunk_count()).into());
    }

    let start = Instant::now();
    let mut export = exporter.share(&buffer, &mut a.channel)?;
    let first = start.elapsed();

    let start = Instant::now();
    export.send(&mut b.channel)?;
    let second = start.elapsed();

    let start = Instant::now();
    let grown = buffer.grow(buffer.len() + GROW)?;
    export.grow(&grown)?;
    export.send_updates(&mut a.channel, 0)?;
    let grow = start.elapsed();

    // At once: the first found driver and caches as a pause leaves them.
    let start = Instant::now();
    let again = grown.grow(grown.len() + GROW)?;
    export.grow(&again)?;
    export.send_updates(&mut a.channel, 1)?;
    let grow_again = start.elapsed();

    let start = Instant::now();
    a.drop_buffer(&export)?;
    let importer_teardown = start.elapsed();
    b.drop_buffer(&export)?;

    let start = Instant::now();
    drop(export);
    drop((buffer, grown));
    again.close()?;
    let teardown = start.elapsed();

    let us = |duration: Duration| duration.as_nanos() as f64 / 1e3;
    Ok(format!(
        "{{\"first\":{:.1},\"second\":{:.1},\"grow\":{:.1},\"grow_again\":{:.1},\"importer_teardown\":{:.1},\"teardown\":{:.1}}}",
        us(first),
        us(second),
        us(grow),
        us(grow_again),
        us(importer_teardown),
        us(teardown)
    ))
}

/// An importer process, and the channel to it.
struct Peer {
    channel: Channel,
    child: Child,
}

impl Peer {
    fn start(listener: &Listener) -> Result<Self> {
        let child = Command::new(std::env::current_exe()?)
            .arg("importer")
            .arg(listener.path())
            .spawn()?;
        let mut channel = listener.accept(Duration::from_secs(60))?;
        channel.set_timeout(Duration::from_secs(600));
        channel.receive()?;
        Ok(Peer { channel, child })
    }

    fn drop_buffer(&mut self, export: &vmm_ipc::Export) -> Result {
        export.send_retirement(&mut self.channel)?;
        self.channel.receive()?;
        Ok(())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It ends by itself when the channel is gone, which is after this; so it is not waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
