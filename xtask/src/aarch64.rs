//! `cargo xtask ci aarch64`: what can be said of aarch64 on another processor. Everything builds
//! without a warning, the types are those of NVIDIA's headers, and those tests pass under an emulator of
//! the processor that start no other process (the emulator could not start it).

use xshell::{Shell, cmd};

use crate::result::Result;

const TARGET: &str = "aarch64-unknown-linux-gnu";
const COMPILER: &str = "aarch64-linux-gnu-gcc";

/// Tests beside the unit tests: the bytes on the wire and the descriptors beside them, and the driver's
/// calls as the emulator does them.
const TESTS: &[(&str, &str)] = &[
    ("vmm-ipc", "channel"),
    ("vmm-ipc", "wire"),
    ("vmm-emulator", "round_trip"),
    ("vmm-emulator", "streams"),
    ("vmm-emulator", "threads"),
];

pub fn check(sh: &Shell) -> Result {
    let folder = cmd!(sh, "rustc --print target-libdir --target {TARGET}").read()?;
    if !std::path::Path::new(&folder).is_dir() {
        return Err(format!("no Rust target: rustup target add {TARGET}").into());
    }
    cmd!(
        sh,
        "cargo clippy --locked --workspace --all-targets --all-features --target {TARGET} -- -D warnings"
    )
    .run()?;
    cmd!(sh, "cargo xtask abi-check --cc {COMPILER}").run()?;
    let name = "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU";
    let _linker = sh.push_env(format!("{name}_LINKER"), COMPILER);
    let _runner = sh.push_env(
        format!("{name}_RUNNER"),
        "qemu-aarch64 -L /usr/aarch64-linux-gnu",
    );
    cmd!(
        sh,
        "cargo test --locked --quiet --target {TARGET} --lib -p vmm-sys -p vmm -p vmm-ipc -p vmm-emulator"
    )
    .run()?;
    for (package, test) in TESTS {
        cmd!(
            sh,
            "cargo test --locked --quiet --target {TARGET} -p {package} --test {test}"
        )
        .run()?;
    }
    Ok(())
}
