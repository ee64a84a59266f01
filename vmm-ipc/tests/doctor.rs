//! `vmm-doctor` on machines that lack this or that, as the emulator plays them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde_json::Value;

const DOCTOR: &str = env!("CARGO_BIN_EXE_vmm-doctor");

/// The emulator as a shared object, built when it is first asked for.
fn emulator() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let test = std::env::current_exe().unwrap();
        let target = test.ancestors().nth(3).unwrap();
        let status = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--package", "vmm-emulator-cuda"])
            .arg("--target-dir")
            .arg(target)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .unwrap();
        assert!(status.success(), "the emulator does not build");
        target.join("debug/libvmm_emulator_cuda.so")
    })
}

/// The doctor on the emulator, with these variables.
fn doctor(variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(DOCTOR);
    command
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env_remove("LD_LIBRARY_PATH")
        .env("VMM_LIBCUDA", emulator())
        .envs(variables.iter().copied());
    command
}

struct Report {
    json: Value,
    status: Option<i32>,
}

impl Report {
    fn of(command: &mut Command) -> Self {
        let output = command.arg("--json").output().unwrap();
        let json = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {output:?}"));
        let status = output.status.code();
        Report { json, status }
    }

    /// That the doctor says that sharing works, and by its exit status, too.
    fn works(self) -> Self {
        assert_eq!(
            (&self.json["works"], self.status),
            (&true.into(), Some(0)),
            "{:#}",
            self.json
        );
        self
    }

    fn fails(self) -> Self {
        assert_eq!(
            (&self.json["works"], self.status),
            (&false.into(), Some(1)),
            "{:#}",
            self.json
        );
        self
    }

    fn all<'a>(&'a self, subject: &'a str) -> impl Iterator<Item = &'a Value> {
        let findings = self.json["findings"].as_array().unwrap();
        findings
            .iter()
            .filter(move |finding| finding["subject"] == subject)
    }

    /// That the first finding on `subject` is of this state and says this; and, unless all is well,
    /// what to do.
    fn says(self, subject: &str, state: &str, found: &str) -> Self {
        let finding = self
            .all(subject)
            .next()
            .unwrap_or_else(|| panic!("nothing on {subject} in {:#}", self.json));
        assert_eq!(finding["state"], state, "{finding:#}");
        let text = finding["found"].as_str().unwrap();
        assert!(text.contains(found), "{finding:#}");
        if matches!(state, "warning" | "problem") {
            assert!(
                finding["advice"]
                    .as_str()
                    .is_some_and(|advice| !advice.is_empty())
            );
        }
        self
    }
}

fn report(variables: &[(&str, &str)]) -> Report {
    Report::of(&mut doctor(variables))
}

#[test]
fn where_all_is_well_two_processes_share_on_every_gpu() {
    let report = report(&[
        ("VMM_EMULATOR_DEVICES", "3"),
        ("VMM_EMULATOR_FABRIC", "available"),
    ])
    .works()
    .says("version", "note", "software emulator")
    .says("symbols", "ok", "all")
    .says("GPUs", "ok", "3 visible")
    .says("virtual memory", "ok", "allocated")
    .says("file descriptors", "ok", "exported")
    .says("fabric handles", "ok", "exported")
    .says("socket folder", "ok", "can be made");
    assert_eq!(report.json["emulator"], true);
    assert_eq!(report.json["devices"].as_array().unwrap().len(), 3);
    for finding in report.all("two processes") {
        assert_eq!(finding["state"], "ok");
    }
    assert_eq!(report.all("two processes").count(), 3);
}

#[test]
fn a_fabric_claim_that_does_not_hold_is_told_and_does_not_hinder() {
    report(&[("VMM_EMULATOR_FABRIC", "not-permitted")])
        .works()
        .says("fabric handles", "note", "claimed, but:");
    report(&[("VMM_EMULATOR_ATTRIBUTES", "128=0")])
        .works()
        .says("fabric handles", "note", "none");
}

#[test]
fn missing_attributes_are_named() {
    report(&[("VMM_EMULATOR_ATTRIBUTES", "103=0")])
        .fails()
        .says("file descriptors", "problem", "exports none")
        .says("two processes", "problem", "allocating");
    report(&[("VMM_EMULATOR_ATTRIBUTES", "102=0")])
        .fails()
        .says("virtual memory", "problem", "none");
}

#[test]
fn a_claim_that_exports_nothing_is_a_problem() {
    report(&[("VMM_EMULATOR_FAIL", "cuMemExportToShareableHandle:1:1")]).says(
        "file descriptors",
        "problem",
        "claimed, but: exporting",
    );
}

#[test]
fn a_compute_mode_that_keeps_processes_out_is_named() {
    report(&[("VMM_EMULATOR_ATTRIBUTES", "20=3")]).says(
        "compute mode",
        "warning",
        "exclusive process",
    );
    report(&[("VMM_EMULATOR_ATTRIBUTES", "20=2")]).says("compute mode", "problem", "prohibited");
}

#[test]
fn a_context_that_cannot_be_made_is_named() {
    report(&[("VMM_EMULATOR_FAIL", "cuDevicePrimaryCtxRetain:1:46")])
        .fails()
        .says("memory", "problem", "cuDevicePrimaryCtxRetain")
        .says("two processes", "problem", "CUDA_ERROR_DEVICE_UNAVAILABLE");
}

#[test]
fn what_fails_in_the_second_process_is_told_as_its_failure() {
    // The first process imports nothing.
    report(&[("VMM_EMULATOR_FAIL", "cuMemImportFromShareableHandle:1:999")])
        .fails()
        .says("file descriptors", "ok", "exported")
        .says("two processes", "problem", "in the second process");
}

#[test]
fn hidden_gpus_are_told_from_missing_ones() {
    report(&[("CUDA_VISIBLE_DEVICES", "")]).fails().says(
        "CUDA_VISIBLE_DEVICES",
        "problem",
        "hides every GPU",
    );
    report(&[("CUDA_VISIBLE_DEVICES", "1"), ("VMM_EMULATOR_DEVICES", "2")])
        .works()
        .says("CUDA_VISIBLE_DEVICES", "note", "`1`")
        .says("GPUs", "ok", "1 visible");
}

#[test]
fn a_part_of_a_partitioned_gpu_is_told() {
    report(&[("VMM_EMULATOR_NAMES", "Software emulator MIG 1g.10gb")])
        .works()
        .says("MIG", "note", "one instance");
}

#[test]
fn an_older_driver_lacks_symbols_and_still_shares() {
    report(&[("VMM_EMULATOR_DRIVER_VERSION", "11040")])
        .works()
        .says("version", "note", "CUDA 11.4")
        .says("symbols", "note", "optional and not there");
}

#[test]
fn a_driver_from_before_virtual_memory_is_too_old() {
    let old = folder("old").join("libcuda.so.1");
    compile(
        &old,
        "int cuInit(unsigned f) { return 0; } int cuDriverGetVersion(int *v) { *v = 10010; return 0; }",
    );
    report(&[("VMM_LIBCUDA", old.to_str().unwrap())])
        .fails()
        .says("load", "problem", "10.2 or newer is needed");
}

#[test]
fn a_driver_that_does_not_start_is_told_with_its_code() {
    // The emulator reads what is to fail in `cuInit`, so that one cannot fail itself.
    report(&[("VMM_EMULATOR_FAIL", "cuDeviceGetCount:1:803")])
        .fails()
        .says("initialise", "problem", "803");
}

#[test]
fn little_memory_is_told() {
    report(&[("VMM_EMULATOR_MEMORY", "64M")])
        .works()
        .says("memory", "warning", "free");
    report(&[("VMM_EMULATOR_MEMORY", "2M")])
        .fails()
        .says("two processes", "problem", "allocating");
}

#[test]
fn no_library_is_told_from_one_that_is_no_driver() {
    report(&[("VMM_LIBCUDA", "/nonexistent/libcuda.so.1")])
        .fails()
        .says("load", "problem", "/nonexistent/libcuda.so.1");
    let stub = folder("stub/stubs").join("libcuda.so.1");
    compile(
        &stub,
        "int cuInit(unsigned f) { return 34; } int cuDriverGetVersion(int *v) { return 34; }",
    );
    let folder = stub.parent().unwrap().display().to_string();
    Report::of(
        Command::new(DOCTOR)
            .env_remove("VMM_LIBCUDA")
            .env("LD_LIBRARY_PATH", &folder),
    )
    .fails()
    .says("LD_LIBRARY_PATH", "warning", "stub")
    .says("load", "problem", "stub");
    let other = self::folder("other").join("libcuda.so.1");
    compile(&other, "int other(void) { return 0; }");
    report(&[("VMM_LIBCUDA", other.to_str().unwrap())])
        .fails()
        .says("load", "problem", "no CUDA driver");
}

#[test]
fn an_empty_name_of_a_library_names_none() {
    report(&[("VMM_LIBCUDA", "")]).says("library", "note", "search path");
}

#[test]
fn a_low_limit_of_open_files_is_named() {
    let limited = |limit: u32| {
        let mut shell = Command::new("sh");
        shell
            .args([
                "-c",
                &format!("ulimit -n {limit}; exec \"$0\" \"$@\""),
                DOCTOR,
            ])
            .env("VMM_LIBCUDA", emulator());
        Report::of(&mut shell)
    };
    limited(256)
        .works()
        .says("open files", "warning", "limit 256");
    limited(8).fails().says("open files", "warning", "limit 8");
}

#[test]
fn a_folder_that_takes_no_socket_is_named() {
    report(&[("TMPDIR", "/proc"), ("XDG_RUNTIME_DIR", "/nonexistent")])
        .fails()
        .says("socket folder", "problem", "/proc");
}

#[test]
fn the_table_has_no_colours_in_a_pipe_and_ends_with_the_verdict() {
    let output = doctor(&[]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(!text.contains('\x1b'), "{text}");
    assert!(
        text.lines()
            .last()
            .unwrap()
            .starts_with("Sharing works on the one visible GPU")
    );
    let output = doctor(&[("VMM_EMULATOR_ATTRIBUTES", "103=0")])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("Sharing works on 0 of 1 visible GPUs"),
        "{text}"
    );
}

#[test]
fn the_table_is_as_wide_as_it_may_be() {
    let widest = |columns: &str| {
        let output = doctor(&[("COLUMNS", columns)]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        // A word that is longer than its column cannot be broken.
        let breakable = text.lines().filter(|line| {
            line.starts_with("  ") && line.trim_start().contains(' ') && !line.contains('/')
        });
        breakable.map(|line| line.chars().count()).max().unwrap()
    };
    assert!((60..=72).contains(&widest("72")), "{}", widest("72"));
    assert!((90..=110).contains(&widest("400")), "{}", widest("400"));
}

#[test]
fn the_driver_can_be_named_and_a_wrong_word_is_refused() {
    let run = |arguments: &[&str]| -> Output {
        Command::new(DOCTOR)
            .env_remove("VMM_LIBCUDA")
            .args(arguments)
            .output()
            .unwrap()
    };
    assert!(
        run(&["--driver", emulator().to_str().unwrap()])
            .status
            .success()
    );
    let wrong = run(&["--driver", "gpu"]);
    assert_eq!(wrong.status.code(), Some(2));
    let text = String::from_utf8(wrong.stderr).unwrap();
    assert!(text.contains("expected auto, cuda, or a path"), "{text}");
    assert_eq!(run(&["--nonsense"]).status.code(), Some(2));
    let help = run(&["--help"]);
    assert!(help.status.success() && help.stdout.starts_with(b"vmm-doctor ["));
}

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("doctor")
        .join(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Compiles C into a shared object.
fn compile(library: &Path, source: &str) {
    let file = library.with_extension("c");
    std::fs::write(&file, source).unwrap();
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([library, &file])
        .status()
        .unwrap();
    assert!(status.success(), "{} does not compile", file.display());
}
