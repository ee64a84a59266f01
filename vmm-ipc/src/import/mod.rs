//! The importing side: from bytes and file descriptors of a stranger to a buffer.

mod building;
mod chunks;
mod decline;
mod imported;
mod importer;
mod transfer;

use std::fmt;
use std::os::fd::OwnedFd;

use vmm::{Access, Buffer, Device, Driver, MapOptions, Uuid};

use self::building::Building;
pub use self::building::Progress;
use self::chunks::ChunkSource;
pub use self::decline::{decline_offer, decline_update};
pub use self::imported::Imported;
pub use self::importer::Importer;
use self::transfer::{Expected, Transfer};
use crate::channel::{Channel, Deadline, unexpected};
use crate::error::{Error, ErrorKind, Result};
use crate::export::BATCH;
use crate::fd_limit;
use crate::handle;
use crate::limits::Limits;
use crate::wire::{Descriptor, HandleKind, Message, Place, WireError};

/// How a buffer is imported. Whether it is to be written is a choice without a default.
#[must_use]
pub struct ImportOptions<'a> {
    access: Access,
    limits: Limits,
    capacity: Capacity,
    peers: Vec<(Device, Access)>,
    keep_handles: bool,
    progress: Option<Box<dyn FnMut(Progress) + 'a>>,
}

/// How much address space an imported buffer reserves, to grow at its address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Capacity {
    /// As much as the exporter has reserved.
    #[default]
    AsExported,
    /// Just what is mapped: growing may move the buffer.
    Exact,
    /// This many bytes, or what is mapped if that is more.
    Bytes(usize),
}

impl<'a> ImportOptions<'a> {
    /// Map the buffer so that this process's device can only read it.
    ///
    /// That guards against mistakes, not against malice: whoever holds the handles can map them
    /// writable.
    pub fn read_only() -> Self {
        Self::with_access(Access::Read)
    }

    /// Map the buffer so that this process's device reads and writes it.
    pub fn read_write() -> Self {
        Self::with_access(Access::ReadWrite)
    }

    fn with_access(access: Access) -> Self {
        ImportOptions {
            access,
            limits: Limits::default(),
            capacity: Capacity::AsExported,
            peers: Vec::new(),
            keep_handles: false,
            progress: None,
        }
    }

    /// How much is taken from the peer. Default: [`Limits::default`].
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// How much address space to reserve. Default: as much as the exporter has.
    pub fn capacity(mut self, capacity: Capacity) -> Self {
        self.capacity = capacity;
        self
    }

    /// What another device of this process may do with the memory. It may turn out to be the one that
    /// the buffer is for, which has the access of these options.
    pub fn peer(mut self, device: &Device, access: Access) -> Self {
        self.peers.push((device.clone(), access));
        self
    }

    /// Keep the file descriptors, to pass the buffer on with [`Imported::export`]. Default: no.
    pub fn keep_handles(mut self, keep: bool) -> Self {
        self.keep_handles = keep;
        self
    }

    /// Hear how far the import has come, after each batch of chunks.
    pub fn progress(mut self, callback: impl FnMut(Progress) + 'a) -> Self {
        self.progress = Some(Box::new(callback));
        self
    }

    /// Wait for a buffer on a channel, map it, and tell the exporter.
    ///
    /// All or nothing: on an error the exporter is told why, and nothing is left behind here. The
    /// channel can go on unless the exchange itself failed: see [`Channel::is_broken`]. Chunks are
    /// mapped while later ones still arrive.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Timeout`](crate::ErrorKind::Timeout), [`ErrorKind::Hangup`](crate::ErrorKind::Hangup), [`ErrorKind::Protocol`](crate::ErrorKind::Protocol) for the exchange,
    /// [`ErrorKind::Retired`](crate::ErrorKind::Retired) where word of another buffer's end came instead
    /// ([`Error::buffer`]);
    /// [`ErrorKind::Limit`](crate::ErrorKind::Limit), [`ErrorKind::FdLimit`](crate::ErrorKind::FdLimit), [`ErrorKind::NoDevice`](crate::ErrorKind::NoDevice),
    /// [`ErrorKind::NotAHandle`](crate::ErrorKind::NotAHandle), [`ErrorKind::Memory`](crate::ErrorKind::Memory) for what came, saying which chunk.
    pub fn receive(self, driver: &Driver, channel: &mut Channel) -> Result<Imported> {
        let before = channel.deadline();
        let received = channel.receive_by(before)?;
        let descriptor = match received.message {
            Message::Offer(descriptor) => descriptor,
            other => return Err(out_of_place(channel, &other, "an offer")),
        };
        self.receive_offered(driver, channel, descriptor)
    }

    /// As [`ImportOptions::receive`], for an offer that was received already: what a process does
    /// that waits for messages of several kinds. To say no to one, see
    /// [`decline_offer`](crate::decline_offer).
    ///
    /// # Errors
    ///
    /// As [`ImportOptions::receive`].
    pub fn receive_offered(
        self,
        driver: &Driver,
        channel: &mut Channel,
        descriptor: Descriptor,
    ) -> Result<Imported> {
        let deadline = Deadline::after(self.limits.time);
        let (id, generation) = (descriptor.id(), descriptor.generation());
        let expected = Expected::of_offer(&descriptor);
        let mut transfer = Transfer::new(expected, deadline);
        channel.exchange(|channel| {
            let result = self.start(driver, &descriptor, 0).and_then(|mut building| {
                transfer.run(channel, |fds| building.add(fds))?;
                building.finish(descriptor)
            });
            transfer.answer(channel, id, generation, result)
        })
    }

    /// Import a buffer from a descriptor and its file descriptors, which came some other way.
    ///
    /// # Errors
    ///
    /// As [`ImportOptions::receive`], less the exchange.
    pub fn import(
        self,
        driver: &Driver,
        descriptor: Descriptor,
        fds: Vec<OwnedFd>,
    ) -> Result<Imported> {
        let expected = Expected::of_offer(&descriptor);
        handle::check_count("importing a buffer", fds.len(), expected.fds)?;
        let mut building = self.start(driver, &descriptor, fds.len())?;
        building.add(fds)?;
        building.finish(descriptor)
    }

    /// As [`ImportOptions::import`], from the bytes of a descriptor.
    ///
    /// # Errors
    ///
    /// As [`ImportOptions::import`]; [`ErrorKind::Protocol`](crate::ErrorKind::Protocol) for bytes that are no descriptor.
    pub fn import_parts(
        self,
        driver: &Driver,
        bytes: &[u8],
        fds: Vec<OwnedFd>,
    ) -> Result<Imported> {
        let descriptor = Descriptor::decode(bytes)
            .map_err(|error| Error::wire("reading a descriptor", error))?;
        self.import(driver, descriptor, fds)
    }

    /// Check what can be checked before anything is imported.
    fn start(
        self,
        driver: &Driver,
        descriptor: &Descriptor,
        already_open: usize,
    ) -> Result<Building<'a>> {
        let attempt = || format!("importing buffer {}", descriptor.id());
        check_limits(
            &self.limits,
            descriptor.sizes().len(),
            descriptor.mapped_len(),
            attempt,
        )?;
        let device = find_device(driver, descriptor)?;
        let mapped = descriptor.mapped_len() as usize;
        let capacity = match self.capacity {
            Capacity::Exact => mapped,
            Capacity::Bytes(bytes) => bytes.max(mapped),
            Capacity::AsExported if descriptor.capacity() > self.limits.capacity => {
                let (found, limit) = (descriptor.capacity(), self.limits.capacity);
                let error = WireError::Limit {
                    what: "bytes of capacity",
                    found,
                    limit,
                };
                return Err(Error::wire(attempt(), error)
                    .advise("choose `Capacity::Exact` or raise the limit"));
            }
            Capacity::AsExported => descriptor.capacity() as usize,
        };
        if descriptor.handle_kind() == HandleKind::PosixFd {
            let chunks = descriptor.sizes().len();
            check_fds(chunks, self.keep_handles, already_open, attempt)?;
        }
        let mut options = MapOptions::new(self.access).capacity(capacity);
        for (peer, access) in self.peers.iter().filter(|(peer, _)| *peer != device) {
            options = options.peer(peer, *access);
        }
        // The addresses are reserved while the handles are still on their way. Where memory of the host
        // is granted access to depends on the first chunk, so that has to come first there.
        let buffer = match descriptor.place() {
            Place::Device => Some(
                Buffer::from_allocations(&device, Vec::new(), 0, &options)
                    .map_err(|error| Error::memory(attempt(), error))?,
            ),
            _ => None,
        };
        Ok(Building {
            chunks: ChunkSource::new(driver, &device, descriptor.place()),
            device,
            sizes: descriptor.sizes().to_vec(),
            fabric: descriptor.fabric_handles().to_vec(),
            len: descriptor.len() as usize,
            options,
            buffer,
            kept: self.keep_handles.then(Vec::new),
            progress: self.progress,
            limits: self.limits,
        })
    }
}

/// A whole message came that is not the one. What may follow it is not known, unless it is a farewell.
fn out_of_place(channel: &mut Channel, found: &Message, expected: &'static str) -> Error {
    if let Message::Retired { id } = found {
        let attempt = format!("waiting for {expected}");
        let reason = format!("the exporter says that nothing more of buffer {id} will come");
        return Error::new(ErrorKind::Retired, attempt, reason).about(*id);
    }
    channel.break_off();
    unexpected(found, expected)
}

fn find_device(driver: &Driver, descriptor: &Descriptor) -> Result<Device> {
    let uuid = Uuid::from_bytes(descriptor.device());
    driver.device_by_uuid(uuid).map_err(|error| {
        let hidden = error.kind() == vmm::ErrorKind::NoDevice;
        let error = Error::memory(format!("importing buffer {}", descriptor.id()), error);
        match hidden {
            true => error.advise(
                "the exporter's GPU has to be visible here as well: see CUDA_VISIBLE_DEVICES",
            ),
            false => error,
        }
    })
}

/// Whether the file descriptors of so many chunks can be open: all of them where they are kept, else a
/// batch at a time.
fn check_fds(
    chunks: usize,
    keep: bool,
    already_open: usize,
    attempt: impl Fn() -> String,
) -> Result<()> {
    let needed = match keep {
        true => chunks,
        false => chunks.min(BATCH),
    };
    fd_limit::check(needed.saturating_sub(already_open), attempt)
}

fn check_limits(
    limits: &Limits,
    chunks: usize,
    bytes: u64,
    attempt: impl Fn() -> String,
) -> Result<()> {
    let (found, limit) = (chunks as u64, limits.chunks.into());
    if found > limit {
        return Err(Error::wire(
            attempt(),
            WireError::Limit {
                what: "chunks",
                found,
                limit,
            },
        ));
    }
    if bytes > limits.bytes {
        let (found, limit) = (bytes, limits.bytes);
        return Err(Error::wire(
            attempt(),
            WireError::Limit {
                what: "bytes",
                found,
                limit,
            },
        ));
    }
    Ok(())
}

impl fmt::Debug for ImportOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImportOptions")
            .field("access", &self.access)
            .field("limits", &self.limits)
            .field("capacity", &self.capacity)
            .field("keep_handles", &self.keep_handles)
            .finish_non_exhaustive()
    }
}
