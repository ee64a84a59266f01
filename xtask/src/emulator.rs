//! `cargo xtask emulator` and `emulator-vs-gpu`: the shared object, and how true it is.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lexopt::Parser;
use xshell::{Shell, cmd};

use crate::bundle::target_directory;
use crate::{Result, root};

/// Where the list of deviations lies.
const DEVIATIONS: &str = "tests/recording/deviations.tsv";

/// Builds the emulator as `libcuda.so.1`; the last line names its directory.
pub fn build(mut parser: Parser) -> Result {
    if let Some(argument) = parser.next()? {
        return Err(argument.unexpected().into());
    }
    let shell = Shell::new()?;
    shell.change_dir(root());
    let target = target_directory(&shell)?;
    cmd!(
        shell,
        "cargo build --quiet --release --package vmm-emulator-cuda"
    )
    .run()?;
    let directory = target.join("emulator");
    shell.create_dir(&directory)?;
    let library = directory.join("libcuda.so.1");
    // Renamed into place, so that a program that has the old one loaded keeps it whole.
    let fresh = directory.join("libcuda.so.1.new");
    shell.copy_file(target.join("release/libvmm_emulator_cuda.so"), &fresh)?;
    std::fs::rename(&fresh, &library)?;
    println!("{}", directory.display());
    Ok(())
}

/// Asks the emulator the questions of a recording and prints the cases that differ.
pub fn compare(mut parser: Parser) -> Result {
    use lexopt::prelude::*;
    let mut file: Option<PathBuf> = None;
    while let Some(argument) = parser.next()? {
        match argument {
            Value(path) if file.is_none() => file = Some(path.into()),
            other => return Err(other.unexpected().into()),
        }
    }
    let file = file.ok_or("which recording? cargo xtask emulator-vs-gpu FILE")?;
    let recorded = read(&file)?;
    let shell = Shell::new()?;
    shell.change_dir(root());
    let listed = read(&root().join(DEVIATIONS))?;
    let out = target_directory(&shell)?.join("emulator-recording.tsv");
    cmd!(
        shell,
        "cargo run --quiet --release --package vmm-recording -- --driver emulator --out {out}"
    )
    .run()?;
    let emulated = read(&out)?;
    let (mut differ, mut explained) = (0, 0);
    for (case, answer) in &recorded {
        let here = emulated.get(case).map_or("not answered", String::as_str);
        if here == answer {
            continue;
        }
        if let Some(reason) = listed.get(case) {
            explained += 1;
            println!("{case}\n  listed: {reason}");
        } else {
            differ += 1;
            println!("{case}\n  recorded: {answer}\n  emulator: {here}");
        }
    }
    println!(
        "{} cases, {differ} differ, {explained} differ as listed in {DEVIATIONS}",
        recorded.len()
    );
    if differ > 0 {
        Err(format!("{differ} cases differ from the recording").into())
    } else {
        Ok(())
    }
}

/// First and last column of a table with a head.
fn read(path: &Path) -> Result<BTreeMap<String, String>> {
    let text =
        std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let rows = text.lines().filter(|line| !line.starts_with('#')).skip(1);
    Ok(rows
        .filter_map(|row| {
            Some((
                row.split('\t').next()?.to_owned(),
                row.rsplit('\t').next()?.to_owned(),
            ))
        })
        .collect())
}
