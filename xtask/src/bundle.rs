//! The hardware bundle: stripped programs and a script that runs them.

use std::path::{Path, PathBuf};

use xshell::{Shell, cmd};

use crate::hardware::{PARTS, PROGRAMS, Program};
use crate::result::Result;
use crate::workspace::root;

const SIZE_LIMIT: u64 = 40 << 20;

/// The newest glibc that the programs may need: that of Ubuntu 22.04.
const GLIBC: (u32, u32) = (2, 35);

/// Builds every program and leaves it in `directory`, stripped, beside `run.sh`.
pub fn make(shell: &Shell, directory: &Path) -> Result {
    shell.change_dir(root());
    build(shell)?;
    if directory.join("run.sh").exists() {
        shell.remove_path(directory)?;
    } else if directory.exists() && directory.read_dir()?.next().is_some() {
        return Err(format!(
            "{} is not empty and not an earlier bundle: name another directory",
            directory.display()
        )
        .into());
    }
    shell.create_dir(directory)?;
    let built = target_directory(shell)?.join("release");
    let mut newest = (0, 0);
    for program in PROGRAMS {
        let (source, is_binary) = match program {
            Program::Bin { name, .. } => (built.join(name), true),
            Program::Example { name, .. } => (built.join("examples").join(name), true),
            Program::Library { file, .. } => (built.join(file), true),
            Program::Test { package, name } => (test(shell, package, name)?, true),
            Program::C { name, .. } => (directory.join(name), true),
            Program::File(path) => (root().join(path), false),
        };
        let target = match program {
            Program::Test { name, .. } => directory.join(name),
            _ => directory.join(source.file_name().ok_or("a program without a name")?),
        };
        if let Program::C { source, .. } = program {
            compile_c(shell, source, &target)?;
        } else {
            shell.copy_file(&source, &target)?;
        }
        if is_binary {
            cmd!(shell, "strip --strip-all {target}").quiet().run()?;
            newest = newest.max(needed_glibc(shell, &target)?);
        }
    }
    let script = directory.join("run.sh");
    shell.write_file(&script, run_script())?;
    cmd!(shell, "chmod +x {script}").quiet().run()?;
    let size = size_of(directory)?;
    println!(
        "{}: {:.1} MiB, {} programs, {} parts, needs glibc {}.{}",
        directory.display(),
        size as f64 / f64::from(1 << 20),
        PROGRAMS.len(),
        PARTS.len(),
        newest.0,
        newest.1,
    );
    if size > SIZE_LIMIT {
        return Err(format!("the bundle is larger than {} MiB", SIZE_LIMIT >> 20).into());
    }
    if newest > GLIBC {
        return Err(format!("a program needs glibc newer than {}.{}", GLIBC.0, GLIBC.1).into());
    }
    Ok(())
}

fn build(shell: &Shell) -> Result {
    let mut packages: Vec<&str> = PROGRAMS
        .iter()
        .filter_map(|program| match program {
            Program::Bin { package, .. }
            | Program::Example { package, .. }
            | Program::Library { package, .. } => Some(*package),
            Program::Test { .. } | Program::C { .. } | Program::File(_) => None,
        })
        .collect();
    packages.sort_unstable();
    packages.dedup();
    for package in packages {
        let mut targets = Vec::new();
        for program in PROGRAMS {
            match program {
                Program::Bin { package: p, name } if *p == package => {
                    targets.extend(["--bin", name])
                }
                Program::Example { package: p, name } if *p == package => {
                    targets.extend(["--example", name]);
                }
                Program::Library { package: p, .. } if *p == package => targets.push("--lib"),
                _ => {}
            }
        }
        cmd!(
            shell,
            "cargo build --release --locked --package {package} {targets...}"
        )
        .run()?;
    }
    Ok(())
}

/// Builds a test and says where it is.
fn test(shell: &Shell, package: &str, name: &str) -> Result<PathBuf> {
    let messages = cmd!(
        shell,
        "cargo test --release --locked --no-run --package {package} --test {name} --message-format json"
    )
    .read()?;
    let key = "\"executable\":\"";
    let path = messages
        .lines()
        .filter_map(|line| line.split_once(key)?.1.split_once('"'))
        .map(|(path, _)| PathBuf::from(path))
        .next_back();
    path.ok_or_else(|| format!("cargo names no executable for {name}").into())
}

/// A program that needs no CUDA toolkit: it opens the driver at run time.
fn compile_c(shell: &Shell, source: &str, target: &Path) -> Result {
    let source = root().join(source);
    cmd!(
        shell,
        "cc -std=gnu11 -O2 -Wall -Wextra -Werror -o {target} {source} -ldl"
    )
    .quiet()
    .run()?;
    Ok(())
}

/// Where cargo builds.
pub fn target_directory(shell: &Shell) -> Result<PathBuf> {
    let metadata = cmd!(shell, "cargo metadata --format-version 1 --no-deps")
        .quiet()
        .read()?;
    let key = "\"target_directory\":\"";
    let (_, rest) = metadata
        .split_once(key)
        .ok_or("cargo metadata names no target directory")?;
    let (path, _) = rest.split_once('"').ok_or("cargo metadata is cut short")?;
    Ok(path.into())
}

/// The newest `GLIBC_x.y` that a program's dynamic symbols name.
fn needed_glibc(shell: &Shell, program: &Path) -> Result<(u32, u32)> {
    let symbols = cmd!(shell, "objdump --dynamic-syms {program}")
        .quiet()
        .read()?;
    let versions = symbols.split("GLIBC_").skip(1).filter_map(|rest| {
        let end = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let mut numbers = rest.get(..end)?.split('.').map(str::parse);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    });
    Ok(versions.max().unwrap_or((0, 0)))
}

fn run_script() -> String {
    let mut parts = String::new();
    for part in PARTS {
        let mode = if part.quick { "quick" } else { "full" };
        parts.push_str(&format!(
            "part {} {mode} {} {}\n",
            part.name, part.seconds, part.command
        ));
    }
    include_str!("run.sh").replace("@PARTS@\n", &parts)
}

fn size_of(directory: &Path) -> Result<u64> {
    let mut size = 0;
    for entry in directory.read_dir()? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        size += if metadata.is_dir() {
            size_of(&entry.path())?
        } else {
            metadata.len()
        };
    }
    Ok(size)
}
