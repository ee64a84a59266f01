//! `cargo xtask ci`: the checks that need no GPU, each with the seconds it took.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Instant;

use lexopt::Parser;
use lexopt::prelude::*;
use xshell::{Shell, cmd};

use crate::result::Result;
use crate::workspace::root;

const HELP: &str = "\
cargo xtask ci [--except STEP] [STEP...]

Runs the checks that .ci/run makes after the README's two commands, or only the steps named.
Needs cargo-deny, cargo-fuzz, strace, valgrind, for aarch64 a C compiler, qemu-user and Rust's target, and a
nightly toolchain; .ci/run installs all but the last.
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
        name: "python",
        run: |sh| {
            cmd!(sh, "python3 python/test_golden.py").run()?;
            Ok(cmd!(sh, "python3 python/test_channel.py").run()?)
        },
    },
    Step {
        name: "emulator",
        run: |sh| Ok(cmd!(sh, "cargo xtask emulator --check").run()?),
    },
    Step {
        name: "load",
        // Two programs that take turns, so the ratio holds on a busy machine as well.
        run: |sh| Ok(cmd!(sh, "cargo bench -q -p vmm-sys --bench load").run()?),
    },
    Step {
        name: "syscalls",
        run: crate::syscalls::check,
    },
    Step {
        name: "valgrind",
        run: crate::valgrind::check,
    },
    Step {
        name: "features",
        run: features,
    },
    Step {
        name: "aarch64",
        run: crate::aarch64::check,
    },
    Step {
        name: "package",
        run: package,
    },
    Step {
        name: "fuzz",
        // A smoke run: that the targets build, and that the kept corpus finds nothing.
        run: |sh| {
            let _folder = sh.push_dir(root().join("vmm-ipc"));
            for target in ["decode", "channel", "import"] {
                // What it finds new is written to the first folder, so that the kept corpus stays as it is.
                let new = format!("fuzz/target/smoke/{target}");
                let kept = format!("fuzz/corpus/{target}");
                sh.create_dir(&new)?;
                let (runs, seconds) = ("-runs=200000", "-max_total_time=10");
                cmd!(
                    sh,
                    "cargo +nightly fuzz run {target} {new} {kept} -- {runs} {seconds}"
                )
                .run()?;
            }
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

/// Each crate with each combination of its features, alone, so that nobody else's features help it.
fn features(sh: &Shell) -> Result {
    cmd!(
        sh,
        "cargo check --locked --workspace --all-targets --no-default-features"
    )
    .run()?;
    let combinations: &[(&str, &[&str])] = &[
        ("vmm-sys", &[""]),
        ("vmm", &["", "dlpack", "tracing", "dlpack,tracing"]),
        ("vmm-ipc", &["", "doctor"]),
    ];
    for (package, features) in combinations {
        for features in *features {
            cmd!(
                sh,
                "cargo check --locked --quiet --package {package} --no-default-features --features {features}"
            )
            .run()?;
        }
    }
    Ok(())
}

/// The published crates, packed and built from what was packed, in a copy of the workspace: there
/// they may be published, in a version that no registry has, so that each builds on the others as
/// they were packed and not on a namesake. Cargo keeps what it has unpacked once, so other contents
/// are another version.
fn package(sh: &Shell) -> Result {
    let copy = root().join("target/package-check");
    sh.remove_path(&copy)?;
    let files = cmd!(sh, "git ls-files --cached --others --exclude-standard").read()?;
    let mut contents = DefaultHasher::new();
    for file in files.lines() {
        let (from, to) = (root().join(file), copy.join(file));
        if let (true, Some(folder)) = (from.is_file(), to.parent()) {
            std::fs::create_dir_all(folder)?;
            std::fs::copy(&from, to)?;
            (file, std::fs::read(from)?).hash(&mut contents);
        }
    }
    let manifest = sh.read_file("Cargo.toml")?;
    let version = format!("0.1.{}", contents.finish());
    let changed = manifest
        .replace("publish = false", "publish = true")
        .replace("version = \"0.1.0\"", &format!("version = \"{version}\""));
    if changed.matches(&version).count() < 4 || !changed.contains("publish = true") {
        return Err("Cargo.toml does not have the versions that this check replaces".into());
    }
    sh.write_file(copy.join("Cargo.toml"), changed)?;
    let _folder = sh.push_dir(&copy);
    let target = root().join("target/package-build");
    cmd!(
        sh,
        "cargo package --quiet --allow-dirty --target-dir {target} --package vmm-sys --package vmm --package vmm-ipc"
    )
    .run()?;
    Ok(())
}

pub fn run(mut parser: Parser) -> Result {
    let (mut wanted, mut except) = (Vec::new(), Vec::new());
    while let Some(argument) = parser.next()? {
        match argument {
            Value(word) => wanted.push(word.string()?),
            Long("except") => except.push(parser.value()?.string()?),
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
        .chain(&except)
        .find(|word| STEPS.iter().all(|step| step.name != **word))
    {
        return Err(crate::result::usage(format!("no step is named `{word}`")));
    }
    let shell = Shell::new()?;
    shell.change_dir(root());
    for step in STEPS {
        let named = |list: &[String]| list.iter().any(|word| word == step.name);
        if named(&except) || !(wanted.is_empty() || named(&wanted)) {
            continue;
        }
        let start = Instant::now();
        println!("== {}", step.name);
        (step.run)(&shell).map_err(|error| format!("{}: {error}", step.name))?;
        println!("== {}: {:.1} s", step.name, start.elapsed().as_secs_f64());
    }
    Ok(())
}
