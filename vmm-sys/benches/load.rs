//! Time to load a driver, without `cuInit`, beside a C program that does the same.
//!
//! Every figure is of a fresh process, which measures itself; the two kinds take turns. The driver
//! is `VMM_LIBCUDA`, else `libcuda.so.1`, else a stand-in written in C, which is said. Exits with 1
//! when the median of this crate is more than 1.3 times that of C.
//!
//! `cargo bench -p vmm-sys --bench load`. With `--prepare DIR` it only writes there what it needs,
//! and with `--prepared DIR` it takes that from there, for a machine without a C compiler.

use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;
use std::{env, fs};

use vmm_sys::{Driver, SYMBOLS};

const SAMPLES: usize = 101;
const LIMIT: f64 = 1.3;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["--child", path] => child(path).map(|()| ExitCode::SUCCESS),
        ["--prepare", folder] => prepare(Path::new(folder)).map(|()| ExitCode::SUCCESS),
        ["--prepared", folder] => measure(Path::new(folder)),
        // What `cargo bench` and `cargo test` pass on.
        _ => {
            let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("load");
            prepare(&folder)?;
            measure(&folder)
        }
    }
}

/// One figure: what loading takes in this process.
fn child(path: &str) -> Result<()> {
    let start = Instant::now();
    // SAFETY: the path is that of a driver, or of the stand-in, whose functions nobody calls.
    let driver = unsafe { Driver::load_from(path) }?;
    let taken = start.elapsed();
    let found = driver.symbols().filter(|symbol| symbol.found).count();
    println!("{} {found}", taken.as_nanos());
    Ok(())
}

/// Builds the C program and the stand-in.
fn prepare(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    let mut list = String::new();
    for symbol in SYMBOLS {
        writeln!(list, "X(\"{}\", {})", symbol.name, symbol.tag)?;
    }
    fs::write(folder.join("symbols.h"), list)?;
    compile(folder, "load.c", "load", &["-ldl"])?;
    compile(folder, "standin.c", "standin.so", &["-shared", "-fPIC"])
}

fn compile(folder: &Path, source: &str, output: &str, options: &[&str]) -> Result<()> {
    let target = format!("{}-unknown-linux-gnu", env::consts::ARCH);
    let compiler = cc::Build::new()
        .target(&target)
        .host(&target)
        .opt_level(2)
        .cargo_metadata(false)
        .try_get_compiler()?;
    let status = compiler
        .to_command()
        .arg(format!(
            "-DSYMBOLS=\"{}\"",
            folder.join("symbols.h").display()
        ))
        .arg(
            Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("benches")
                .join(source),
        )
        .arg("-o")
        .arg(folder.join(output))
        .args(options)
        .status()?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("{source} does not compile").into()),
    }
}

fn measure(folder: &Path) -> Result<ExitCode> {
    let library = library(folder);
    println!("library: {}", library.display());
    let (mut rust, mut c) = (Vec::new(), Vec::new());
    // The first of each finds the files cold.
    for sample in 0..=SAMPLES {
        let ours = figure(
            Command::new(env::current_exe()?)
                .arg("--child")
                .arg(&library),
        )?;
        let theirs = figure(Command::new(folder.join("load")).arg(&library))?;
        if ours.1 != theirs.1 {
            return Err(format!("{} symbols, and {} in C", ours.1, theirs.1).into());
        }
        if sample > 0 {
            rust.push(ours.0);
            c.push(theirs.0);
        }
    }
    let (rust, c) = (quartiles(rust), quartiles(c));
    println!("load, microseconds, median (quartiles) of {SAMPLES} processes each:");
    for (name, [low, median, high]) in [("vmm-sys", rust), ("C", c)] {
        println!("  {name:<8} {median:>9.1}  ({low:.1} to {high:.1})");
    }
    let ratio = rust[1] / c[1];
    println!("  ratio    {ratio:>9.2}  (limit {LIMIT})");
    Ok(match ratio <= LIMIT {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// The driver to load; where there is none, the stand-in.
fn library(folder: &Path) -> PathBuf {
    if let Some(path) = env::var_os("VMM_LIBCUDA") {
        return path.into();
    }
    if Driver::load().is_ok() {
        return PathBuf::from("libcuda.so.1");
    }
    println!("no CUDA driver here: a stand-in is loaded, so only the ratio means something");
    folder.join("standin.so")
}

/// Nanoseconds and symbols found, from a process that prints them.
fn figure(command: &mut Command) -> Result<(f64, usize)> {
    let output = command.output()?;
    let text = String::from_utf8(output.stdout)?;
    let parsed = text
        .trim()
        .split_once(' ')
        .and_then(|(time, found)| Some((time.parse::<f64>().ok()?, found.parse().ok()?)));
    match parsed {
        Some(figure) if output.status.success() => Ok(figure),
        _ => Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)).into()),
    }
}

fn quartiles(mut figures: Vec<f64>) -> [f64; 3] {
    figures.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| figures[(figures.len() - 1) * quarter / 4] / 1000.0)
}
