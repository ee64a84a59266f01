//! The example runs, on the emulator.

use std::process::Command;

#[test]
fn the_cache_grows_to_a_hundred_times_its_size_without_moving() {
    // Cargo builds the examples of a package before it runs its tests.
    let tests = std::env::current_exe().unwrap();
    let program = tests
        .parent()
        .unwrap()
        .parent()
        .unwrap()
        .join("examples/kv_cache");
    let output = Command::new(program)
        .args(["--driver", "emulator", "--up-to", "200"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(text.contains("software emulator"), "{text}");
    assert!(text.ends_with("OK\n"), "{text}");
}
