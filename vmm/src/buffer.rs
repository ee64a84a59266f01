//! Buffers: chunks at consecutive addresses, as one value that never changes.

use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::access::AccessSet;
use crate::allocation::Allocation;
use crate::allocator::Allocator;
use crate::chain::{self, Link};
use crate::close_error::CloseError;
use crate::device::Device;
use crate::error::{Attempt, Error, ErrorKind, Result};
use crate::location::{Access, HandleTypes, Location};
use crate::order::{After, Order};
use crate::raw::{self, Span};
use crate::reservation::Reservation;
use crate::stream::Stream;

/// Memory at one contiguous range of addresses: whole chunks, of which the buffer's length is a
/// prefix.
///
/// A buffer never changes. [`Buffer::grow`] makes another one that shares the chunks of this one, at
/// the same address or a new one; both stay valid and see the same bytes. A chunk is unmapped when
/// the last buffer that has it goes, after the work on the streams of its owners is finished.
///
/// The bytes are the device's: they are never a Rust slice. Copy them in and out with
/// [`Buffer::write`] and [`Buffer::read`], or give [`Buffer::address`] to a kernel.
///
/// ```compile_fail,E0608
/// fn first(buffer: &vmm::Buffer) -> u8 {
///     buffer[0]
/// }
/// ```
pub struct Buffer {
    pub(crate) kind: Kind,
    /// Where the buffer starts; 0 for an empty one without capacity.
    pub(crate) base: u64,
    pub(crate) len: usize,
    pub(crate) mapped: usize,
    pub(crate) chunks: usize,
    pub(crate) tail: Option<Arc<Link>>,
    /// The reservation that the end of the mapped bytes lies in, or will when the first chunk comes.
    pub(crate) room: Option<Reservation>,
    pub(crate) stream: Option<Stream>,
    /// What was put on streams that were recorded before this one, for host copies to wait for.
    pub(crate) earlier: Option<Arc<Order>>,
}

/// What a buffer and those grown from it have in common.
#[derive(Clone)]
pub(crate) struct Kind {
    pub(crate) device: Device,
    pub(crate) location: Location,
    /// What every chunk can be shared as.
    pub(crate) handle_types: HandleTypes,
    pub(crate) granularity: usize,
    pub(crate) alignment: usize,
    /// Whether every chunk is memory of `device`, so that one call may run over all of them.
    pub(crate) is_plain: bool,
    /// The access of chunks to come.
    pub(crate) access: AccessSet,
    /// The devices that some chunk gives access to: who can have work to wait for.
    pub(crate) users: Arc<[Device]>,
    /// By which `grow` allocates; none for a buffer put together from given allocations.
    pub(crate) allocator: Option<Allocator>,
}

impl Kind {
    pub(crate) fn add_users(&mut self, access: &AccessSet) {
        let missing: Vec<Device> = access
            .devices()
            .filter(|device| !self.users.contains(device))
            .cloned()
            .collect();
        if !missing.is_empty() {
            self.users = self.users.iter().cloned().chain(missing).collect();
        }
    }
}

/// One chunk of a buffer: a physical allocation and where it is mapped.
#[derive(Clone, Copy)]
pub struct Chunk<'a> {
    /// The number of the chunk in the buffer, from 0.
    pub index: usize,
    /// Bytes from the start of the buffer.
    pub offset: usize,
    /// Bytes: a multiple of the granularity.
    pub size: usize,
    /// The device address.
    pub address: u64,
    /// The physical memory.
    pub allocation: &'a Allocation,
    /// What the buffer's device may do here.
    pub access: Access,
}

impl Buffer {
    /// The length in bytes, as it was asked for.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes that are mapped: the sum of the chunks, at least the length.
    pub fn mapped_len(&self) -> usize {
        self.mapped
    }

    /// The bytes up to which the buffer can grow at its address, if no other buffer that shares the
    /// range does so first. At least the mapped length.
    pub fn capacity(&self) -> usize {
        match &self.room {
            Some(room) => (room.end() - self.base) as usize,
            None => self.mapped,
        }
    }

    /// The device address of the first byte; 0 for an empty buffer without capacity.
    #[doc(alias = "CUdeviceptr")]
    pub fn address(&self) -> u64 {
        self.base
    }

    /// The device that the buffer was made for.
    pub fn device(&self) -> &Device {
        &self.kind.device
    }

    /// Where the memory lies.
    pub fn location(&self) -> Location {
        self.kind.location
    }

    /// How the whole buffer can be shared with other processes: as every chunk of it can.
    pub fn handle_types(&self) -> HandleTypes {
        self.kind.handle_types
    }

    /// Whether the whole buffer can be exported to other processes.
    pub fn is_shareable(&self) -> bool {
        !self.kind.handle_types.is_empty()
    }

    /// Chunk sizes are multiples of this many bytes.
    pub fn granularity(&self) -> usize {
        self.kind.granularity
    }

    /// What the device may do with chunks that are added.
    pub fn access(&self) -> Access {
        self.kind.access.owner()
    }

    /// The number of chunks.
    pub fn chunk_count(&self) -> usize {
        self.chunks
    }

    /// The chunks, in address order.
    ///
    /// The list is made before the first one comes, so also `chunks().next()` costs a step for each
    /// chunk that there is: for the last ones alone, take [`Buffer::chunks_from`].
    pub fn chunks(&self) -> Chunks<'_> {
        self.chunks_from(0)
    }

    /// The chunks from the one with this number on, in address order; none where there are not so
    /// many. The cost is that of the chunks from there on, taken or not, not of those before them.
    pub fn chunks_from(&self, first: usize) -> Chunks<'_> {
        let mut links: Vec<&Link> = chain::backwards(self.tail.as_ref())
            .take(self.chunks.saturating_sub(first))
            .map(|link| &**link)
            .collect();
        links.reverse();
        Chunks {
            device: &self.kind.device,
            base: self.base,
            index: first,
            links: links.into_iter(),
        }
    }

    /// Another owner of the same memory at the same address.
    pub fn alias(&self) -> Buffer {
        Buffer {
            kind: self.kind.clone(),
            base: self.base,
            len: self.len,
            mapped: self.mapped,
            chunks: self.chunks,
            tail: self.tail.clone(),
            room: self.room.clone(),
            stream: self.stream.clone(),
            earlier: self.earlier.clone(),
        }
    }

    /// The stream whose work is finished before the memory is unmapped.
    pub fn stream(&self) -> Option<&Stream> {
        self.stream.as_ref()
    }

    /// Record the stream whose work is finished before the memory is unmapped, and on which copies
    /// run. `None` (the default) is the device's default stream.
    ///
    /// What was submitted on the stream recorded before is waited for as well, and so is what this
    /// crate's copies and fills put on the default stream. A kernel of the caller's on the default
    /// stream is waited for only while no stream is recorded.
    ///
    /// [`Buffer::read`] and [`Buffer::write`] too wait for what went before on the stream recorded before.
    /// Fills and copies between buffers do not: streams are not in order with each other.
    pub fn set_stream(&mut self, stream: Option<&Stream>) {
        let before = match self.stream.take() {
            Some(before) => After::Stream(before.noted()),
            None => After::Default(self.kind.device.clone()),
        };
        // By default nothing may ever have run, and then there is nothing to wait for.
        let used = || match &before {
            After::Stream(_) => true,
            After::Default(_) => self.reservation().is_some_and(|range| range.has(&before)),
        };
        // Where nothing is mapped nothing can have been done. As in `note`, a forked child takes no lock.
        if self.tail.is_some() && self.kind.device.driver().in_own_process() && used() {
            // Aliases may share the list.
            let earlier = self
                .earlier
                .take()
                .map_or_else(Order::default, Arc::unwrap_or_clone);
            earlier.note(before.clone());
            self.earlier = Some(Arc::new(earlier));
            self.note(before);
        }
        self.stream = stream.cloned();
    }

    /// Wait for what was put on streams recorded before.
    pub(crate) fn wait_for_earlier(&self) -> Result<()> {
        let failed = self.earlier.as_ref().map(|order| order.wait());
        failed
            .and_then(|failed| failed.into_iter().next())
            .map_or(Ok(()), Err)
    }

    /// Wait until the work of the recorded stream (or of the default stream, where none is recorded)
    /// is finished, and that of the streams recorded before.
    ///
    /// # Errors
    ///
    /// As [`Stream::synchronize`].
    pub fn synchronize(&self) -> Result<()> {
        self.kind.device.driver().check()?;
        self.wait_for_earlier()?;
        match &self.stream {
            Some(stream) => stream.synchronize(),
            None => self
                .kind
                .users
                .iter()
                .try_for_each(crate::stream::synchronize_default),
        }
    }

    /// Export a range as a dma-buf, for a device driver that takes one (RDMA, video).
    ///
    /// Offset and length are multiples of the host's page size.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfBounds`]; [`ErrorKind::NotSupported`] where the device or the driver does
    /// not offer it.
    #[doc(alias = "cuMemGetHandleForAddressRange")]
    pub fn export_dma_buf(&self, range: impl RangeBounds<usize>) -> Result<OwnedFd> {
        let device = &self.kind.device;
        device.driver().check()?;
        let (offset, len) = self.resolve(range)?;
        let attempt = || format!("exporting {len} bytes at offset {offset} as a dma-buf");
        if len == 0 {
            return Err(Error::invalid(attempt(), "the range is empty"));
        }
        if !device.properties()?.dma_buf {
            let reason = format!("{device} does not support it");
            return Err(Error::new(ErrorKind::NotSupported, attempt(), reason));
        }
        raw::dma_buf(device.sys(), self.span(offset, len)?).attempt(attempt)
    }

    /// Give up this owner and hear what could not be released. Other owners of the memory keep it.
    ///
    /// # Errors
    ///
    /// Everything that failed, and what is left behind. As much as possible is released even then.
    #[doc(alias = "cuMemUnmap")]
    pub fn close(mut self) -> std::result::Result<(), CloseError> {
        self.kind
            .device
            .driver()
            .check()
            .map_err(|error| CloseError::from_list(vec![error]))?;
        match self.give_up() {
            failed if failed.is_empty() => Ok(()),
            failed => Err(CloseError::from_list(failed)),
        }
    }

    /// An empty buffer, with or without room.
    pub(crate) fn empty(kind: Kind, room: Option<Reservation>) -> Self {
        let base = room.as_ref().map_or(0, Reservation::base);
        Buffer {
            kind,
            base,
            len: 0,
            mapped: 0,
            chunks: 0,
            tail: None,
            room,
            stream: None,
            earlier: None,
        }
    }

    /// Have whoever unmaps this buffer's memory wait for `after`.
    pub(crate) fn note(&self, after: After) {
        // Not even a lock is taken in a forked child: a thread that is not there may hold it.
        if self.kind.device.driver().in_own_process()
            && let Some(reservation) = self.reservation()
        {
            reservation.note(after);
        }
    }

    /// The range of the last chunk.
    pub(crate) fn reservation(&self) -> Option<&Reservation> {
        self.tail.as_ref()?.mapping().reservation()
    }

    /// `range` as offset and length, checked against the length.
    pub(crate) fn resolve(&self, range: impl RangeBounds<usize>) -> Result<(usize, usize)> {
        resolve(range, self.len)
    }

    /// A checked range of the buffer's memory.
    pub(crate) fn span(&self, offset: usize, len: usize) -> Result<Span<'_>> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(Span::inside(self, self.base + offset as u64, len)),
            _ => Err(out_of_bounds(offset, len, self.len)),
        }
    }

    /// What the teardown of this buffer has to wait for.
    pub(crate) fn note_all(&self) {
        if let Some(stream) = &self.stream {
            return self.note(After::Stream(stream.noted()));
        }
        for device in self.kind.users.iter() {
            self.note(After::Default(device.clone()));
        }
    }

    /// Let go of everything; what fails is returned.
    fn give_up(&mut self) -> Vec<Error> {
        let (tail, room) = (self.tail.take(), self.room.take());
        if tail.is_none() && room.is_none() {
            return Vec::new();
        }
        let driver = self.kind.device.driver().clone();
        if !driver.in_own_process() {
            // Not even a lock is taken in a forked child: a thread that is not there may hold it.
            std::mem::forget((tail, room));
            return Vec::new();
        }
        self.tail = tail;
        self.note_all();
        crate::close::release(&driver, self.tail.take(), room)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        for error in self.give_up() {
            self.kind.device.driver().report(error);
        }
    }
}

/// The chunks of a buffer in address order: see [`Buffer::chunks`].
#[derive(Clone)]
pub struct Chunks<'a> {
    device: &'a Device,
    base: u64,
    index: usize,
    links: std::vec::IntoIter<&'a Link>,
}

impl<'a> Iterator for Chunks<'a> {
    type Item = Chunk<'a>;

    fn next(&mut self) -> Option<Chunk<'a>> {
        let mapping = self.links.next()?.mapping();
        let index = self.index;
        self.index += 1;
        Some(Chunk {
            index,
            offset: (mapping.address() - self.base) as usize,
            size: mapping.size(),
            address: mapping.address(),
            allocation: mapping.allocation()?,
            access: mapping.access()?.of(self.device),
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.links.size_hint()
    }
}

impl ExactSizeIterator for Chunks<'_> {}

impl fmt::Debug for Chunks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.clone()).finish()
    }
}

impl fmt::Debug for Chunk<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chunk")
            .field("index", &self.index)
            .field("offset", &self.offset)
            .field("size", &self.size)
            .field("address", &format_args!("{:#x}", self.address))
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("address", &format_args!("{:#x}", self.base))
            .field("len", &self.len)
            .field("mapped_len", &self.mapped)
            .field("capacity", &self.capacity())
            .field("chunks", &self.chunks)
            .field("device", &self.kind.device.ordinal())
            .field("location", &self.kind.location)
            .field("handle_types", &self.kind.handle_types)
            .finish_non_exhaustive()
    }
}

/// `range` as offset and length inside `len` bytes.
pub(crate) fn resolve(range: impl RangeBounds<usize>, len: usize) -> Result<(usize, usize)> {
    let start = match range.start_bound() {
        Bound::Included(&start) => Some(start),
        Bound::Excluded(&before) => before.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.checked_add(1),
        Bound::Excluded(&end) => Some(end),
        Bound::Unbounded => Some(len),
    };
    match (start, end) {
        (Some(start), Some(end)) if start <= end && end <= len => Ok((start, end - start)),
        (start, end) => {
            if let (Some(start), Some(end)) = (start, end)
                && start > end
            {
                return Err(Error::new(
                    ErrorKind::OutOfBounds,
                    format!("taking the range {start}..{end}"),
                    "the start lies behind the end",
                ));
            }
            let text = |bound: Option<usize>| bound.map_or("overflow".into(), |b| b.to_string());
            Err(Error::new(
                ErrorKind::OutOfBounds,
                format!("taking the range {}..{}", text(start), text(end)),
                format!("the length is {len} bytes"),
            ))
        }
    }
}

pub(crate) fn out_of_bounds(offset: usize, len: usize, total: usize) -> Error {
    Error::new(
        ErrorKind::OutOfBounds,
        format!("touching {len} bytes at offset {offset}"),
        format!("the length is {total} bytes"),
    )
}
