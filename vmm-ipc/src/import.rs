//! The importing side: from bytes and file descriptors of a stranger to a buffer.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};

use vmm::{Access, Allocation, Buffer, Device, Driver, FabricHandle, MapOptions, Uuid};

use crate::channel::{Channel, Deadline, unexpected};
use crate::error::{Error, ErrorKind, Result};
use crate::export::{BATCH, Export, Progress};
use crate::fd_limit;
use crate::handle;
use crate::limits::Limits;
use crate::wire::{BufferId, Descriptor, HandleKind, Message, Update, WireError};

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

/// A buffer of another process, mapped in this one.
///
/// What it maps stays valid, readable and writable when the exporter exits.
pub struct Imported {
    buffer: Buffer,
    descriptor: Descriptor,
    /// One for each chunk, if they were to be kept.
    fds: Option<Vec<OwnedFd>>,
    limits: Limits,
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

    /// What another device of this process may do with the memory.
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
    /// All or nothing: on an error the exporter is told why, the channel can go on, and nothing is
    /// left behind here. Chunks are mapped while later ones still arrive.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Timeout`], [`ErrorKind::Hangup`], [`ErrorKind::Protocol`] for the exchange;
    /// [`ErrorKind::Limit`], [`ErrorKind::FdLimit`], [`ErrorKind::NoDevice`],
    /// [`ErrorKind::NotAHandle`], [`ErrorKind::Memory`] for what came, saying which chunk.
    pub fn receive(self, driver: &Driver, channel: &mut Channel) -> Result<Imported> {
        let before = channel.deadline();
        let received = channel.receive_by(before)?;
        let descriptor = match received.message {
            Message::Offer(descriptor) => descriptor,
            other => return Err(unexpected(&other, "an offer")),
        };
        self.receive_offered(driver, channel, descriptor)
    }

    /// As [`ImportOptions::receive`], for an offer that was received already: what a process does
    /// that waits for messages of several kinds.
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
        let result = self.start(driver, &descriptor, 0).and_then(|mut building| {
            transfer.run(channel, |fds| building.add(fds))?;
            building.finish(descriptor)
        });
        transfer.answer(channel, id, generation, result)
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
        if fds.len() != expected.fds {
            return Err(wrong_count("importing a buffer", fds.len(), expected.fds));
        }
        let mut building = self.start(driver, &descriptor, fds.len())?;
        building.add(fds)?;
        building.finish(descriptor)
    }

    /// As [`ImportOptions::import`], from the bytes of a descriptor.
    ///
    /// # Errors
    ///
    /// As [`ImportOptions::import`]; [`ErrorKind::Protocol`] for bytes that are no descriptor.
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
            // Those that are not kept are open a batch at a time.
            let chunks = descriptor.sizes().len();
            let needed = match self.keep_handles {
                true => chunks,
                false => chunks.min(BATCH),
            };
            let needed = needed.saturating_sub(already_open);
            fd_limit::check(needed, attempt)?;
        }
        let mut options = MapOptions::new(self.access).capacity(capacity);
        for (peer, access) in &self.peers {
            options = options.peer(peer, *access);
        }
        Ok(Building {
            chunks: ChunkSource::new(driver, &device),
            device,
            sizes: descriptor.sizes().to_vec(),
            fabric: descriptor.fabric_handles().to_vec(),
            len: descriptor.len() as usize,
            options,
            buffer: None,
            kept: self.keep_handles.then(Vec::new),
            progress: self.progress,
            limits: self.limits,
        })
    }
}

/// A buffer that is being put together, batch by batch.
struct Building<'a> {
    chunks: ChunkSource,
    device: Device,
    sizes: Vec<u64>,
    fabric: Vec<[u8; HandleKind::FABRIC_LEN]>,
    len: usize,
    options: MapOptions,
    buffer: Option<Buffer>,
    kept: Option<Vec<OwnedFd>>,
    progress: Option<Box<dyn FnMut(Progress) + 'a>>,
    limits: Limits,
}

impl Building<'_> {
    /// Import and map the next chunks.
    fn add(&mut self, fds: Vec<OwnedFd>) -> Result<()> {
        let total = self.sizes.len();
        let done = self.buffer.as_ref().map_or(0, Buffer::chunk_count);
        let allocations = if self.fabric.is_empty() {
            let sizes = self.sizes.get(done..).unwrap_or_default();
            self.chunks.import_fds(&fds, sizes, done, total)?
        } else {
            self.chunks.import_fabric(&self.fabric, &self.sizes)?
        };
        let added: usize = allocations.iter().map(Allocation::size).sum();
        let mapped = self.buffer.as_ref().map_or(0, Buffer::mapped_len) + added;
        let len = self.len.min(mapped);
        let buffer = match &self.buffer {
            None => Buffer::from_allocations(&self.device, allocations, len, &self.options),
            Some(buffer) => buffer.extend(allocations, len),
        };
        let buffer = buffer.map_err(|error| {
            let last = (done + fds.len().max(1)).min(total);
            explain_map(
                format!("mapping chunks {} to {last} of {total}", done + 1),
                error,
            )
        })?;
        if let Some(kept) = &mut self.kept {
            kept.extend(fds);
        }
        let progress = Progress::new(buffer.chunk_count(), total);
        self.buffer = Some(buffer);
        if let Some(callback) = &mut self.progress {
            callback(progress);
        }
        Ok(())
    }

    fn finish(mut self, descriptor: Descriptor) -> Result<Imported> {
        if self.buffer.is_none() {
            // Fabric handles came with the descriptor.
            self.add(Vec::new())?;
        }
        match self.buffer {
            Some(buffer) => Ok(Imported {
                buffer,
                descriptor,
                fds: self.kept,
                limits: self.limits,
            }),
            None => Err(Error::wire("importing a buffer", WireError::NoChunks)),
        }
    }
}

impl Imported {
    /// The memory, as any other buffer.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// The memory alone. Handles that were kept are closed.
    pub fn into_buffer(self) -> Buffer {
        self.buffer
    }

    /// The buffer in words, as of the generation that is mapped.
    pub fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// The random name of the buffer.
    pub fn id(&self) -> BufferId {
        self.descriptor.id()
    }

    /// How often the buffer had grown when it was mapped last.
    pub fn generation(&self) -> u64 {
        self.descriptor.generation()
    }

    /// How many file descriptors are kept to pass the buffer on.
    pub fn open_fds(&self) -> usize {
        self.fds.as_ref().map_or(0, Vec::len)
    }

    /// What the buffer is shared on with: duplicates of the handles that it was imported from, since
    /// the driver does not export imported memory.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotShareable`] where the handles were not kept; [`ErrorKind::FdLimit`].
    pub fn export(&self) -> Result<Export> {
        let attempt = || format!("passing on buffer {}", self.id());
        if self.descriptor.handle_kind() == HandleKind::Fabric {
            return Ok(Export::relay(self.descriptor.clone(), Vec::new()));
        }
        let Some(fds) = &self.fds else {
            let reason =
                "its handles were not kept, and the driver does not export imported memory";
            return Err(Error::new(ErrorKind::NotShareable, attempt(), reason)
                .advise("import it with `ImportOptions::keep_handles(true)`"));
        };
        fd_limit::check(fds.len(), attempt)?;
        let duplicate = |fd: &OwnedFd| {
            rustix::io::fcntl_dupfd_cloexec(fd, 0).map_err(|errno| Error::os(attempt(), errno))
        };
        let fds = fds.iter().map(duplicate).collect::<Result<_>>()?;
        Ok(Export::relay(self.descriptor.clone(), fds))
    }

    /// Wait for the next update on the channel that the buffer came by, map it, and tell the
    /// exporter. The address stays the same where there is room.
    ///
    /// # Errors
    ///
    /// As [`ImportOptions::receive`]; [`ErrorKind::OutOfOrder`] for an update that was missed or
    /// repeated, after which a new offer helps. The buffer is as it was then.
    pub fn receive_update(&mut self, channel: &mut Channel) -> Result<()> {
        let received = channel.receive()?;
        match received.message {
            Message::Update(update) => self.receive_offered_update(channel, &update),
            other => Err(unexpected(&other, "an update")),
        }
    }

    /// As [`Imported::receive_update`], for an update that was received already.
    ///
    /// # Errors
    ///
    /// As [`Imported::receive_update`].
    pub fn receive_offered_update(&mut self, channel: &mut Channel, update: &Update) -> Result<()> {
        let deadline = Deadline::after(self.limits.time);
        let mut transfer = Transfer::new(Expected::of_update(update), deadline);
        let result = self.check_update(update).and_then(|descriptor| {
            let mut all = Vec::new();
            transfer.run(channel, |fds| {
                all.extend(fds);
                Ok(())
            })?;
            self.extended(update, descriptor, all)
        });
        let next = transfer.answer(channel, update.id(), update.generation(), result)?;
        *self = next.into_imported(self);
        Ok(())
    }

    /// Map what the buffer has grown by, from an update and its file descriptors that came some
    /// other way. The buffer that was there stays valid for whoever has an alias of it.
    ///
    /// # Errors
    ///
    /// As [`Imported::receive_update`], less the exchange.
    pub fn extend(&mut self, update: &Update, fds: Vec<OwnedFd>) -> Result<()> {
        let descriptor = self.check_update(update)?;
        let expected = Expected::of_update(update);
        if fds.len() != expected.fds {
            return Err(wrong_count("extending a buffer", fds.len(), expected.fds));
        }
        let next = self.extended(update, descriptor, fds)?;
        *self = next.into_imported(self);
        Ok(())
    }

    /// Whether an update follows what is here; the descriptor after it.
    fn check_update(&self, update: &Update) -> Result<Descriptor> {
        let attempt = || {
            format!(
                "extending buffer {} to generation {}",
                self.id(),
                update.generation()
            )
        };
        let wrong = |reason: String| Err(Error::new(ErrorKind::OutOfOrder, attempt(), reason));
        if update.id() != self.id() {
            return wrong(format!("the update is of buffer {}", update.id()));
        }
        let have = self.generation();
        if update.generation() <= have {
            return wrong(format!(
                "generation {have} is mapped already: the update is a repetition"
            ));
        }
        if update.generation() != have + 1 {
            return wrong(format!(
                "generation {have} is mapped, so updates in between were missed: ask for a new offer"
            ));
        }
        let had = self.descriptor.sizes().len();
        let follows = update.first_chunk() as usize == had
            && update.mapped_before() == self.descriptor.mapped_len()
            && update.granularity() == self.descriptor.granularity()
            && update.handle_kind() == self.descriptor.handle_kind()
            && update.len() >= self.descriptor.len();
        if !follows {
            return wrong("it does not begin where the mapped chunks end".into());
        }
        let descriptor = self
            .descriptor
            .updated(update)
            .map_err(|error| Error::wire(attempt(), error))?;
        let chunks = descriptor.sizes().len();
        check_limits(&self.limits, chunks, descriptor.mapped_len(), attempt)?;
        Ok(descriptor)
    }

    fn extended(&self, update: &Update, descriptor: Descriptor, fds: Vec<OwnedFd>) -> Result<Next> {
        let device = self.buffer.device();
        let chunks = ChunkSource::new(device.driver(), device);
        let (had, total) = (self.descriptor.sizes().len(), descriptor.sizes().len());
        let allocations = match update.handle_kind() {
            HandleKind::PosixFd => chunks.import_fds(&fds, update.sizes(), had, total)?,
            HandleKind::Fabric => chunks.import_fabric(update.fabric_handles(), update.sizes())?,
        };
        let buffer = self
            .buffer
            .extend(allocations, update.len() as usize)
            .map_err(|error| {
                explain_map(
                    format!("mapping chunks {} to {total} of {total}", had + 1),
                    error,
                )
            })?;
        Ok(Next {
            buffer,
            descriptor,
            fds,
        })
    }
}

/// What an imported buffer becomes by an update.
struct Next {
    buffer: Buffer,
    descriptor: Descriptor,
    fds: Vec<OwnedFd>,
}

impl Next {
    fn into_imported(self, before: &mut Imported) -> Imported {
        let kept = before.fds.take().map(|mut kept| {
            kept.extend(self.fds);
            kept
        });
        Imported {
            buffer: self.buffer,
            descriptor: self.descriptor,
            fds: kept,
            limits: before.limits,
        }
    }
}

/// What is to arrive for one offer or update.
struct Expected {
    id: BufferId,
    first: u32,
    fds: usize,
}

impl Expected {
    fn of_offer(descriptor: &Descriptor) -> Self {
        let by_fd = descriptor.handle_kind() == HandleKind::PosixFd;
        let fds = if by_fd { descriptor.sizes().len() } else { 0 };
        Expected {
            id: descriptor.id(),
            first: 0,
            fds,
        }
    }

    fn of_update(update: &Update) -> Self {
        let by_fd = update.handle_kind() == HandleKind::PosixFd;
        let fds = if by_fd { update.sizes().len() } else { 0 };
        Expected {
            id: update.id(),
            first: update.first_chunk(),
            fds,
        }
    }
}

/// File descriptors arriving for one offer or update.
struct Transfer {
    expected: Expected,
    arrived: usize,
    deadline: Deadline,
    /// Whether the exchange is still in step, so that the peer can be answered.
    in_step: bool,
}

impl Transfer {
    fn new(expected: Expected, deadline: Deadline) -> Self {
        Transfer {
            expected,
            arrived: 0,
            deadline,
            in_step: true,
        }
    }

    /// Receive all that is still to arrive and give it to `take`, batch by batch.
    fn run(
        &mut self,
        channel: &mut Channel,
        mut take: impl FnMut(Vec<OwnedFd>) -> Result<()>,
    ) -> Result<()> {
        while self.arrived < self.expected.fds {
            let fds = self.next(channel).inspect_err(|_| self.in_step = false)?;
            take(fds)?;
        }
        Ok(())
    }

    fn next(&mut self, channel: &mut Channel) -> Result<Vec<OwnedFd>> {
        let received = channel.receive_by(self.deadline)?;
        let attempt = || format!("receiving the handles of buffer {}", self.expected.id);
        let (id, first) = match received.message {
            Message::Handles { id, first, .. } => (id, first),
            Message::Retired { .. } => {
                return Err(Error::new(
                    ErrorKind::Hangup,
                    attempt(),
                    "the exporter gave up",
                ));
            }
            other => return Err(unexpected(&other, "handles")),
        };
        let next = u64::from(self.expected.first) + self.arrived as u64;
        let left = self.expected.fds - self.arrived;
        if id != self.expected.id || u64::from(first) != next {
            let reason = format!("handles from chunk {first} on came where chunk {next} is next");
            return Err(Error::new(ErrorKind::Protocol, attempt(), reason));
        }
        if received.fds.is_empty() || received.fds.len() > left {
            return Err(wrong_count("receiving handles", received.fds.len(), left));
        }
        self.arrived += received.fds.len();
        Ok(received.fds)
    }

    /// Tell the exporter how it went.
    fn answer<T>(
        mut self,
        channel: &mut Channel,
        id: BufferId,
        generation: u64,
        result: Result<T>,
    ) -> Result<T> {
        match result {
            Ok(value) => {
                channel.send_by(&Message::Accepted { id, generation }, &[], self.deadline)?;
                Ok(value)
            }
            Err(error) => {
                // What is on its way comes first, so that the channel is in step afterwards.
                let drained = self.in_step && self.run(channel, |_| Ok(())).is_ok();
                if drained {
                    let refusal = error.to_refusal();
                    let message = Message::Refused {
                        id,
                        generation,
                        refusal,
                    };
                    // The error is this side's; that the peer does not hear of it is not.
                    let _ = channel.send_by(&message, &[], self.deadline);
                }
                Err(error)
            }
        }
    }
}

/// Imports chunks on the device that holds them.
struct ChunkSource {
    device: Device,
    emulator: bool,
}

impl ChunkSource {
    fn new(driver: &Driver, device: &Device) -> Self {
        ChunkSource {
            device: device.clone(),
            emulator: driver.is_emulator(),
        }
    }

    /// One chunk from each descriptor; `sizes` begins with that of the first.
    fn import_fds(
        &self,
        fds: &[OwnedFd],
        sizes: &[u64],
        done: usize,
        total: usize,
    ) -> Result<Vec<Allocation>> {
        let import = |(index, (fd, &size)): (usize, (&OwnedFd, &u64))| {
            let attempt = || format!("importing chunk {} of {total}", done + index + 1);
            handle::check(fd, self.emulator, attempt)?;
            Allocation::import_posix_fd(&self.device, fd.as_fd(), size as usize)
                .map_err(|error| Error::memory(attempt(), error))
        };
        fds.iter().zip(sizes).enumerate().map(import).collect()
    }

    fn import_fabric(
        &self,
        handles: &[[u8; HandleKind::FABRIC_LEN]],
        sizes: &[u64],
    ) -> Result<Vec<Allocation>> {
        let total = handles.len();
        let import = |(index, (bytes, &size)): (usize, (&[u8; HandleKind::FABRIC_LEN], &u64))| {
            let handle = FabricHandle::from_bytes(*bytes);
            Allocation::import_fabric(&self.device, &handle, size as usize).map_err(|error| {
                Error::memory(format!("importing chunk {} of {total}", index + 1), error)
            })
        };
        handles.iter().zip(sizes).enumerate().map(import).collect()
    }
}

fn find_device(driver: &Driver, descriptor: &Descriptor) -> Result<Device> {
    let uuid = Uuid::from_bytes(descriptor.device());
    driver.device_by_uuid(uuid).map_err(|error| {
        Error::memory(format!("importing buffer {}", descriptor.id()), error)
            .advise("the exporter's GPU has to be visible here as well: see CUDA_VISIBLE_DEVICES")
    })
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

fn explain_map(attempt: String, error: vmm::Error) -> Error {
    match error.kind() {
        vmm::ErrorKind::InvalidArgument => Error::new(
            ErrorKind::NotAHandle,
            attempt,
            format!("the memory is not what was stated: {error}"),
        ),
        _ => Error::memory(attempt, error),
    }
}

fn wrong_count(attempt: &'static str, found: usize, expected: usize) -> Error {
    let reason = format!("{found} file descriptors came, and {expected} belong here");
    Error::new(ErrorKind::Protocol, attempt, reason)
}

impl fmt::Debug for Imported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Imported")
            .field("descriptor", &self.descriptor)
            .field("buffer", &self.buffer)
            .field("kept", &self.open_fds())
            .finish_non_exhaustive()
    }
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
