//! `cargo xtask ci`: the checks that need no GPU, each with the seconds it took.

use std::time::Instant;

use lexopt::Parser;
use lexopt::prelude::*;
use xshell::{Shell, cmd};

use crate::{Result, root};

const HELP: &str = "\
cargo xtask ci [STEP...]

Runs the checks that .ci/run makes after the README's two commands, or only the steps named.
Needs cargo-deny, cargo-fuzz and a nightly toolchain; .ci/run installs the first two.
";

struct Step {
    name: &'static str,
    run: fn(&Shell) -> Result,
}

const STEPS: &[Step] = &[
    Step {
        name: "fmt",
        run: |sh| Ok(cmd!(sh, "cargo fmt --all --check").run()?),
    },
    Step {
        name: "clippy",
        run: |sh| {
            Ok(cmd!(
                sh,
                "cargo clippy --locked --workspace --all-targets --all-features -- -D warnings"
            )
            .run()?)
        },
    },
    Step {
        name: "doc",
        run: |sh| {
            let _flags = sh.push_env("RUSTDOCFLAGS", "-D warnings");
            Ok(cmd!(
                sh,
                "cargo doc --locked --workspace --all-features --no-deps"
            )
            .run()?)
        },
    },
    Step {
        name: "bindings",
        run: |sh| Ok(cmd!(sh, "cargo xtask bindings --check").run()?),
    },
    Step {
        name: "abi-check",
        run: |sh| Ok(cmd!(sh, "cargo xtask abi-check").run()?),
    },
    Step {
        name: "emulator",
        run: |sh| Ok(cmd!(sh, "cargo xtask emulator --check").run()?),
    },
    Step {
        name: "features",
        // All of them together are clippy's; this is none of them.
        run: |sh| {
            Ok(cmd!(
                sh,
                "cargo check --locked --workspace --all-targets --no-default-features"
            )
            .run()?)
        },
    },
    Step {
        name: "package",
        // A crate whose dependencies are not published yet cannot be packed, only listed.
        run: |sh| {
            cmd!(
                sh,
                "cargo package --locked --no-verify --quiet --package vmm-sys"
            )
            .run()?;
            for package in ["vmm", "vmm-ipc"] {
                cmd!(sh, "cargo package --locked --list --package {package}")
                    .ignore_stdout()
                    .run()?;
            }
            Ok(())
        },
    },
    Step {
        name: "fuzz",
        // A smoke run: that the targets build, and that the kept corpus finds nothing.
        run: |sh| {
            let _folder = sh.push_dir(root().join("vmm-ipc"));
            // What it finds new is written to the first folder, so that the kept corpus stays as it is.
            let (new, kept) = ("fuzz/target/smoke", "fuzz/corpus/decode");
            sh.create_dir(new)?;
            let (runs, seconds) = ("-runs=200000", "-max_total_time=20");
            cmd!(
                sh,
                "cargo +nightly fuzz run decode {new} {kept} -- {runs} {seconds}"
            )
            .run()?;
            Ok(())
        },
    },
    Step {
        name: "deny",
        // Advisories are left out: their database is a git repository, and these checks are made to
        // run where only the package registry can be reached.
        run: |sh| Ok(cmd!(sh, "cargo deny --locked check licenses bans sources").run()?),
    },
];

pub fn run(mut parser: Parser) -> Result {
    let mut wanted = Vec::new();
    while let Some(argument) = parser.next()? {
        match argument {
            Value(word) => wanted.push(word.string()?),
            Short('h') | Long("help") => {
                print!("{HELP}");
                for step in STEPS {
                    println!("  {}", step.name);
                }
                return Ok(());
            }
            other => return Err(other.unexpected().into()),
        }
    }
    if let Some(word) = wanted
        .iter()
        .find(|word| STEPS.iter().all(|step| step.name != **word))
    {
        return Err(format!("no step is named `{word}`").into());
    }
    let shell = Shell::new()?;
    shell.change_dir(root());
    for step in STEPS {
        if !wanted.is_empty() && wanted.iter().all(|word| word != step.name) {
            continue;
        }
        let start = Instant::now();
        println!("== {}", step.name);
        (step.run)(&shell).map_err(|error| format!("{}: {error}", step.name))?;
        println!("== {}: {:.1} s", step.name, start.elapsed().as_secs_f64());
    }
    Ok(())
}
