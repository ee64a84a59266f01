//! `cargo xtask ci valgrind`: cases of the suite under valgrind, on the emulator. An invalid access or
//! a definite leak fails.

use xshell::{Shell, cmd};

use crate::Result;

/// Cases that between them make, grow, move, alias, copy, sleep, share, import, relay and fail.
const CASES: &[&str] = &[
    "vmm::grow::invariant_05_growing_moved_keeps_the_bytes_and_both_alias",
    "vmm::grow::invariant_05_shrink_then_grow_uses_the_same_addresses",
    "vmm::lifetime::invariant_02_memory_goes_with_the_last_alias",
    "vmm::order::invariant_09_a_drop_leaves_a_capture_valid",
    "vmm::sleep::what_was_in_a_buffer_is_back_after_the_sleep",
    "vmm::sleep::a_buffer_with_aliases_says_so_and_does_not_sleep",
    "vmm::rollback::invariant_03_running_out_of_memory_in_the_middle_leaves_everything_as_it_was",
    "ipc::round_trip::a_buffer_that_grew_arrives_as_one_range",
    "ipc::growth::updates_that_were_missed_or_repeated_are_refused_and_a_new_offer_works",
    "ipc::relay::a_buffer_goes_from_the_first_to_the_last_of_three_with_the_first_gone",
    "conformance::share::importing_in_the_same_process_aliases_the_bytes",
    "conformance::refusals::an_fd_that_is_not_the_drivers_is_refused",
];

pub fn check(shell: &Shell) -> Result {
    cmd!(
        shell,
        "cargo build --quiet --package vmm-tests --bin vmm-suite"
    )
    .run()?;
    let program = crate::bundle::target_directory(shell)?.join("debug/vmm-suite");
    let known = cmd!(shell, "{program} --list").ignore_stderr().read()?;
    for case in CASES {
        if !known
            .lines()
            .any(|line| line.starts_with(&format!("{case}:")))
        {
            return Err(format!("the suite has no case {case}").into());
        }
        cmd!(
            shell,
            "valgrind --quiet --error-exitcode=9 --leak-check=full --show-leak-kinds=definite
             --errors-for-leak-kinds=definite {program} --case {case} emulator"
        )
        .run()?;
    }
    println!(
        "{} cases under valgrind: no error, no definite leak",
        CASES.len()
    );
    Ok(())
}
