//! What makes exports, and the one that it keeps alive so that the others are cheap.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use vmm::{
    Access, Allocation, Allocator, Buffer, ChunkPolicy, Device, HandleTypes, Location, MapOptions,
};

use super::origin::Origin;
use super::{Export, fabric_handles};
use crate::channel::Channel;
use crate::error::{Error, ErrorKind, Result};
use crate::fd_limit;
use crate::random;
use crate::wire::{BufferId, Descriptor, DescriptorFields, Message, Place};

/// Exports buffers of one device.
///
/// It keeps one granule of memory mapped and exported for as long as it lives. Granting access while
/// nothing else of the process is mapped on the device costs the driver thirty times more, exporting
/// while nothing else is exported twenty times more, and so do the last unmap and the last close. So
/// make one `Exporter` early, before the buffers, and keep it. What it holds, one file descriptor and
/// one granule of memory, goes when it and all its exports are gone. The importing side has
/// [`Importer`](crate::Importer).
#[derive(Clone, Debug)]
pub struct Exporter {
    device: Device,
    anchor: Option<Arc<Anchor>>,
}

/// The mapping and the export that stay alive.
#[derive(Debug)]
pub(super) struct Anchor {
    // In this order: the memory goes with its last handle.
    _fd: OwnedFd,
    _memory: Buffer,
}

/// One granule of memory, mapped and touched by nobody.
fn mapped(device: &Device, memory: Allocation) -> vmm::Result<Buffer> {
    let len = memory.size();
    Buffer::from_allocations(
        device,
        vec![memory],
        len,
        &MapOptions::new(Access::ReadWrite),
    )
}

/// A descriptor states one place for all of a buffer.
pub(super) const MIXED: &str =
    "some of its chunks lie on the device and some on the host, and a buffer is shared as one kind";

impl Exporter {
    /// For buffers of `device` that are shared as file descriptors.
    ///
    /// # Errors
    ///
    /// Those of allocating, exporting and mapping one granule: [`ErrorKind::Memory`],
    /// [`ErrorKind::FdLimit`].
    pub fn new(device: &Device) -> Result<Self> {
        let attempt = "setting up an exporter";
        let anchor = || -> vmm::Result<Anchor> {
            let allocator = Allocator::builder(device)
                .handle_types(HandleTypes::POSIX_FD)
                .chunk_policy(ChunkPolicy::exact())
                .build()?;
            let memory = allocator.allocate_unmapped(allocator.granularity())?;
            Ok(Anchor {
                _fd: memory.export_posix_fd()?,
                _memory: mapped(device, memory)?,
            })
        };
        let anchor = anchor().map_err(|error| Error::memory(attempt, error))?;
        Ok(Exporter {
            device: device.clone(),
            anchor: Some(Arc::new(anchor)),
        })
    }

    /// For buffers that are shared as fabric handles, which need nothing to be kept.
    pub fn for_fabric(device: &Device) -> Self {
        Exporter {
            device: device.clone(),
            anchor: None,
        }
    }

    /// The device whose buffers are exported.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The file descriptors that the exporter itself keeps open.
    pub fn open_fds(&self) -> usize {
        usize::from(self.anchor.is_some())
    }

    /// Export every chunk of a buffer.
    ///
    /// Waits for the work on the buffer's recorded stream first, so that importers see what was
    /// written. The whole buffer is exported or nothing is.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotShareable`] for private memory, imported memory, or an empty buffer;
    /// [`ErrorKind::FdLimit`] with how many descriptors are needed and left; [`ErrorKind::Memory`].
    pub fn export(&self, buffer: &Buffer) -> Result<Export> {
        let mut export = self.prepare(buffer)?;
        for chunk in buffer.chunks() {
            export.export_chunk(chunk.allocation, buffer.chunk_count())?;
        }
        Ok(export)
    }

    /// Export a buffer and send it to its first importer at the same time, which with many chunks is
    /// faster than one after the other. Returns when the importer has mapped it.
    ///
    /// Where the buffer cannot be shared at all the importer hears nothing of it, and goes on waiting for
    /// another one, or for the channel's end.
    ///
    /// # Errors
    ///
    /// As [`Exporter::export`] and [`Export::send`].
    pub fn share(&self, buffer: &Buffer, channel: &mut Channel) -> Result<Export> {
        let mut export = self.prepare(buffer)?;
        let deadline = channel.deadline();
        let offer = Message::Offer(export.descriptor.clone());
        export.begin(channel, &offer, export.generation(), deadline)?;
        let sent = export.export_and_send(buffer, channel, deadline);
        export.conclude(channel, export.generation(), deadline, sent)?;
        Ok(export)
    }

    /// The export of `buffer`, with everything but its file descriptors.
    fn prepare(&self, buffer: &Buffer) -> Result<Export> {
        let attempt = || format!("exporting a buffer of {} bytes", buffer.len());
        let refuse = |reason: &'static str| Error::new(ErrorKind::NotShareable, attempt(), reason);
        if buffer.chunk_count() == 0 {
            return Err(refuse("it is empty: there is no memory to share"));
        }
        let chunks: Vec<_> = buffer.chunks().collect();
        if chunks.iter().any(|chunk| chunk.allocation.is_imported()) {
            return Err(refuse(
                "it has memory that was imported, and the driver does not export that again",
            )
            .advise("import it with `keep_handles` and pass it on with `Imported::export`"));
        }
        let host = buffer.location().is_host();
        if chunks
            .iter()
            .any(|chunk| chunk.allocation.location().is_host() != host)
        {
            return Err(refuse(MIXED));
        }
        let kinds = buffer.handle_types();
        let by_fd = self.anchor.is_some();
        let wanted = if by_fd {
            HandleTypes::POSIX_FD
        } else {
            HandleTypes::FABRIC
        };
        if !kinds.contains(wanted) {
            let reason = format!("its memory was allocated to be shared as: {kinds}");
            let advice = format!(
                "ask for {wanted} when allocating: `Allocator::builder(..).handle_types(..)`"
            );
            return Err(Error::new(ErrorKind::NotShareable, attempt(), reason).advise(advice));
        }
        if by_fd {
            fd_limit::check(buffer.chunk_count(), attempt)?;
        }
        buffer
            .synchronize()
            .map_err(|error| Error::memory(attempt(), error))?;
        let place = match buffer.location() {
            Location::Device => Place::Device,
            Location::HostNuma(node) => Place::HostNuma(node),
            _ => {
                return Err(refuse(
                    "its memory lies where no other process can import it",
                ));
            }
        };
        let fields = DescriptorFields {
            id: BufferId(random::bytes()?),
            generation: 0,
            device: *buffer.device().uuid().as_bytes(),
            place,
            granularity: buffer.granularity() as u64,
            len: buffer.len() as u64,
            capacity: buffer.capacity() as u64,
        };
        let sizes = chunks.iter().map(|chunk| chunk.size as u64).collect();
        let fabric = if by_fd {
            Vec::new()
        } else {
            fabric_handles(chunks.iter().copied())?
        };
        let descriptor = Descriptor::new(fields, sizes, fabric)
            .map_err(|error| Error::wire(attempt(), error))?;
        Ok(Export {
            descriptor,
            fds: Vec::new(),
            updates: Vec::new(),
            origin: Some(Origin::new(buffer)),
            anchor: self.anchor.clone(),
        })
    }
}
