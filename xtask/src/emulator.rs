//! `cargo xtask emulator` and `emulator-vs-gpu`: the shared object, and how true it is.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lexopt::Parser;
use xshell::{Shell, cmd};

use crate::bundle::target_directory;
use crate::functions::{self, Function};
use crate::headers;
use crate::result::Result;
use crate::workspace::root;

/// The bindings that run on it unmodified.
const CUDA_BINDINGS: &str = "cuda-bindings==13.5.0";

/// What NVIDIA writes upon them.
const CUDA_CORE: &str = "cuda-core==1.2.2";

/// Where the list of deviations lies.
const DEVIATIONS: &str = "tests/recording/deviations.tsv";

const BUILD_HELP: &str = "\
cargo xtask emulator [--check]

Builds the emulator as libcuda.so.1; the last line is its directory, for LD_LIBRARY_PATH.
  --check  run NVIDIA's Python bindings and C programs on it first (fetches them from PyPI)
";

const COMPARE_HELP: &str = "\
cargo xtask emulator-vs-gpu FILE

Asks the emulator what a GPU was asked in FILE, which `record --driver cuda` wrote, and prints the
cases that it answers otherwise. Fails where tests/recording/deviations.tsv does not explain one.
Prints also what the GPU was not asked, but for what FILE names as not recorded.
";

/// Builds the emulator as `libcuda.so.1`; the last line names its directory. With `--check`,
/// programs of others run on it first.
pub fn build(mut parser: Parser) -> Result {
    use lexopt::prelude::*;
    let mut check = false;
    while let Some(argument) = parser.next()? {
        match argument {
            Long("check") => check = true,
            Short('h') | Long("help") => {
                print!("{BUILD_HELP}");
                return Ok(());
            }
            other => return Err(other.unexpected().into()),
        }
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
    if check {
        let _path = shell.push_env("LD_LIBRARY_PATH", &directory);
        check_python(&shell, &target)?;
        check_c(&shell, &target, &library)?;
        check_cuda_core(&shell, &target)?;
        check_cudarc(&shell)?;
        check_dlpack(&shell, &target)?;
    }
    println!("{}", directory.display());
    Ok(())
}

/// NVIDIA's Python bindings, unmodified, in two processes.
fn check_python(shell: &Shell, target: &Path) -> Result {
    let place = target.join("python");
    let python = place.join("bin/python");
    if !python.exists() {
        cmd!(shell, "python3 -m venv {place}").run()?;
    }
    install(shell, &python, &[CUDA_BINDINGS])?;
    cmd!(shell, "{python} tests/python/share.py").run()?;
    cmd!(shell, "{python} tests/python/buffers.py")
        .env("VMM_EMULATOR_DEVICES", "2")
        .run()?;
    cmd!(shell, "{python} tests/python/grow.py").run()?;
    cmd!(
        shell,
        "cargo build --quiet --release --package vmm-ipc --example python_peer"
    )
    .run()?;
    let peer = target.join("release/examples/python_peer");
    cmd!(shell, "{peer} --python {python}").run()?;
    Ok(())
}

/// Fetches packages from PyPI.
fn install(shell: &Shell, python: &Path, packages: &[&str]) -> Result {
    cmd!(
        shell,
        "{python} -m pip install --quiet --disable-pip-version-check {packages...}"
    )
    .run()?;
    Ok(())
}

/// The Rust importer, which takes a descriptor over its standard input.
fn build_importer(shell: &Shell, target: &Path) -> Result<PathBuf> {
    cmd!(
        shell,
        "cargo build --quiet --release --package vmm-emulator --example importer"
    )
    .run()?;
    Ok(target.join("release/examples/importer"))
}

/// A C program against NVIDIA's headers, old and new, with itself and with the Rust importer.
fn check_c(shell: &Shell, target: &Path, library: &Path) -> Result {
    let importer = build_importer(shell, target)?;
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let compiler = cc::Build::new()
        .target(&triple)
        .host(&triple)
        .opt_level(1)
        .cargo_metadata(false)
        .try_get_compiler()?;
    let compiler = compiler.path();
    let unload = target.join("emulator/unload");
    cmd!(
        shell,
        "{compiler} -Wall -Wextra -Werror -O1 -pthread -o {unload} tests/c/unload.c -ldl"
    )
    .run()?;
    cmd!(shell, "{unload} {library}").run()?;
    headers::find_libclang()?;
    let functions = functions::all(&headers::CUDA_13.fetch()?)?;
    for wheel in [headers::CUDA_12, headers::CUDA_13] {
        let include = wheel.fetch()?;
        check_names(shell, compiler, library, &wheel, &functions)?;
        let program = target.join(format!("emulator/export-{}", wheel.version()));
        cmd!(
            shell,
            "{compiler} -Wall -Werror -O1 -I {include} -o {program} tests/c/export.c {library}"
        )
        .run()?;
        cmd!(shell, "{program}").run()?;
        cmd!(shell, "{program} {importer}").run()?;
        let attach = target.join(format!("emulator/attach-{}", wheel.version()));
        cmd!(
            shell,
            "{compiler} -Wall -Wextra -Werror -O1 -I {include} -o {attach} tests/c/attach.c {library}"
        )
        .run()?;
        attach_to_holder(shell, target, library, &attach)?;
        cmd!(
            shell,
            "{compiler} -x c++ -std=c++11 -Wall -Wextra -Werror -fsyntax-only -I {include} tests/c/header.cpp"
        )
        .run()?;
    }
    Ok(())
}

/// A C program that names every function of these headers.
fn check_names(
    shell: &Shell,
    compiler: &Path,
    library: &Path,
    wheel: &headers::Wheel,
    functions: &[Function],
) -> Result {
    let include = wheel.fetch()?;
    let mut declared = functions::exports(&include)?;
    let (mut lines, mut newest) = (String::new(), 0);
    for function in functions {
        if declared.remove(&function.export) {
            let Function { name, tag, export } = function;
            let flags = if function.is_per_thread() { 2 } else { 1 };
            writeln!(lines, "FUNCTION({name}, {tag}, {flags}, {export})")?;
            newest = newest.max(*tag);
        }
    }
    if !declared.is_empty() {
        return Err(format!("the newer headers have no {declared:?}").into());
    }
    let program = library.with_file_name(format!("every-{}", wheel.version()));
    let list = library.with_file_name(format!("every-{}.functions", wheel.version()));
    shell.write_file(&list, lines)?;
    let list = format!("-DFUNCTIONS=\"{}\"", list.display());
    cmd!(
        shell,
        "{compiler} -Wall -Wextra -Werror -O1 -I {include} {list} -o {program} tests/c/every.c {library}"
    )
    .run()?;
    cmd!(shell, "{program}")
        .env("VMM_EMULATOR_DRIVER_VERSION", newest.to_string())
        .run()?;
    Ok(())
}

/// The C client against a Rust exporter, which is killed afterwards.
fn attach_to_holder(shell: &Shell, target: &Path, library: &Path, attach: &Path) -> Result {
    cmd!(
        shell,
        "cargo build --quiet --release --package vmm-ipc --example containers"
    )
    .run()?;
    let folder = shell.create_temp_dir()?;
    let socket = folder.path().join("holder.sock");
    let directory = library.parent().ok_or("a library without a directory")?;
    let mut holder = Command::new(target.join("release/examples/containers"))
        .arg("holder")
        .arg(&socket)
        .arg("cuda")
        .env("LD_LIBRARY_PATH", directory)
        .stdout(Stdio::piped())
        .spawn()?;
    // Its first line says that it listens. The pipe stays open: it goes on to print.
    let mut output = holder.stdout.take().map(BufReader::new);
    let mut line = String::new();
    let listening = output.as_mut().map(|output| output.read_line(&mut line));
    // Work lasts, so that closing the buffer has something to wait for.
    let result = cmd!(shell, "{attach} {socket}")
        .env("VMM_EMULATOR_LATENCY", "cuMemsetD8Async=200ms")
        .run();
    holder.kill()?;
    holder.wait()?;
    listening.transpose()?;
    Ok(result?)
}

/// NVIDIA's cuda.core, unmodified, with the Rust importer.
fn check_cuda_core(shell: &Shell, target: &Path) -> Result {
    let python = target.join("python/bin/python");
    install(shell, &python, &[CUDA_BINDINGS, CUDA_CORE])?;
    let importer = build_importer(shell, target)?;
    cmd!(shell, "{python} tests/python/core.py {importer}").run()?;
    Ok(())
}

/// cudarc, beside the crate in one process. A kernel must be refused, not pretended.
fn check_cudarc(shell: &Shell) -> Result {
    let run = [
        "run",
        "--quiet",
        "--release",
        "--package",
        "vmm-example-cudarc",
    ];
    cmd!(shell, "cargo {run...} -- --copies-only").run()?;
    let refused = cmd!(shell, "cargo {run...}").ignore_status().output()?;
    let said = String::from_utf8_lossy(&refused.stderr);
    if refused.status.success() || !said.contains("CUDA_ERROR_NOT_SUPPORTED") {
        return Err(format!("a kernel on the emulator: {said}").into());
    }
    Ok(())
}

/// A buffer in host memory as an array of NumPy's.
fn check_dlpack(shell: &Shell, target: &Path) -> Result {
    let python = target.join("python/bin/python");
    install(shell, &python, &["numpy"])?;
    cmd!(
        shell,
        "cargo build --quiet --release --package vmm-example-dlpack"
    )
    .run()?;
    let library = target.join("release/libvmm_example_dlpack.so");
    cmd!(
        shell,
        "{python} examples/dlpack/consumer.py {library} numpy"
    )
    .run()?;
    Ok(())
}

/// Asks the emulator the questions of a recording and prints the cases that differ.
pub fn compare(mut parser: Parser) -> Result {
    use lexopt::prelude::*;
    let mut file: Option<PathBuf> = None;
    while let Some(argument) = parser.next()? {
        match argument {
            Value(path) if file.is_none() => file = Some(path.into()),
            Short('h') | Long("help") => {
                print!("{COMPARE_HELP}");
                return Ok(());
            }
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
    let (mut differ, mut explained, mut new) = (0, 0, 0);
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
    // What was not recorded for a reason is named there; the others were never asked.
    let passed_over = not_recorded(&file)?;
    for (case, here) in &emulated {
        if !recorded.contains_key(case) && !passed_over.contains(case) {
            new += 1;
            println!("{case}\n  not in the recording\n  emulator: {here}");
        }
    }
    println!(
        "{} cases, {differ} differ, {explained} differ as listed in {DEVIATIONS}, \
         {new} more are not in the recording",
        recorded.len()
    );
    if differ > 0 {
        Err(format!("{differ} cases differ from the recording").into())
    } else {
        Ok(())
    }
}

/// The cases that the recording names as not recorded.
fn not_recorded(path: &Path) -> Result<BTreeSet<String>> {
    let text = std::fs::read_to_string(path)?;
    Ok(text
        .lines()
        .filter_map(|line| line.strip_prefix("# not recorded: ")?.split_once(": "))
        .map(|(case, _)| case.to_owned())
        .collect())
}

/// First and last column of a table with a head.
fn read(path: &Path) -> Result<BTreeMap<String, String>> {
    let text =
        std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut rows = text.lines().filter(|line| !line.starts_with('#'));
    if !rows.next().is_some_and(|head| head.starts_with("case\t")) {
        return Err(format!("{} is no recording: `record` makes one", path.display()).into());
    }
    Ok(rows
        .filter_map(|row| {
            Some((
                row.split('\t').next()?.to_owned(),
                row.rsplit('\t').next()?.to_owned(),
            ))
        })
        .collect())
}
