//! What the emulator says on standard error is lost where that cannot be written, and no more.

use std::fs::File;
use std::process::Command;
use vmm_sys::CUresult;

/// Set in the process of a case.
const CASE: &str = "VMM_TEST_CASE";
const NAME: &str = "the_program_goes_on_when_standard_error_cannot_be_written";

#[test]
fn the_program_goes_on_when_standard_error_cannot_be_written() {
    if let Ok(wanted) = std::env::var(CASE) {
        let driver = vmm_emulator::driver().unwrap();
        // SAFETY: no obligations.
        let code = unsafe { driver.cuInit(0) }.map_or_else(|error| error.code(), |()| None);
        assert_eq!(
            code,
            (wanted == "refused").then_some(CUresult::CUDA_ERROR_INVALID_VALUE)
        );
        return;
    }
    for (variable, case) in [
        ("VMM_EMULATOR_REPORT", "taken"),
        ("VMM_EMULATOR_TYPO", "refused"),
    ] {
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", NAME])
            .env(CASE, case)
            .env(variable, "1")
            .stderr(File::options().write(true).open("/dev/full").unwrap())
            .status()
            .unwrap();
        assert!(status.success(), "{variable}: {status}");
    }
}
