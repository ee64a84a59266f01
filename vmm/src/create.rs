//! New buffers: of fresh memory, or of given allocations.

use std::sync::Arc;

use crate::access::AccessSet;
use crate::allocation::Allocation;
use crate::allocator::Allocator;
use crate::buffer::{Buffer, Kind};
use crate::capture::Relaxed;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::location::{Access, HandleTypes, Location};
use crate::reservation::Reservation;
use crate::size;

/// How given allocations become a buffer: see [`Buffer::from_allocations`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct MapOptions {
    /// Bytes of address space to reserve, so that the buffer can be extended at its address. Less
    /// than the allocations counts as just enough.
    pub capacity: usize,
    /// The alignment of the address in bytes, a power of two; 0 is the driver's own.
    pub alignment: usize,
    /// Where the buffer would be welcome; 0 leaves it to the driver.
    pub address_hint: u64,
    /// What the device may do with the memory.
    pub access: Access,
    /// What other devices may do with it.
    pub peers: Vec<(Device, Access)>,
}

impl MapOptions {
    /// Room for just the allocations, anywhere, with this access for the device.
    pub fn new(access: Access) -> Self {
        MapOptions {
            access,
            ..MapOptions::default()
        }
    }

    /// With this many bytes of address space reserved.
    #[must_use]
    pub fn capacity(mut self, bytes: usize) -> Self {
        self.capacity = bytes;
        self
    }

    /// With this access for another device.
    #[must_use]
    pub fn peer(mut self, device: &Device, access: Access) -> Self {
        self.peers.retain(|(other, _)| other != device);
        self.peers.push((device.clone(), access));
        self
    }
}

impl Allocator {
    /// A buffer of `len` bytes, mapped in whole chunks. Zero bytes make no driver call.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`], [`ErrorKind::OutOfAddressSpace`], [`ErrorKind::InvalidArgument`]
    /// for a length that overflows when rounded up, [`ErrorKind::NotPermitted`] for fabric handles
    /// without an IMEX channel. Nothing is left behind.
    ///
    /// [`ErrorKind::OutOfMemory`]: crate::ErrorKind::OutOfMemory
    /// [`ErrorKind::OutOfAddressSpace`]: crate::ErrorKind::OutOfAddressSpace
    /// [`ErrorKind::InvalidArgument`]: crate::ErrorKind::InvalidArgument
    /// [`ErrorKind::NotPermitted`]: crate::ErrorKind::NotPermitted
    #[doc(alias = "cuMemCreate")]
    #[doc(alias = "cuMemAlloc")]
    pub fn allocate(&self, len: usize) -> Result<Buffer> {
        self.allocate_with_capacity(len, len)
    }

    /// A buffer of `len` bytes that grows at the same address up to `capacity` bytes. Capacity is
    /// address space only: it costs no memory. Less than `len` counts as just `len`.
    ///
    /// # Errors
    ///
    /// As [`Allocator::allocate`].
    #[doc(alias = "cuMemAddressReserve")]
    pub fn allocate_with_capacity(&self, len: usize, capacity: usize) -> Result<Buffer> {
        let capacity = capacity.max(len);
        let device = self.device();
        device.driver().check()?;
        let attempt =
            || format!("allocating {len} bytes with a capacity of {capacity} bytes on {device}");
        let bytes = self.round_up(len, attempt)?;
        let capacity = self.round_up(capacity, attempt)?;
        let kind = Kind {
            device: device.clone(),
            location: self.location(),
            handle_types: self.handle_types(),
            granularity: self.granularity(),
            alignment: self.alignment(),
            is_plain: true,
            access: self.access().clone(),
            users: Arc::from([]),
            allocator: Some(self.clone()),
        };
        if capacity == 0 {
            return Ok(Buffer::empty(kind, None));
        }
        let driver = device.driver();
        let _relaxed = Relaxed::enter(driver);
        let room = Reservation::new(driver, capacity, self.alignment(), self.hint())?;
        let empty = Buffer::empty(kind, Some(room));
        if bytes == 0 {
            return Ok(empty);
        }
        let chunks = self.chunks(bytes, bytes)?;
        empty.append(chunks, self.access(), len)
    }
}

impl Buffer {
    /// Map given allocations one after the other as one buffer of `len` bytes: what an importer
    /// does with the memory it was given.
    ///
    /// `device` reads and writes as `options` say. The allocations may lie on other devices that it
    /// can reach. `len` is at most the sum of the allocations.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for a length that the
    /// allocations do not cover, or an imported allocation whose stated size is wrong; those of the
    /// driver calls. Nothing is left behind.
    #[doc(alias = "cuMemMap")]
    pub fn from_allocations(
        device: &Device,
        allocations: Vec<Allocation>,
        len: usize,
        options: &MapOptions,
    ) -> Result<Self> {
        let driver = device.driver();
        driver.check()?;
        let count = allocations.len();
        let attempt = || format!("mapping {count} allocations as a buffer of {len} bytes");
        let location = allocations
            .first()
            .map_or(Location::Device, Allocation::location);
        let granularity = location_granularity(device, location)?;
        let total = size::total(allocations.iter().map(Allocation::size), attempt)?;
        if options.alignment != 0 && !options.alignment.is_power_of_two() {
            return Err(Error::invalid(attempt(), "an alignment is a power of two"));
        }
        for (peer, _) in &options.peers {
            driver.check_same(peer.driver(), attempt)?;
        }
        if options.peers.iter().any(|(peer, _)| peer == device) {
            let reason = "the device is not its own peer: `access` is for the device itself";
            return Err(Error::invalid(attempt(), reason));
        }
        if !(options.address_hint as usize).is_multiple_of(granularity) {
            let reason = format!("the address hint is not a multiple of {granularity} bytes");
            return Err(Error::invalid(attempt(), reason));
        }
        let capacity = size::round_up(options.capacity.max(total), granularity, attempt)?;
        let access = AccessSet::new(device, location, options.access, &options.peers);
        let kind = Kind {
            device: device.clone(),
            location,
            handle_types: HandleTypes::POSIX_FD | HandleTypes::FABRIC,
            granularity,
            alignment: options.alignment.max(granularity),
            is_plain: true,
            access: access.clone(),
            users: Arc::from([]),
            allocator: None,
        };
        if capacity == 0 {
            return Buffer::empty(kind, None).append(allocations, &access, len);
        }
        let _relaxed = Relaxed::enter(driver);
        let room = Reservation::new(driver, capacity, kind.alignment, options.address_hint)?;
        Buffer::empty(kind, Some(room)).append(allocations, &access, len)
    }
}

/// The granularity of memory that was allocated elsewhere.
fn location_granularity(device: &Device, location: Location) -> Result<usize> {
    let prop = vmm_sys::CUmemAllocationProp {
        type_: vmm_sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        location: location.to_raw(device.handle()),
        ..Default::default()
    };
    device.granularity_of(&prop, false)
}
