//! CUDA virtual memory with owners.
//!
//! Device memory is allocated as physical chunks, mapped one after the other into one contiguous
//! range of addresses, and grown without copying a byte. Everything has an owner, and going out of
//! scope undoes it in the right order, after the work that uses it.
//!
//! ```no_run
//! use vmm::{Allocator, Driver};
//!
//! # fn main() -> vmm::Result<()> {
//! let driver = Driver::load()?;
//! let allocator = Allocator::builder(&driver.device(0)?).build()?;
//!
//! // 64 MiB now, at an address that stays the same up to 64 GiB.
//! let cache = allocator.allocate_with_capacity(64 << 20, 64 << 30)?;
//! cache.write(0, b"first bytes")?;
//!
//! let larger = cache.grow(96 << 20)?; // `cache` stays valid, and sees the same bytes
//! let mut bytes = [0; 11];
//! larger.read(0, &mut bytes)?;
//! assert_eq!(&bytes, b"first bytes");
//! println!("{}", larger.layout());
//! # Ok(())
//! # }
//! ```
//!
//! | type | what it owns | the call that undoes it |
//! |---|---|---|
//! | [`Driver`] | the loaded library, a reference to each primary context used | `cuDevicePrimaryCtxRelease` |
//! | [`Allocation`] | physical memory | `cuMemRelease` |
//! | [`Buffer`] | mappings of allocations, and the addresses they are at | `cuMemUnmap`, `cuMemAddressFree` |
//! | [`Slice`] | a share of a buffer | |
//! | [`SleepingBuffer`] | addresses whose memory was given back | `cuMemAddressFree` |
//! | [`Stream`] | a stream, if it was made here | `cuStreamDestroy` |
//!
//! # What holds
//!
//! 1. A range of addresses is freed once, with its exact pair, after every mapping in it is gone.
//! 2. Physical memory is released once, and goes when its last mapping, in any buffer, goes.
//! 3. An operation that fails at any step leaves everything as it was.
//! 4. A buffer's chunks are ascending and contiguous, and never change.
//! 5. Growing leaves the input usable, and both see the same bytes.
//! 6. Up to a capacity reserved in advance, the address never changes.
//! 7. Access is fixed when a chunk is mapped.
//! 8. No call needs a current context, and none changes the caller's.
//! 9. Memory is unmapped after the work on its owners' streams is finished, since the driver does not
//!    wait by itself. Where waiting fails, or would break a graph capture, the release goes on without
//!    it and is reported.
//! 10. No mapping reaches past its range.
//! 11. Drops never panic; what fails in them goes to [`Driver::on_release_error`]. Every owner can be
//!     closed explicitly instead. The end of the process, and forked children, are silent.
//! 12. Everything can be used from any thread at once.
//! 13. Device memory is never a Rust reference.

#![deny(unsafe_code)]
#![warn(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod access;
mod allocation;
mod allocator;
mod buffer;
mod capture;
mod chain;
mod close;
mod close_error;
mod context;
mod copy;
mod create;
mod device;
mod device_state;
#[cfg(feature = "dlpack")]
mod dlpack;
mod driver;
mod error;
mod free_list;
mod grow;
mod layout;
mod location;
mod mapping;
mod memory_info;
mod order;
mod pieces;
mod policy;
mod prefix;
mod properties;
#[expect(unsafe_code, reason = "the one door to the driver")]
mod raw;
mod reservation;
mod size;
mod sleep;
mod slice;
mod stream;
mod uuid;

#[cfg(feature = "dlpack")]
pub use dlpark;
pub use vmm_sys as sys;

pub use crate::allocation::{Allocation, AllocationId, FabricHandle};
pub use crate::allocator::{Allocator, AllocatorBuilder, Granularity};
pub use crate::buffer::{Buffer, Chunk, Chunks};
pub use crate::close_error::CloseError;
pub use crate::create::MapOptions;
pub use crate::device::Device;
pub use crate::driver::{Driver, ReleaseError};
pub use crate::error::{Error, ErrorKind, Result};
pub use crate::layout::{Layout, LayoutRow};
pub use crate::location::{Access, HandleTypes, Location};
pub use crate::memory_info::MemoryInfo;
pub use crate::policy::ChunkPolicy;
pub use crate::prefix::Prefix;
pub use crate::properties::DeviceProperties;
pub use crate::sleep::{Progress, SleepError, SleepingBuffer};
pub use crate::slice::Slice;
pub use crate::stream::Stream;
pub use crate::uuid::Uuid;

/// Invariant 12, as far as types can say it: everything that owns something goes to any thread.
const _: () = {
    const fn any_thread<T: Send + Sync>() {}
    any_thread::<Driver>();
    any_thread::<Device>();
    any_thread::<Allocation>();
    any_thread::<Allocator>();
    any_thread::<AllocatorBuilder>();
    any_thread::<Buffer>();
    any_thread::<Slice>();
    any_thread::<SleepingBuffer>();
    any_thread::<Stream>();
    any_thread::<Error>();
    any_thread::<CloseError>();
};
