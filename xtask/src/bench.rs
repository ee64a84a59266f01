//! `cargo xtask bench`: the benchmark, built and run on this machine.

use std::ffi::OsString;

use lexopt::Parser;
use xshell::{Shell, cmd};

use crate::bundle;
use crate::result::Result;
use crate::workspace::root;

const HELP: &str = "\
cargo xtask bench [OPTION...]

Builds the benchmark and runs it on this machine's GPU. The options are those of vmm-bench:
cargo run -p vmm-tests --bin vmm-bench -- --help
";

/// Builds the programs and hands the arguments to `vmm-bench`, which explains them (`--help`).
pub fn run(mut parser: Parser) -> Result {
    let arguments: Vec<OsString> = parser.raw_args()?.collect();
    if arguments
        .iter()
        .any(|word| word == "--help" || word == "-h")
    {
        print!("{HELP}");
        return Ok(());
    }
    let shell = Shell::new()?;
    let directory = root().join("target/bench");
    bundle::make(&shell, &directory)?;
    // Paths among the arguments are meant from where the command was given.
    shell.change_dir(std::env::current_dir()?);
    let program = directory.join("vmm-bench");
    cmd!(shell, "{program} {arguments...}").run()?;
    Ok(())
}
