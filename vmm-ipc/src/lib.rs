//! CUDA virtual memory shared between processes.
//!
//! A [`vmm::Buffer`] goes to another process as a whole: every chunk, mapped there as one contiguous
//! range, with the access that the importer chooses. It can grow while others have it mapped, at the
//! same address, and only what is new travels. The peer is not trusted: its bytes are bounded and
//! checked, every file descriptor has an owner from the moment it arrives, every wait has a
//! deadline, and what fails leaves nothing behind.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let driver = vmm::Driver::new(vmm_emulator::driver()?)?;
//! use vmm::{Allocator, HandleTypes};
//! use vmm_ipc::{Channel, Exporter, ImportOptions, Importer, Listener};
//!
//! // In the exporting process. An exporter is made once and kept.
//! let device = driver.device(0)?;
//! let allocator = Allocator::builder(&device).handle_types(HandleTypes::POSIX_FD).build()?;
//! let buffer = allocator.allocate_with_capacity(4 << 20, 64 << 20)?;
//! buffer.write(0, b"for whoever may read it")?;
//! let exporter = Exporter::new(&device)?;
//! let listener = Listener::new()?;
//! let path = listener.path().to_owned();
//! # let importer_driver = driver.clone();
//! # let importer = std::thread::spawn(move || -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! # let driver = importer_driver;
//!
//! // In the importing process, which was told the path. An importer is made once and kept, too.
//! let importer = Importer::new(&driver.device(0)?)?;
//! let mut channel = Channel::connect(&path)?;
//! let mut imported = importer.receive(ImportOptions::read_only(), &mut channel)?;
//! let mut bytes = [0; 23];
//! imported.buffer().read(0, &mut bytes)?;
//! assert_eq!(&bytes, b"for whoever may read it");
//! imported.receive_update(&mut channel)?;
//! assert_eq!(imported.buffer().len(), 8 << 20);
//! # Ok(()) });
//!
//! // Back in the exporting one.
//! let mut channel = listener.accept(vmm_ipc::DEFAULT_TIMEOUT)?;
//! let mut export = exporter.share(&buffer, &mut channel)?;
//! let buffer = buffer.grow(8 << 20)?;
//! export.grow(&buffer)?;
//! export.send_updates(&mut channel, 0)?;
//! # importer.join().unwrap().map_err(|error| error.to_string())?;
//! # Ok(()) }
//! ```
//!
//! | to do | with |
//! |---|---|
//! | share with the first importer, or with many | [`Exporter::share`], [`Export::send`] |
//! | grow what is shared | [`Export::grow`], [`Export::send_updates`], [`Imported::receive_update`] |
//! | pass on what was imported, and what it grows by | [`ImportOptions::keep_handles`], [`Imported::export`], [`Imported::export_growth`] |
//! | wait for several things at once | [`Channel::try_receive`], [`ImportOptions::receive_offered`], [`decline_offer`] |
//! | use another transport | [`Export::into_parts`], [`Export::from_parts`], [`ImportOptions::import_parts`] |
//! | share across machines of one NVLink domain | [`Exporter::for_fabric`] |
//! | stop sharing | [`Export::retire`] |
//! | choose whom to talk to, and how much to take | [`PeerPolicy`], [`Limits`] |
//!
//! Whether a machine can do it, and if not, why, says `vmm-doctor`, a program of this crate (feature
//! `doctor`, on by default): `cargo run -p vmm-ipc --bin vmm-doctor`. What each [`ErrorKind`] means
//! and what to do about it is in `docs/errors.md`; the bytes are specified in `docs/protocol.md`.
//!
//! # What a peer can do
//!
//! Whatever bytes, descriptors or silence a peer sends, this side answers with an error by its
//! deadline, keeps nothing of it open or mapped, and takes no more than the [`Limits`]; by default only
//! a process of the same user is talked to. But **whoever holds a handle can map the memory writable**, whatever access it asked for: read-only
//! is a guard against accidents. Sharing cannot be undone, since the memory lives as long as any
//! process has it mapped or its handle open. And what is read from shared memory can change while it
//! is read: check a copy, then use the copy. `docs/threat-model.md` has the whole of it.
//!
//! # What stays open
//!
//! An [`Exporter`] keeps one granule of memory exported, which makes other exports many times
//! cheaper; an [`Export`] keeps one file descriptor for each chunk, so that each is exported once
//! however many importers come; an [`Imported`] keeps those that it came by only where it was asked
//! to. Each says how many, and closes them with itself.
#![deny(unsafe_code)]
#![warn(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
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
pub use crate::export::{Export, Exporter};
pub use crate::import::{
    Capacity, ImportOptions, Imported, Importer, Progress, decline_offer, decline_update,
};
pub use crate::limits::Limits;
