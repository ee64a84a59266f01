//! The suite as a program of its own, for machines without a Rust toolchain.

fn main() -> std::process::ExitCode {
    vmm_tests::runner::main()
}
