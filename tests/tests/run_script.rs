//! What `cargo xtask gpu-test` runs on a GPU: it takes nothing else for one, and its log is whole.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const SCRIPT: &str = include_str!("../../xtask/src/run.sh");

fn executable(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Runs the script with one part that says hello, beside a suite whose probe is this command. Whether
/// it succeeded, and all that it printed behind the line that its caller had printed before.
fn run(name: &str, probe: &str) -> (bool, String) {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("run-script-{name}"));
    fs::create_dir_all(&folder).unwrap();
    let script = folder.join("run.sh");
    let part = "part hello quick 20 echo hello from the part\n";
    executable(&script, &SCRIPT.replace("@PARTS@\n", part));
    executable(
        &folder.join("vmm-suite"),
        &format!("#!/bin/sh\nexec {probe}\n"),
    );
    // As `> log 2>&1` does: one file, and one place in it, for both.
    let log = folder.join("log");
    let mut file = File::create(&log).unwrap();
    file.write_all(b"before\n").unwrap();
    let status = Command::new("bash")
        .arg(&script)
        .env("OUT", folder.join("out"))
        .stdout(file.try_clone().unwrap())
        .stderr(file)
        .status()
        .unwrap();
    (status.success(), fs::read_to_string(log).unwrap())
}

#[test]
fn the_callers_log_keeps_what_was_in_it() {
    let (success, text) = run("log", "echo 'driver: CUDA 13.0, NVIDIA 580'");
    assert!(success, "{text}");
    assert!(text.starts_with("before\n"), "{text:?}");
    assert!(text.contains("\ndriver: CUDA 13.0"), "{text:?}");
    assert!(text.contains("hello from the part"), "{text:?}");
    assert!(!text.contains('\0'), "{text:?}");
}

#[test]
fn the_emulator_is_not_taken_for_a_gpu() {
    let suite = env!("CARGO_BIN_EXE_vmm-suite");
    let (success, text) = run("emulator", &format!("'{suite}' --probe emulator"));
    assert!(!success, "{text}");
    assert!(text.contains("driver: CUDA"), "{text}");
    assert!(text.contains("nothing was run"), "{text}");
    assert!(!text.contains("hello from the part"), "{text}");
}

#[test]
fn nothing_runs_without_a_driver() {
    let (success, text) = run("none", "false");
    assert!(!success, "{text}");
    assert!(text.contains("no CUDA driver"), "{text}");
    assert!(!text.contains("hello from the part"), "{text}");
}
