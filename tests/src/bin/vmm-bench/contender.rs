//! The programs that are measured, each a process that answers round by round.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::Result;
use crate::case::Case;

pub struct Entry {
    pub label: &'static str,
    program: &'static str,
    /// For a Python program, its argument.
    python: Option<&'static str>,
}

pub const CRATE: &str = "crate";
pub const NAIVE: &str = "C naive";
pub const BEST: &str = "C best";

pub const CONTENDERS: &[Entry] = &[
    native(CRATE, "bench-crate"),
    native(NAIVE, "baseline-naive"),
    native(BEST, "baseline-best"),
    python("PyTorch expandable", "peer_torch.py", "expandable"),
    python("PyTorch legacy IPC", "peer_torch.py", "legacy"),
    python("cuda.core pool IPC", "peer_cuda_core.py", ""),
];

const fn native(label: &'static str, program: &'static str) -> Entry {
    Entry {
        label,
        program,
        python: None,
    }
}

const fn python(label: &'static str, program: &'static str, mode: &'static str) -> Entry {
    Entry {
        label,
        program,
        python: Some(mode),
    }
}

impl Entry {
    pub fn is_peer(&self) -> bool {
        self.python.is_some()
    }
}

/// Microseconds by what was timed.
pub type Values = BTreeMap<String, f64>;

pub struct Contender {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Contender {
    pub fn start(entry: &'static Entry, driver: &str) -> Result<Self> {
        let path = beside(entry.program)?;
        if !path.exists() {
            return Err(format!("{} is not there", path.display()).into());
        }
        let mut command = match entry.python {
            None => Command::new(&path),
            Some(mode) => {
                let mut command = Command::new("python3");
                command.arg(&path).arg(mode);
                command
            }
        };
        choose_driver(&mut command, driver);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{}: {error}", path.display()))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let output = output.ok_or("a program without output")?;
        let mut contender = Contender {
            child,
            input,
            output: BufReader::new(output),
        };
        if entry.is_peer() {
            // It says that it is there, or in one sentence why not.
            let line = contender.line()?;
            if line != "ready" {
                return Err(line.into());
            }
        }
        Ok(contender)
    }

    /// One round.
    pub fn round(&mut self, case: &Case) -> Result<Values> {
        let input = self.input.as_mut().ok_or("a program without input")?;
        writeln!(input, "share {} {}", case.chunks, case.size)?;
        input.flush()?;
        parse(&self.line()?)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Err(format!("it ended: {}", self.child.wait()?).into());
        }
        Ok(line.trim().to_owned())
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        // The end of its input ends it.
        self.input = None;
        for _ in 0..50 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The machine, the driver and the day, one line.
pub fn describe(driver: &str) -> Result<String> {
    let path = beside("bench-crate")?;
    let mut command = Command::new(&path);
    choose_driver(&mut command, driver);
    let output = command
        .arg("describe")
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("{}: {error}", path.display()))?;
    if !output.status.success() {
        return Err("there is no driver with a device here".into());
    }
    let date = Command::new("date").args(["-u", "+%Y-%m-%d"]).output()?;
    Ok(format!(
        "{}, {}",
        String::from_utf8_lossy(&output.stdout).trim(),
        String::from_utf8_lossy(&date.stdout).trim()
    ))
}

/// What a chunk of a descriptor costs to encode and decode: chunks, and nanoseconds of each.
pub fn codec() -> Result<Vec<(f64, f64, f64)>> {
    let output = Command::new(beside("bench-crate")?).arg("codec").output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().into());
    }
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = |line| {
        let values = parse(line)?;
        let value = |key: &str| values.get(key).copied().ok_or("a value is missing");
        Ok((value("chunks")?, value("encode")?, value("decode")?))
    };
    lines.lines().map(line).collect()
}

fn choose_driver(command: &mut Command, driver: &str) {
    command.env(vmm_tests::driver::VARIABLE, driver);
    if driver == "cuda" {
        command.env_remove("VMM_LIBCUDA");
    } else {
        command.env("VMM_LIBCUDA", driver);
    }
}

fn beside(program: &str) -> Result<PathBuf> {
    let here = std::env::current_exe()?;
    let folder = here.parent().ok_or("a program without a folder")?;
    Ok(folder.join(program))
}

/// One flat object of numbers; or `{"error":"a sentence"}`.
fn parse(line: &str) -> Result<Values> {
    let malformed = || format!("it answered {line:?}");
    let inner = line
        .strip_prefix('{')
        .and_then(|rest| rest.strip_suffix('}'))
        .ok_or_else(malformed)?;
    if let Some(error) = inner.strip_prefix("\"error\":") {
        return Err(error.trim().trim_matches('"').into());
    }
    inner
        .split(',')
        .map(|pair| {
            let (key, value) = pair.split_once(':').ok_or_else(malformed)?;
            let value = value.trim().parse().map_err(|_| malformed())?;
            Ok((key.trim().trim_matches('"').to_owned(), value))
        })
        .collect()
}
