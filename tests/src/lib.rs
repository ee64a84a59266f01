//! Conformance and cross-process suites over every layer, one list for every driver.
//!
//! A [`Case`] is a function that takes a [`Context`] and returns `Ok` or a [`Failure`]; a panic is a
//! failure too. The runner gives every case a process of its own, so that a case may count open
//! fds, live handles and free memory exactly, and a crash or a hang is the failure of that case
//! alone. The same list runs on the emulator (`cargo test`) and on the real driver
//! (`cargo xtask gpu-test`); a missing driver fails, it never skips.
//!
//! To add cases: write a module, end it with a list, and name the list in [`all_cases`].
//!
//! ```
//! use vmm_tests::{Case, Context, Failure, cases};
//!
//! fn a_new_pipe_takes_two_descriptors(context: &Context) -> Result<(), Failure> {
//!     let before = context.open_fds();
//!     let pipe = std::io::pipe()?;
//!     assert_eq!(context.open_fds(), before + 2);
//!     drop(pipe);
//!     assert_eq!(context.open_fds(), before);
//!     Ok(())
//! }
//!
//! pub const CASES: &[Case] = cases![a_new_pipe_takes_two_descriptors: timeout(5)];
//! ```
//!
//! A case that needs another process names a *role*, a function that runs in a re-executed copy of
//! the program: see [`peer`].

/// The README's code, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;

pub mod case;
mod conformance;
pub mod context;
pub mod driver;
pub mod emulated;
mod ipc;
pub mod peer;
mod peers;
pub mod runner;
mod selftest;
pub mod snapshot;
mod vmm;

pub use case::{Case, Failure};
pub use context::Context;
pub use peer::{Link, Peer, Role};
pub use snapshot::Snapshot;

/// Every case of the suite.
pub fn all_cases() -> Vec<Case> {
    let lists: &[Vec<Case>] = &[
        conformance::cases(),
        ipc::cases(),
        peers::cases(),
        vmm::cases(),
    ];
    lists.concat()
}

/// Every role that a case may start in another process.
pub fn all_roles() -> Vec<Role> {
    let lists: &[&[Role]] = &[
        selftest::ROLES,
        conformance::ROLES,
        ipc::ROLES,
        peers::ROLES,
        vmm::ROLES,
    ];
    lists.concat()
}
