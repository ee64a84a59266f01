//! CUDA virtual memory shared between processes.
#![forbid(unsafe_code)]
#![warn(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

#[cfg(not(target_os = "linux"))]
compile_error!(
    "vmm-ipc passes file descriptors over Unix sockets with Linux's rules: it builds for Linux only"
);

mod channel;
mod error;
mod export;
mod fd_limit;
mod handle;
mod import;
mod limits;
mod random;
pub mod wire;

pub use crate::channel::{
    Channel, DEFAULT_TIMEOUT, Listener, PeerCredentials, PeerPolicy, Received,
};
pub use crate::error::{Error, ErrorKind, Result};
pub use crate::export::{Export, Exporter, Progress};
pub use crate::import::{Capacity, ImportOptions, Imported};
pub use crate::limits::Limits;
