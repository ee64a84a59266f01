//! The checks and tools of this workspace: `cargo xtask COMMAND`.

mod aarch64;
mod abi_check;
mod bench;
mod bindings;
mod bundle;
mod ci;
mod emulator;
mod functions;
mod gpu_test;
mod hardware;
mod headers;
mod result;
mod syscalls;
mod table;
mod valgrind;
mod workspace;

use std::process::ExitCode;

use lexopt::Parser;

use crate::result::{Result, usage};

struct Command {
    name: &'static str,
    about: &'static str,
    run: fn(Parser) -> Result,
}

const COMMANDS: &[Command] = &[
    Command {
        name: "bindings",
        about: "generate what is made from NVIDIA's headers (--check: compare only)",
        run: bindings::run,
    },
    Command {
        name: "abi-check",
        about: "compare vmm-sys with what a C compiler says of NVIDIA's headers",
        run: abi_check::run,
    },
    Command {
        name: "gpu-test",
        about: "run everything that needs a GPU on this machine's, or bundle it for another machine",
        run: gpu_test::run,
    },
    Command {
        name: "bench",
        about: "measure the crate beside C and other libraries on this machine's GPU",
        run: bench::run,
    },
    Command {
        name: "emulator",
        about: "build the emulator as libcuda.so.1; the last line is its directory",
        run: emulator::build,
    },
    Command {
        name: "emulator-vs-gpu",
        about: "print the cases of a recording that the emulator answers otherwise",
        run: emulator::compare,
    },
    Command {
        name: "ci",
        about: "run the checks that need no GPU, as .ci/run does after the tests",
        run: ci::run,
    },
];

fn main() -> ExitCode {
    match dispatch() {
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

fn dispatch() -> Result {
    use lexopt::prelude::*;
    let mut parser = Parser::from_env();
    match parser.next()? {
        Some(Value(word)) => {
            let word = word.string()?;
            match COMMANDS.iter().find(|command| command.name == word) {
                Some(command) => (command.run)(parser),
                None => Err(usage(format!("no command is named `{word}`\n\n{}", help()))),
            }
        }
        Some(Short('h') | Long("help")) | None => {
            print!("{}", help());
            Ok(())
        }
        Some(other) => Err(other.unexpected().into()),
    }
}

fn help() -> String {
    let mut text = String::from("cargo xtask COMMAND\n\n");
    for command in COMMANDS {
        text.push_str(&format!("  {:<16} {}\n", command.name, command.about));
    }
    text
}
