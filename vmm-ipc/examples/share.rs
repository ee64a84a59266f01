//! The main job: a buffer of several chunks, grown, filled and handed to another program, which
//! sees it at one contiguous range of its own, checks every byte and writes others; then the first
//! program ends, and the second still reads what it wrote.
//!
//! ```text
//! cargo run --release -p vmm-ipc --example share
//! cargo run --release -p vmm-ipc --example share -- --chunks 512 --chunk-size 2M
//! ```
//!
//! Three processes take part. The one that you start only directs and reports; it executes itself
//! as the exporter and as the importer, and they have nothing in common but a Unix socket. They
//! report by lines on their standard output and wait at agreed places for a line on their standard
//! input.

mod common;

use std::io::{BufReader, IsTerminal, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use common::{Choice, Error, describe, parse_size, size_text};
use lexopt::prelude::*;
use vmm::{Allocator, Buffer, ChunkPolicy, HandleTypes};
use vmm_ipc::{Channel, Exporter, ImportOptions, Importer, Listener};

const HELP: &str = "\
Shares a GPU buffer of several chunks between two programs, checks every byte both ways, and says
what each step took.

  --driver auto|cuda|emulator|PATH  auto (default): the GPU where there is one, else the software
                                    emulator; PATH: a CUDA driver library
  --chunks N                        chunks of the buffer, 3 by default
  --chunk-size SIZE                 size of each, such as 64M or 1G; by default they differ
  --json                            print one JSON object instead of tables
";

/// What the exporter writes, and what the importer writes over it.
const EXPORTED: u64 = 0x0123_4567_89ab_cdef;
const WRITTEN_BACK: u64 = 0xfedc_ba98_7654_3210;

/// How long either program waits for the other.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("exporter") => worker(|report| exporter(report, arguments.collect())),
        Some("importer") => worker(|report| importer(report, arguments.collect())),
        _ => direct(),
    }
}

// ---- the exporter ----

fn exporter(report: &mut Report, arguments: Vec<String>) -> Result<(), Error> {
    let [driver, chunks, chunk_size] = arguments.as_slice() else {
        return Err("the exporter is started by the director".into());
    };
    let driver = Choice::parse(driver)?.open()?;
    report.say(&format!("driver {}", describe(&driver)))?;
    report.say(&format!("emulator {}", driver.is_emulator()))?;
    let device = driver.device(0)?;
    report.say(&format!("device {} {}", device.uuid(), device.name()))?;

    let allocator = Allocator::builder(&device)
        .handle_types(HandleTypes::POSIX_FD)
        .chunk_policy(ChunkPolicy::exact())
        .build()?;
    let sizes = sizes(
        chunks.parse()?,
        chunk_size.parse()?,
        allocator.granularity(),
    )?;
    let buffer = report.step("allocate and grow", |_| {
        let mut sizes = sizes.iter();
        let mut buffer = allocator.allocate(sizes.next().copied().unwrap_or_default())?;
        for size in sizes {
            buffer = buffer.grow(buffer.len() + size)?;
        }
        Ok(buffer)
    })?;
    report.chunks(&buffer)?;
    let total = buffer.len();
    report.step("fill", |report| {
        common::fill(&buffer, EXPORTED, report.progress("fill", total))
    })?;

    let exporter = report.step("set up exporting", |_| Ok(Exporter::new(&device)?))?;
    let listener = Listener::new()?;
    report.say(&format!("listening {}", listener.path().display()))?;
    let mut channel = listener.accept(PATIENCE)?;
    channel.set_timeout(PATIENCE);
    let export = report.step("export and send", |_| {
        Ok(exporter.share(&buffer, &mut channel)?)
    })?;
    drop(channel);
    report.wait("sent")?;
    report.step("check what came back", |report| {
        common::check(&buffer, WRITTEN_BACK, report.progress("check", total))
    })?;
    // Everything goes here; the importer's mapping of the memory stays.
    drop((export, exporter, buffer));
    Ok(())
}

/// The sizes of the chunks: `chunk_size` each, or different ones where it is 0.
fn sizes(chunks: usize, chunk_size: usize, granularity: usize) -> Result<Vec<usize>, Error> {
    if !chunk_size.is_multiple_of(granularity) {
        return Err(format!(
            "--chunk-size {chunk_size}: a chunk is a multiple of {} on this device",
            size_text(granularity)
        )
        .into());
    }
    Ok((0..chunks)
        .map(|chunk| match chunk_size {
            0 => (chunk % 3 + 1) * 2 * granularity,
            size => size,
        })
        .collect())
}

// ---- the importer ----

fn importer(report: &mut Report, arguments: Vec<String>) -> Result<(), Error> {
    let [driver, path] = arguments.as_slice() else {
        return Err("the importer is started by the director".into());
    };
    let driver = Choice::parse(driver)?.open()?;
    let importer = report.step("set up importing", |_| {
        Ok(Importer::new(&driver.device(0)?)?)
    })?;
    let mut channel = Channel::connect(path)?;
    channel.set_timeout(PATIENCE);
    let imported = report.step("receive and map", |_| {
        Ok(importer.receive(ImportOptions::read_write(), &mut channel)?)
    })?;
    drop(channel);
    let buffer = imported.buffer();
    report.chunks(buffer)?;
    let total = buffer.len();
    report.step("check", |report| {
        common::check(buffer, EXPORTED, report.progress("check", total))
    })?;
    report.step("write back", |report| {
        common::fill(buffer, WRITTEN_BACK, report.progress("write back", total))
    })?;
    report.wait("written")?;
    report.step("check after the exporter's end", |report| {
        common::check(buffer, WRITTEN_BACK, report.progress("check again", total))
    })?;
    Ok(())
}

// ---- what both report ----

/// A worker's way to the director.
struct Report {
    /// When progress was last reported.
    last: Instant,
}

impl Report {
    fn say(&mut self, line: &str) -> Result<(), Error> {
        let mut output = std::io::stdout().lock();
        writeln!(output, "{line}")?;
        Ok(output.flush()?)
    }

    /// Does `work` and reports the time it took.
    fn step<T>(
        &mut self,
        name: &str,
        work: impl FnOnce(&mut Report) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let start = Instant::now();
        self.last = start;
        let value = work(self).map_err(|error| format!("{name}: {error}"))?;
        self.say(&format!("step {} {name}", start.elapsed().as_micros()))?;
        Ok(value)
    }

    /// Reports the progress of a step that takes longer than a second.
    fn progress(&mut self, name: &'static str, total: usize) -> impl FnMut(usize) {
        move |done| {
            if self.last.elapsed() >= Duration::from_secs(1) {
                self.last = Instant::now();
                let percent = done as u128 * 100 / total.max(1) as u128;
                // Nobody needs to hear it.
                let _ = self.say(&format!("progress {name} {percent}"));
            }
        }
    }

    fn chunks(&mut self, buffer: &Buffer) -> Result<(), Error> {
        for chunk in buffer.chunks() {
            self.say(&format!(
                "chunk {} {} {:#x}",
                chunk.offset, chunk.size, chunk.address
            ))?;
        }
        Ok(())
    }

    /// Says that this point is reached and waits until the director lets it go on.
    fn wait(&mut self, point: &str) -> Result<(), Error> {
        self.say(&format!("at {point}"))?;
        match common::read_line(&mut std::io::stdin().lock())? {
            Some(line) if line == "go" => Ok(()),
            _ => Err("the director is gone".into()),
        }
    }
}

fn worker(work: impl FnOnce(&mut Report) -> Result<(), Error>) -> ExitCode {
    let mut report = Report {
        last: Instant::now(),
    };
    match work(&mut report) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The director prints it; if it is gone, nobody is left to hear.
            let _ = report.say(&format!("error {}", error.to_string().replace('\n', " ")));
            ExitCode::FAILURE
        }
    }
}

// ---- the director ----

/// `println!`, but a reader that went away is no reason to fail.
macro_rules! say {
    ($($text:tt)*) => {{
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}

struct Options {
    driver: Choice,
    chunks: usize,
    /// 0: of different sizes.
    chunk_size: usize,
    json: bool,
}

fn options() -> Result<Option<Options>, lexopt::Error> {
    let mut options = Options {
        driver: Choice::Auto,
        chunks: 3,
        chunk_size: 0,
        json: false,
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("driver") => options.driver = Choice::parse(&parser.value()?.string()?)?,
            Long("chunks") => {
                let text = parser.value()?.string()?;
                options.chunks = match text.parse() {
                    Ok(chunks @ 1..=MOST_CHUNKS) => chunks,
                    _ => return Err(format!("--chunks {text}: expected 1 to {MOST_CHUNKS}").into()),
                };
            }
            Long("chunk-size") => {
                let text = parser.value()?.string()?;
                options.chunk_size = match parse_size("--chunk-size", &text)? {
                    0 => return Err(format!("--chunk-size {text}: a chunk cannot be empty").into()),
                    size => size,
                };
            }
            Long("json") => options.json = true,
            Short('h') | Long("help") => return Ok(None),
            other => return Err(other.unexpected()),
        }
    }
    if options
        .chunks
        .checked_mul(options.chunk_size)
        .is_none_or(|total| total > isize::MAX as usize)
    {
        return Err("--chunks times --chunk-size is more than this machine can address".into());
    }
    Ok(Some(options))
}

/// More is possible, but takes a limit of open files that no system has by default.
const MOST_CHUNKS: usize = 100_000;

fn direct() -> ExitCode {
    let mut options = match options() {
        Ok(Some(options)) => options,
        Ok(None) => {
            say!("{}", HELP.trim_end());
            return ExitCode::SUCCESS;
        }
        Err(error) => return common::exit(Err(error.into())),
    };
    let mut outcome = Outcome::default();
    let result = run(&mut options, &mut outcome);
    if options.json {
        say!("{}", outcome.json(&result));
    } else if result.is_ok() {
        outcome.print();
        say!("OK");
    }
    common::exit(result)
}

/// Starts both programs and leads them through the job.
fn run(options: &mut Options, outcome: &mut Outcome) -> Result<(), Error> {
    // Opened here only to choose: the workers open it for themselves.
    drop(options.driver.open()?);
    let driver = options.driver.to_string();
    let (chunks, size) = (options.chunks.to_string(), options.chunk_size.to_string());
    let show = !options.json && std::io::stderr().is_terminal();

    let mut exporter = Worker::start("exporter", &[&driver, &chunks, &size], show)?;
    let path = exporter.until("listening", outcome)?;
    let mut importer = Worker::start("importer", &[&driver, &path], show)?;
    if let Err(error) = importer.until("at written", outcome) {
        drop(importer);
        // Which of the two failed first is seen only from what both say.
        return Err(match exporter.until("at sent", outcome) {
            Ok(_) => error,
            Err(other) => format!("{error}; {other}").into(),
        });
    }
    exporter.until("at sent", outcome)?;
    exporter.go()?;
    exporter.finish(outcome)?;
    importer.go()?;
    importer.finish(outcome)
}

/// One of the two programs, seen from the director. Dropping it kills it.
struct Worker {
    name: &'static str,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    show: bool,
}

impl Worker {
    fn start(name: &'static str, arguments: &[&str], show: bool) -> Result<Worker, Error> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(name)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("a program without its pipes".into());
        };
        Ok(Worker {
            name,
            child,
            input,
            output: BufReader::new(output),
            show,
        })
    }

    /// Takes down what the program reports, until a line that begins with `word`; returns the rest
    /// of that line.
    fn until(&mut self, word: &str, outcome: &mut Outcome) -> Result<String, Error> {
        while let Some(line) = common::read_line(&mut self.output)? {
            if let Some(rest) = line.strip_prefix(word) {
                return Ok(rest.trim_start().to_owned());
            }
            self.note(&line, outcome)?;
        }
        let status = self.child.wait()?;
        Err(format!("the {} ended before its time ({status})", self.name).into())
    }

    fn note(&mut self, line: &str, outcome: &mut Outcome) -> Result<(), Error> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "error" => return Err(format!("{}: {rest}", self.name).into()),
            "progress" if self.show => eprint!("\r\x1b[K{}: {rest} %", self.name),
            "step" => {
                if self.show {
                    eprint!("\r\x1b[K");
                }
                let (time, name) = rest.split_once(' ').unwrap_or((rest, ""));
                outcome.steps.push(Step {
                    program: self.name,
                    name: name.to_owned(),
                    microseconds: time.parse()?,
                });
            }
            "chunk" => outcome.chunk(self.name, rest)?,
            _ => outcome.facts.push((word.to_owned(), rest.to_owned())),
        }
        Ok(())
    }

    fn go(&mut self) -> Result<(), Error> {
        writeln!(self.input, "go").map_err(|_| format!("the {} is gone", self.name).into())
    }

    /// Takes down the rest and waits for the end, which must be a good one.
    fn finish(mut self, outcome: &mut Outcome) -> Result<(), Error> {
        while let Some(line) = common::read_line(&mut self.output)? {
            self.note(&line, outcome)?;
        }
        match self.child.wait()? {
            status if status.success() => Ok(()),
            status => Err(format!("the {} failed ({status})", self.name).into()),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Both fail only for a program that has ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

// ---- the outcome ----

#[derive(Default)]
struct Outcome {
    /// What the exporter said of the driver and the device, as words and values.
    facts: Vec<(String, String)>,
    chunks: Vec<Row>,
    steps: Vec<Step>,
}

#[derive(Default)]
struct Row {
    offset: usize,
    size: usize,
    exporter: String,
    importer: String,
}

struct Step {
    program: &'static str,
    name: String,
    microseconds: u64,
}

impl Outcome {
    fn fact(&self, word: &str) -> &str {
        let found = self.facts.iter().find(|(known, _)| known == word);
        found.map_or("", |(_, value)| value)
    }

    /// Takes down where one program has a chunk; both must agree on all but the address.
    fn chunk(&mut self, program: &str, text: &str) -> Result<(), Error> {
        let mut words = text.split(' ');
        let mut word = || words.next().ok_or("a chunk without all of its numbers");
        let (offset, size, address) = (word()?.parse()?, word()?.parse()?, word()?.to_owned());
        if program == "exporter" {
            self.chunks.push(Row {
                offset,
                size,
                exporter: address,
                importer: String::new(),
            });
            return Ok(());
        }
        match self.chunks.iter_mut().find(|row| row.importer.is_empty()) {
            Some(row) if (row.offset, row.size) == (offset, size) => row.importer = address,
            _ => {
                return Err(format!(
                    "mismatch: the importer has a chunk of {size} bytes at {offset}"
                )
                .into());
            }
        }
        Ok(())
    }

    fn print(&self) {
        let (uuid, name) = self.fact("device").split_once(' ').unwrap_or_default();
        say!("driver  {}", self.fact("driver"));
        say!("device  {name}, {uuid}");
        let total: usize = self.chunks.iter().map(|row| row.size).sum();
        say!(
            "buffer  {}, chunks: {}",
            size_text(total),
            self.chunks.len()
        );
        say!("");
        say!("chunk        offset        size    exporter address    importer address");
        for (index, row) in self.chunks.iter().enumerate() {
            // Many chunks are shown by the first and the last.
            if index == SHOWN / 2 && self.chunks.len() > SHOWN {
                say!("  ...");
            }
            if index < SHOWN / 2 || index + SHOWN / 2 >= self.chunks.len() {
                let (offset, size) = (size_text(row.offset), size_text(row.size));
                say!(
                    "{index:>5}  {offset:>12}  {size:>10}  {:>18}  {:>18}",
                    row.exporter,
                    row.importer
                );
            }
        }
        say!("");
        say!("program   step                                    ms");
        for step in &self.steps {
            let milliseconds = step.microseconds as f64 / 1000.0;
            say!("{:<9} {:<32} {milliseconds:>9.3}", step.program, step.name);
        }
        say!("");
    }

    fn json(&self, result: &Result<(), Error>) -> serde_json::Value {
        let (uuid, name) = self.fact("device").split_once(' ').unwrap_or_default();
        let chunks: Vec<_> = self
            .chunks
            .iter()
            .map(|row| {
                serde_json::json!({
                    "offset": row.offset,
                    "size": row.size,
                    "exporter_address": row.exporter,
                    "importer_address": row.importer,
                })
            })
            .collect();
        let steps: Vec<_> = self
            .steps
            .iter()
            .map(|step| {
                serde_json::json!({
                    "program": step.program,
                    "step": step.name,
                    "microseconds": step.microseconds,
                })
            })
            .collect();
        serde_json::json!({
            "driver": self.fact("driver"),
            "emulator": self.fact("emulator") == "true",
            "device": { "name": name, "uuid": uuid },
            "chunks": chunks,
            "steps": steps,
            "result": match result {
                Ok(()) => "OK".to_owned(),
                Err(error) => error.to_string(),
            },
        })
    }
}

/// How many chunks the table shows.
const SHOWN: usize = 16;
