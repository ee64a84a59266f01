//! The examples as their readers run them, on the emulator.

use std::path::PathBuf;
use std::process::Command;

/// An example, which `cargo test` builds beside the tests.
fn program(name: &str) -> PathBuf {
    let mut program = std::env::current_exe().unwrap();
    program.pop();
    program.pop();
    program.push("examples");
    program.push(name);
    assert!(
        program.exists(),
        "a single test does not build examples: cargo build -p vmm-ipc --examples"
    );
    program
}

/// Runs an example; what it printed.
fn run(name: &str) -> String {
    let output = Command::new(program(name))
        .args(["--driver", "emulator"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{name}: {text}{error}");
    assert!(text.contains("software emulator"), "{text}");
    assert_eq!(text.lines().last(), Some("OK"));
    text
}

#[test]
fn workers_attach_to_the_weights_of_a_holder_and_go() {
    let text = run("weights_holder");
    assert_eq!(text.matches("every weight is there").count(), 3, "{text}");
}

#[test]
fn a_cache_grows_while_another_process_reads_it() {
    let text = run("kv_cache_shared");
    assert!(text.contains("in 6 chunks, at the same address"), "{text}");
}

#[test]
fn a_model_sleeps_and_wakes_at_its_address() {
    let text = run("sleep_wake");
    assert_eq!(text.matches("the model is there").count(), 2, "{text}");
}

#[test]
fn four_readers_read_and_cannot_write() {
    let text = run("reader_pool");
    assert_eq!(text.matches("could not write").count(), 4, "{text}");
}

#[test]
fn a_driver_that_was_named_and_is_none_is_not_passed_over() {
    for (path, advice) in [
        ("/nowhere/libcuda.so.1", "name another library"),
        ("libc.so.6", "unset VMM_LIBCUDA"),
    ] {
        let output = Command::new(program("weights_holder"))
            .env("VMM_LIBCUDA", path)
            .output()
            .unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{path}: {error}");
        assert!(error.contains(advice), "{path}: {error}");
    }
}

/// A process that is killed where the test ends.
struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn workers_attach_at_a_path_until_the_holder_is_killed() {
    let folder = std::env::temp_dir().join(format!("vmm-containers-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let path = folder.join("holder.sock");
    let holder = Command::new(program("containers"))
        .arg("holder")
        .arg(&path)
        .arg("emulator")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut holder = Killed(holder);
    // Its first line says that it listens.
    let mut line = String::new();
    let mut output = std::io::BufReader::new(holder.0.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut output, &mut line).unwrap();
    let workers = [(); 2].map(|()| {
        let mut command = Command::new(program("containers"));
        let command = command.arg("worker").arg(&path).arg("emulator");
        command.output().unwrap()
    });
    drop(holder);
    std::fs::remove_dir_all(&folder).unwrap();
    for worker in workers {
        let text = String::from_utf8_lossy(&worker.stdout);
        assert!(worker.status.success(), "{worker:?}");
        assert!(text.contains("16 MiB are there"), "{text}");
    }
}
