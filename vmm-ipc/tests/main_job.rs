//! The main job as its user runs it, on the emulator.

use std::process::{Command, Output};

/// Runs the example, which `cargo test` builds beside the tests.
fn share(arguments: &[&str]) -> Output {
    let mut program = std::env::current_exe().unwrap();
    program.pop();
    program.pop();
    program.push("examples/share");
    assert!(
        program.exists(),
        "a single test does not build examples: cargo build -p vmm-ipc --examples"
    );
    Command::new(program).args(arguments).output().unwrap()
}

/// Its failure, which is one line.
fn refused(arguments: &[&str]) -> String {
    let output = share(arguments);
    assert!(!output.status.success(), "{arguments:?} succeeded");
    let text = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 1, "{text}");
    assert!(text.starts_with("error: "), "{text}");
    text
}

#[test]
fn it_says_that_it_runs_on_the_emulator_and_ends_with_ok() {
    let output = share(&["--driver", "emulator"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(text.contains("software emulator"), "{text}");
    assert!(text.contains("chunks: 3"), "{text}");
    assert_eq!(text.lines().last(), Some("OK"));
}

#[test]
fn as_json_it_is_one_object_with_every_chunk_in_one_range() {
    let output = share(&[
        "--driver=emulator",
        "--chunks=5",
        "--chunk-size",
        "2M",
        "--json",
    ]);
    assert!(output.status.success());
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["result"], "OK");
    assert_eq!(json["emulator"], true);
    let chunks = json["chunks"].as_array().unwrap();
    assert_eq!(chunks.len(), 5);
    let number = |text: &serde_json::Value| {
        u64::from_str_radix(text.as_str().unwrap().trim_start_matches("0x"), 16).unwrap()
    };
    for side in ["exporter_address", "importer_address"] {
        let base = number(&chunks[0][side]);
        for chunk in chunks {
            assert_eq!(
                number(&chunk[side]),
                base + chunk["offset"].as_u64().unwrap()
            );
        }
    }
    assert!(json["steps"].as_array().unwrap().len() >= 8);
}

#[test]
fn bad_options_are_refused_in_one_line() {
    assert!(refused(&["--chunks", "0"]).contains("--chunks 0"));
    assert!(refused(&["--chunks", "three"]).contains("--chunks three"));
    assert!(refused(&["--chunk-size", "0"]).contains("cannot be empty"));
    assert!(refused(&["--chunk-size", "64X"]).contains("64X"));
    assert!(refused(&["--driver", "emulator", "--chunk-size", "3M"]).contains("2 MiB"));
    assert!(refused(&["--chunks", "9", "--chunk-size", "99999999999G"]).contains("address"));
    assert!(refused(&["--driver", "gpu"]).contains("--driver gpu"));
    assert!(refused(&["--driver", "/nonexistent/libcuda.so.1"]).contains("/nonexistent"));
    assert!(refused(&["--frobnicate"]).contains("--frobnicate"));
}

#[test]
fn more_memory_than_there_is_is_refused_and_says_so() {
    let text = refused(&[
        "--driver",
        "emulator",
        "--chunks",
        "1",
        "--chunk-size",
        "1024G",
    ]);
    assert!(text.contains("OUT_OF_MEMORY"), "{text}");
}
