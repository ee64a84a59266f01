//! The CUDA driver as it is: table, loader, types.
//!
#![doc = include_str!("table.md")]

mod calls;
mod codes;
mod driver;
mod error;
mod load;
mod location;
mod result;
mod symbols;
mod table;
#[allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    clippy::all
)]
#[allow(clippy::undocumented_unsafe_blocks, clippy::missing_safety_doc)]
mod types;

pub use crate::driver::{Driver, Resolved};
pub use crate::error::{Error, ErrorKind};
pub use crate::load::{GetProcAddress, LoadError, LoadErrorKind, LoadOptions, OLDEST_VERSION};
pub use crate::symbols::{SYMBOLS, Symbol};
pub use crate::types::*;
