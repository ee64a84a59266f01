//! `record`: asks a CUDA driver the questions of a list and writes down the answers.
//!
//! The answers go into a table sorted by case, with nothing in it that changes from run to run.
//! Cases run in a process apart, so that one that crashes the driver is only one that is not
//! recorded.

mod cases;
mod rig;
mod run;

use lexopt::prelude::*;
use std::path::PathBuf;
use std::process::ExitCode;

const HELP: &str = "\
record [--driver emulator|cuda|PATH] [--out FILE] [--only PREFIX] [--list]

Asks the driver and writes the answers to FILE (standard output without it).
";

/// What the command line asks for.
pub(crate) struct Options {
    driver: String,
    out: Option<PathBuf>,
    only: String,
    /// Set for the process that asks: the first case to ask and how many at most.
    from: Option<(usize, usize)>,
}

fn main() -> ExitCode {
    let options = match parse() {
        Ok(Some(options)) => options,
        Ok(None) => return ExitCode::SUCCESS,
        Err(wrong) => {
            eprintln!("record: {wrong}");
            return ExitCode::from(2);
        }
    };
    match run::run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("record: {message}");
            ExitCode::FAILURE
        }
    }
}

fn parse() -> Result<Option<Options>, String> {
    let mut options = Options {
        driver: "emulator".into(),
        out: None,
        only: String::new(),
        from: None,
    };
    let mut parser = lexopt::Parser::from_env();
    let text = |error: lexopt::Error| error.to_string();
    while let Some(argument) = parser.next().map_err(text)? {
        match argument {
            Long("driver") => {
                options.driver = parser.value().and_then(|v| v.string()).map_err(text)?
            }
            Long("out") => options.out = Some(parser.value().map_err(text)?.into()),
            Long("only") => options.only = parser.value().and_then(|v| v.string()).map_err(text)?,
            Long("from") => {
                let from = parser.value().and_then(|v| v.parse()).map_err(text)?;
                let count = parser.value().and_then(|v| v.parse()).map_err(text)?;
                options.from = Some((from, count));
            }
            Long("list") => {
                for case in cases::all() {
                    println!("{}\t{}", case.name, case.words);
                }
                return Ok(None);
            }
            Short('h') | Long("help") => {
                print!("{HELP}");
                return Ok(None);
            }
            other => return Err(other.unexpected().to_string()),
        }
    }
    Ok(Some(options))
}
