//! The benchmark: the crate, two C programs and what other libraries offer, in turn.
//!
//! It runs the programs that lie beside it (`bench-crate`, `baseline-naive`, `baseline-best`,
//! `peer_torch.py`, `peer_cuda_core.py`), each a process that answers one line, `share CHUNKS SIZE`,
//! with one line of microseconds. They take turns, so that all meet the same machine in the same
//! minute, but only one lives at a time: an export that one process keeps open makes exporting
//! cheaper for every process of the GPU. `bench.json`, `bench.md` and `bench.svg` are left in the
//! folder that `--out` names.

mod case;
mod contender;
mod plot;
mod report;
mod stats;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use lexopt::prelude::*;

use case::{CASES, Case};
use contender::{CONTENDERS, Contender, Entry, Values};
use report::Report;
use stats::Samples;

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

const HELP: &str = "\
vmm-bench [--driver cuda|PATH] [--seconds N] [--rounds N] [--quick] [--no-peers] [--out DIR]

  --driver cuda|PATH  the real driver (default), or a library at a path with a slash
  --seconds N         for all cases together, 400 by default
  --rounds N          at most so many rounds a case, 30 by default
  --quick             150 seconds, at most 12 rounds
  --no-peers          the crate and the C programs alone
  --out DIR           where bench.json, bench.md and bench.svg go, $OUT or . by default
";

struct Options {
    driver: String,
    seconds: u64,
    rounds: usize,
    peers: bool,
    out: PathBuf,
}

fn main() -> ExitCode {
    match run() {
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

fn run() -> Result {
    let Some(options) = options()? else {
        print!("{HELP}");
        return Ok(());
    };
    raise_fd_limit()?;
    let machine = contender::describe(&options.driver)?;
    println!("{machine}");
    // Before the other programs are there to disturb it.
    let codec = contender::codec()?;
    let mut entries = Vec::new();
    let mut absent = Vec::new();
    for entry in CONTENDERS {
        if entry.is_peer() && (!options.peers || options.driver != "cuda") {
            absent.push((entry.label, "not asked for".to_owned()));
            continue;
        }
        match Contender::start(entry, &options.driver) {
            Ok(_) => entries.push(entry),
            Err(error) if entry.is_peer() => absent.push((entry.label, error.to_string())),
            Err(error) => return Err(format!("{}: {error}", entry.label).into()),
        }
    }
    for (label, why) in &absent {
        println!("{label}: {why}");
    }
    let mut report = Report::new(machine, absent, codec);
    let end = Instant::now() + Duration::from_secs(options.seconds);
    for (index, case) in CASES.iter().enumerate() {
        let weights: f64 = CASES.iter().skip(index).map(|case| case.weight).sum();
        let left = end.saturating_duration_since(Instant::now());
        let budget = left.mul_f64(case.weight / weights);
        let result = measure(case, &entries, &options, budget);
        println!("{}", report::lines(case, &result));
        report.add(case, result);
        // Whatever happens later, what is measured is not lost.
        report.write(&options.out)?;
    }
    println!("{}", report.markdown());
    let failed = report.failures();
    if failed.is_empty() {
        Ok(())
    } else {
        Err(failed.join("; ").into())
    }
}

/// What one contender did in one case.
struct Measured {
    label: &'static str,
    peer: bool,
    samples: Samples,
    error: Option<String>,
}

/// Rounds that are counted in one life of a program, after one that is not.
const ROUNDS: usize = 6;

/// Turns of one case until the time is up, the first program another each turn. A peer, which takes
/// seconds to start, has all its rounds in the first turn.
fn measure(
    case: &Case,
    entries: &[&'static Entry],
    options: &Options,
    budget: Duration,
) -> Vec<Measured> {
    const LEAST: usize = 2;
    let mut results: Vec<Measured> = entries
        .iter()
        .map(|entry| Measured {
            label: entry.label,
            peer: entry.is_peer(),
            samples: Samples::default(),
            error: None,
        })
        .collect();
    let count = entries.len();
    let start = Instant::now();
    let mut longest = Duration::ZERO;
    for turn in 0..options.rounds.div_ceil(ROUNDS) {
        let began = Instant::now();
        if turn >= LEAST && start.elapsed() + longest > budget {
            break;
        }
        for place in 0..count {
            let at = (turn + place) % count;
            let (Some(entry), Some(result)) = (entries.get(at), results.get_mut(at)) else {
                continue;
            };
            if result.error.is_some() || (entry.is_peer() && turn > 0) {
                continue;
            }
            let rounds = if entry.is_peer() { 2 * ROUNDS } else { ROUNDS };
            match life(entry, case, &options.driver, rounds) {
                Ok(all) => all
                    .into_iter()
                    .for_each(|values| result.samples.add(values)),
                Err(error) => result.error = Some(error.to_string()),
            }
        }
        if turn > 0 {
            longest = longest.max(began.elapsed());
        }
    }
    results
}

/// One life of one program.
fn life(entry: &'static Entry, case: &Case, driver: &str, rounds: usize) -> Result<Vec<Values>> {
    let mut contender = Contender::start(entry, driver)?;
    contender.round(case)?;
    (0..rounds).map(|_| contender.round(case)).collect()
}

/// Thousands of file descriptors are open at once where the chunks are many.
fn raise_fd_limit() -> Result {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    )?;
    Ok(())
}

fn options() -> std::result::Result<Option<Options>, lexopt::Error> {
    let mut options = Options {
        driver: "cuda".to_owned(),
        seconds: 400,
        rounds: 30,
        peers: true,
        out: std::env::var_os("OUT").map_or_else(|| PathBuf::from("."), PathBuf::from),
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("driver") => options.driver = parser.value()?.string()?,
            Long("seconds") => options.seconds = parser.value()?.parse()?,
            Long("rounds") => options.rounds = parser.value()?.parse()?,
            Long("quick") => (options.seconds, options.rounds) = (150, 12),
            Long("no-peers") => options.peers = false,
            Long("out") => options.out = parser.value()?.into(),
            Short('h') | Long("help") => return Ok(None),
            other => return Err(other.unexpected()),
        }
    }
    if options.driver != "cuda" && !options.driver.contains('/') {
        return Err("--driver takes `cuda` or a path with a slash".into());
    }
    Ok(Some(options))
}
