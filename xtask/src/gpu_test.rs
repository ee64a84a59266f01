//! `cargo xtask gpu-test`: the suites and the main job on a real driver.

use std::path::PathBuf;

use lexopt::Parser;
use lexopt::prelude::*;
use xshell::{Shell, cmd};

use crate::bundle;
use crate::result::Result;
use crate::workspace::root;

const HELP: &str = "\
cargo xtask gpu-test [--bundle DIR] [quick|full] [PART...]

Runs everything that needs a GPU on this machine's and fails where there is none.
  quick         only the parts that take seconds
  full          every part (default)
  PART          only the parts of these names
  --bundle DIR  run nothing; leave the programs in DIR with a run.sh that does the same
                on a machine without a Rust toolchain
";

pub fn run(mut parser: Parser) -> Result {
    let mut directory: Option<PathBuf> = None;
    let mut words = Vec::new();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("bundle") => directory = Some(parser.value()?.into()),
            Value(word) => words.push(word.string()?),
            Short('h') | Long("help") => {
                print!("{HELP}");
                return Ok(());
            }
            other => return Err(other.unexpected().into()),
        }
    }
    let shell = Shell::new()?;
    if let Some(directory) = directory {
        if !words.is_empty() {
            return Err(crate::result::usage(
                "--bundle takes no parts: they are chosen when run.sh is run",
            ));
        }
        return bundle::make(&shell, &std::path::absolute(directory)?);
    }
    let directory = root().join("target/gpu-test");
    bundle::make(&shell, &directory)?;
    if !words.iter().any(|word| word == "quick" || word == "full") {
        words.insert(0, "full".to_owned());
    }
    let script = directory.join("run.sh");
    let mut command = cmd!(shell, "{script} {words...}");
    if std::env::var_os("OUT").is_none() {
        command = command.env("OUT", root().join("target/gpu-test/out"));
    }
    command.run()?;
    Ok(())
}
