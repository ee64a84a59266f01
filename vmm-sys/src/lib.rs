//! The CUDA driver as it is: its symbols in one table, found at run time by version, with the types
//! of NVIDIA's headers. Made for whoever needs the driver's memory calls from Rust: building needs
//! neither the toolkit nor clang nor a driver, a call that a driver lacks is an error, and there is
//! no policy.
//!
//! # Using it
//!
//! [`Driver::load`] opens `libcuda.so.1` and resolves the whole table. Every symbol is then an
//! unsafe method with its C name and its C arguments, whose answer is a `Result`:
//!
//! ```no_run
//! use vmm_sys::{CUdevice, CUdevice_attribute, Driver};
//!
//! let driver = Driver::load()?;
//! let (mut device, mut value): (CUdevice, i32) = (0, 0);
//! let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
//! // SAFETY: the out pointers are live locals, and the device is the driver's.
//! unsafe {
//!     driver.cuInit(0)?;
//!     driver.cuDeviceGet(&mut device, 0)?;
//!     driver.cuDeviceGetAttribute(&mut value, attribute, device)?;
//! }
//! println!("virtual memory management: {}", value != 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - **Three doors.** [`Driver::load`] takes `libcuda.so.1`, or what `VMM_LIBCUDA` names;
//!   [`Driver::load_from`] takes a path; [`Driver::from_get_proc_address`] takes anything that
//!   answers as `cuGetProcAddress` does. [`LoadOptions`] chooses the per-thread default stream.
//! - **Old drivers.** A symbol is asked for with the version in its line, and so has that version's
//!   signature on every driver. A driver without an optional symbol still loads, and the call
//!   answers [`ErrorKind::Missing`]. Without a required one, or below CUDA 10.2, loading fails.
//! - **Answers.** [`Error`] names the symbol and carries the driver's [`CUresult`], also one that
//!   these headers do not know. Names and meanings of codes need no driver.
//! - **Nothing is owned.** What a call creates, the caller destroys. Enums of C are integers with
//!   constants; structs are zero by default, as C programs begin with `memset`.
//!
//! `cargo run -p vmm-sys --example symbols` prints what the driver of a machine offers.
//!
//! # Safety of the calls
//!
//! For every one of them: pointers are valid for what the call reads and writes through them, for
//! as long as it, or the work it submits, does; handles come from this driver and are live; and a
//! method says what more its caller owes. The driver checks some of that and crashes on the rest.
//!
//! # Adding a symbol
//!
//! Add its line to `src/table.rs`, with the oldest version whose signature is the wanted one, and
//! run `cargo xtask bindings`, which writes the types, the method and the table below. A version
//! that is not that of the line's type does not compile. `cargo xtask bindings --check` and
//! `cargo xtask abi-check` compare the result with NVIDIA's headers.
//!
//! # The table
//!
#![doc = include_str!("table.md")]
#![warn(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

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
// What it indexes are sizes, which the compiler compares.
#[allow(
    clippy::undocumented_unsafe_blocks,
    clippy::missing_safety_doc,
    clippy::indexing_slicing
)]
mod types;

pub use crate::driver::{Driver, Resolved};
pub use crate::error::{Error, ErrorKind};
pub use crate::load::{GetProcAddress, LoadError, LoadErrorKind, LoadOptions, OLDEST_VERSION};
pub use crate::symbols::{SYMBOLS, Symbol};
pub use crate::types::*;
