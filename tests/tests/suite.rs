//! The suite as `cargo test` runs it.

fn main() -> std::process::ExitCode {
    vmm_tests::runner::main()
}
