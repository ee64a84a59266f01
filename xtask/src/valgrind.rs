//! `cargo xtask ci valgrind`: the suite under valgrind, on the emulator, each case by itself. An
//! invalid access or a definite leak fails.

use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::Instant;

use xshell::{Shell, cmd};

use crate::result::Result;

/// Cases that cannot run under valgrind, or prove nothing there, with the reason.
const LEFT_OUT: &[(&str, &str)] = &[
    ("conformance::model::", "minutes"),
    ("vmm::model::", "minutes"),
    (
        "conformance::share::three_hundred_chunks_are_one_range_there",
        "its peer waits by the clock",
    ),
    (
        "ipc::hostile_handles::what_does_not_fit_the_limit_of_open_files_never_stays_open",
        "valgrind takes numbers of open files for itself",
    ),
    (
        "ipc::few_files::a_message_whose_descriptors_do_not_fit_is_an_error_and_the_next_one_comes",
        "valgrind takes numbers of open files for itself",
    ),
    (
        "vmm::lifetime::invariant_01_addresses_are_freed_when_their_buffer_goes",
        "reserves more than valgrind's address space has",
    ),
    // The driver refuses to unmap there, and what it keeps mapped is kept for ever on purpose.
    (
        "vmm::lifetime::invariant_11_close_returns",
        "leaks on purpose",
    ),
    (
        "vmm::lifetime::invariant_11_a_failing_drop",
        "leaks on purpose",
    ),
    (
        "vmm::lifetime::invariant_11_a_panicking_hook",
        "leaks on purpose",
    ),
    (
        "vmm::closing::invariant_11_a_forked_child_waits_for_no_lock",
        "the child loses what a thread of its parent owns",
    ),
    // What is thrown there is forgotten, since its drop can panic as well.
    ("vmm::waits::invariant_11_", "leaks on purpose"),
];

pub fn check(shell: &Shell) -> Result {
    cmd!(
        shell,
        "cargo build --quiet --package vmm-tests --bin vmm-suite"
    )
    .run()?;
    let program = crate::bundle::target_directory(shell)?.join("debug/vmm-suite");
    let known = cmd!(shell, "{program} --list").ignore_stderr().read()?;
    let known: Vec<&str> = known
        .lines()
        .filter_map(|line| line.strip_suffix(": test"))
        .collect();
    for (start, _) in LEFT_OUT {
        if !known.iter().any(|case| case.starts_with(start)) {
            return Err(format!("the suite has no case {start}, which is left out").into());
        }
    }
    let left_out = |case: &str| LEFT_OUT.iter().any(|(start, _)| case.starts_with(start));
    let cases: Vec<&str> = known
        .iter()
        .copied()
        .filter(|case| !left_out(case))
        .collect();

    let next = Mutex::new(cases.iter());
    let failed: Mutex<Vec<&str>> = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let take = || next.lock().map(|mut next| next.next().copied());
                while let Ok(Some(case)) = take() {
                    if run(&program, case).is_err()
                        && let Ok(mut failed) = failed.lock()
                    {
                        failed.push(case);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().map_err(|_| "a thread panicked")?;
    // Once more, alone: the waits in the cases are not made for valgrind beside valgrind. What
    // valgrind itself finds it finds again.
    let mut found = Vec::new();
    for case in &failed {
        println!("once more: {case}");
        if let Err(error) = run(&program, case) {
            println!("{error}");
            found.push(*case);
        }
    }
    if !found.is_empty() {
        return Err(format!("found by valgrind: {}", found.join(", ")).into());
    }
    println!(
        "{} cases under valgrind in {:.0} s: no error, no definite leak; {} left out",
        cases.len(),
        began.elapsed().as_secs_f64(),
        known.len() - cases.len()
    );
    Ok(())
}

fn run(program: &Path, case: &str) -> Result {
    let output = Command::new("valgrind")
        // Under valgrind a backtrace takes seconds, and cases that panic on purpose look at the clock.
        .env("RUST_BACKTRACE", "0")
        .args(["--quiet", "--error-exitcode=9", "--leak-check=full"])
        .args([
            "--show-leak-kinds=definite",
            "--errors-for-leak-kinds=definite",
        ])
        .arg(program)
        .args(["--case", case, "emulator"])
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{}\n{said}", output.status).into())
}
