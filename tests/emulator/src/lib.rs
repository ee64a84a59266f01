//! A software CUDA driver.
//!
//! It is a real driver in all but the GPU: physical memory is a memory file, a reservation is
//! address space, a mapping is `mmap` at a fixed address, an exported handle is a file descriptor
//! that another process can import. It answers with the driver's own codes, counts what is alive,
//! and fails on demand.
//!
//! As a driver it is one per process. [`Config::install`] says, before the first call, what
//! machine it pretends to be; without that the `VMM_EMULATOR_*` variables do.
//!
//! ```
//! let emulator = vmm_emulator::Config::new().devices(2).install()?;
//! let driver = vmm_emulator::driver()?; // a `vmm_sys::Driver`
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod abi;
#[allow(non_snake_case)] // the names are those of the C functions
mod api;
mod calls;
mod capture;
mod capturing;
mod code;
mod config;
mod context;
mod copy;
mod core;
mod count;
mod device;
mod emulator;
mod environment;
mod fabric;
mod fault;
mod fd;
mod file_size;
mod host_function;
mod host_span;
mod host_thread;
mod linear;
mod memory;
mod missing_list;
mod misuse;
mod names;
mod physical;
mod queue;
mod record;
mod space;
mod start;
mod stream;
mod symbols;
mod table;
mod thread;
mod vm;

#[doc(hidden)]
pub use crate::api::missing::refuse;
pub use crate::calls::Calls;
pub use crate::code::Code;
pub use crate::config::{Config, DeviceConfig, Fabric, Peers};
pub use crate::count::Snapshot;
pub use crate::emulator::{Emulator, Held, InstallError, driver, get_proc_address};
pub use crate::fault::{Call, Failure};
pub use crate::misuse::Misuse;
#[doc(hidden)]
pub use crate::symbols::{EXPORTS, Function, exported};
pub use crate::thread::Thread;
