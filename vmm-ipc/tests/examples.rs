//! The examples as their readers run them, on the emulator.

use std::process::Command;

/// Runs an example, which `cargo test` builds beside the tests; what it printed.
fn run(name: &str) -> String {
    let mut program = std::env::current_exe().unwrap();
    program.pop();
    program.pop();
    program.push("examples");
    program.push(name);
    assert!(
        program.exists(),
        "a single test does not build examples: cargo build -p vmm-ipc --examples"
    );
    let output = Command::new(program)
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
