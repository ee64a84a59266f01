//! The runner reports what fails as failed: a suite that cannot fail proves nothing.

use std::process::Command;

fn selftest(arguments: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_vmm-suite"))
        .args(arguments)
        .env("VMM_SUITE_SELFTEST", "1")
        .env_remove("VMM_TEST_DRIVER")
        .output()
        .expect("the suite starts");
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

#[test]
fn every_bad_case_fails_and_every_good_one_passes() {
    let (success, text) = selftest(&["selftest::"]);
    assert!(!success, "{text}");
    assert!(text.contains("3 passed; 7 failed; 0 ignored"), "{text}");
    for line in text
        .lines()
        .filter(|line| line.starts_with("test selftest::bad"))
    {
        assert!(line.ends_with("FAILED"), "{line}");
    }
}

#[test]
fn a_failure_says_why_and_where() {
    let (_, text) = selftest(&["selftest::bad_returns_a_failure"]);
    assert!(text.contains("No such file or directory"), "{text}");
    assert!(text.contains("selftest.rs:"), "{text}");
    let (_, text) = selftest(&["selftest::bad_hangs"]);
    assert!(text.contains("killed: not done after 1 s"), "{text}");
    let (_, text) = selftest(&["selftest::bad_crashes"]);
    assert!(text.contains("signal: 6"), "{text}");
}

#[test]
fn good_cases_alone_succeed() {
    let (success, text) = selftest(&["selftest::good"]);
    assert!(success, "{text}");
    assert!(text.contains("2 passed; 0 failed"), "{text}");
}

#[test]
fn an_unknown_driver_is_an_error_and_not_a_skip() {
    let (success, text) = selftest(&["--driver", "nonsense"]);
    assert!(!success);
    assert!(text.contains("driver `nonsense`: expected"), "{text}");
}
