//! Virtual memory management: the calls of `cuMem*` that need no context.

use super::{In, Out, api};
use crate::abi::{
    ACCESS_READ_WRITE, ALLOCATION_PINNED, AllocFlags, DevicePtr, HANDLE_FABRIC, HANDLE_POSIX_FD,
    HANDLE_WIN32, HANDLE_WIN32_KMT, MemAccessDesc, MemAllocationProp, MemLocation,
};
use crate::code::{Code, Result};
use crate::config::Fabric;
use crate::core::Core;
use crate::device::{self, Device};
use crate::record::Record;
use crate::{fabric, memory};
use rustix::fd::BorrowedFd;
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

const SUPPORTS_VMM: c_int = 102;
const SUPPORTS_POSIX_FD: c_int = 103;
const SUPPORTS_FABRIC: c_int = 128;

api! {
    fn cuMemGetAllocationGranularity as "cuMemGetAllocationGranularity"(
        granularity: Out<usize>, prop: In<MemAllocationProp>, option: c_uint
    ) |core| {
        granularity.check()?;
        // The real driver looks at the kind alone: it answers for places that do not exist.
        if prop.get()?.kind != ALLOCATION_PINNED || option > 1 {
            return Err(Code::INVALID_VALUE);
        }
        granularity.set(usize::try_from(core.config.granularity).unwrap_or(usize::MAX))
    }

    fn cuMemCreate as "cuMemCreate"(handle: Out<u64>, size: usize, prop: In<MemAllocationProp>, flags: c_ulonglong) |mut core| {
        handle.check()?;
        let prop = prop.get()?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        handle.set(core.create_memory(size as u64, &prop)?)
    }

    fn cuMemRelease as "cuMemRelease"(handle: u64) |mut core| {
        let released = core.memory.release(handle);
        core.misuse.bad_release += u64::from(released.is_err());
        released
    }

    fn cuMemGetAllocationPropertiesFromHandle as "cuMemGetAllocationPropertiesFromHandle"(
        prop: Out<MemAllocationProp>, handle: u64
    ) |core| {
        prop.check()?;
        let handle = core.memory.get(handle)?;
        let record = handle.physical.record;
        prop.set(MemAllocationProp {
            kind: ALLOCATION_PINNED,
            handle_types: if handle.imported { 0 } else { record.handle_types },
            location: told_location(core.location_here(&handle.physical.record)?),
            win32_meta: std::ptr::null_mut(),
            flags: record.flags,
        })
    }

    fn cuMemAddressReserve as "cuMemAddressReserve"(
        address: Out<DevicePtr>, size: usize, alignment: usize, hint: DevicePtr, flags: c_ulonglong
    ) |mut core| {
        address.check()?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let granularity = core.config.granularity;
        address.set(core.space.reserve(size as u64, alignment as u64, hint, granularity)?)
    }

    fn cuMemAddressFree as "cuMemAddressFree"(address: DevicePtr, size: usize) |mut core| {
        let freed = core.space.free(address, size as u64);
        core.misuse.bad_free += u64::from(freed.is_err());
        freed
    }

    fn cuMemMap as "cuMemMap"(address: DevicePtr, size: usize, offset: usize, handle: u64, flags: c_ulonglong) |mut core| {
        if flags != 0 || size == 0 || address == 0 || !address.is_multiple_of(core.config.granularity) {
            return Err(Code::INVALID_VALUE);
        }
        let physical = core.memory.get(handle)?.physical.clone();
        if offset != 0 || size as u64 != physical.record.size {
            return Err(Code::NOT_SUPPORTED);
        }
        core.space.map(address, handle, physical)?;
        core.memory.mapped(handle);
        Ok(())
    }

    fn cuMemUnmap as "cuMemUnmap"(address: DevicePtr, size: usize) |mut core| {
        if core.linear.has_any(address, address.saturating_add(size as u64)) {
            return Err(Code::INVALID_VALUE);
        }
        let used = core.streams.queued().filter(|work| work.touches(address, size as u64)).count() as u64;
        let gone = core.space.unmap(address, size as u64)?;
        if !gone.is_empty() {
            core.misuse.unmap_under_work += used;
        }
        for mapping in gone {
            core.memory.unmapped(mapping.handle);
        }
        Ok(())
    }

    fn cuMemSetAccess as "cuMemSetAccess"(address: DevicePtr, size: usize, wanted: In<MemAccessDesc>, count: usize) |mut core| {
        if count == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let mut access = Vec::new();
        for index in 0..count {
            let desc = wanted.at(index)?;
            let range = (address, size as u64);
            let location = core.access_location(desc.location, range, desc.flags != 0)?;
            access.push((location, access_flags(desc.flags)?));
        }
        let end = address.saturating_add(size as u64);
        if core.linear.has_any(address, end) {
            return Err(Code::INVALID_VALUE);
        }
        core.space.set_access(address, size as u64, &access)
    }

    fn cuMemGetAccess as "cuMemGetAccess"(flags: Out<c_ulonglong>, location: In<MemLocation>, address: DevicePtr) |core| {
        flags.check()?;
        let mut location = location.get()?;
        // Memory that was not mapped is given to nobody.
        if core.pinned_at(address).is_some() {
            return flags.set(0);
        }
        let (start, _) = core.space.at(address).ok_or(Code::INVALID_VALUE)?;
        if core.linear.holds(start) {
            return flags.set(0);
        }
        match location.kind {
            MemLocation::DEVICE => drop(core.device(location.id)?),
            // What the real driver says of the host is what the first device may do.
            MemLocation::HOST => location = MemLocation { kind: MemLocation::DEVICE, id: 0 },
            MemLocation::HOST_NUMA => {}
            _ => return Err(Code::INVALID_DEVICE),
        }
        flags.set(core.space.access(address, location)?.unsigned_abs().into())
    }

    fn cuMemExportToShareableHandle as "cuMemExportToShareableHandle"(
        to: Out<c_int>, handle: u64, kind: c_int, flags: c_ulonglong
    ) |mut core| {
        to.check()?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        match kind {
            HANDLE_POSIX_FD => to.set(memory::into_c(core.memory.export(handle)?)),
            HANDLE_FABRIC => to.cast().set(fabric::export(core.memory.exportable_fabric(handle)?)?),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    fn cuMemImportFromShareableHandle as "cuMemImportFromShareableHandle"(handle: Out<u64>, from: In<c_void>, kind: c_int) |mut core| {
        handle.check()?;
        match kind {
            HANDLE_POSIX_FD => {
                let number = c_int::try_from(from.address().cast_signed()).map_err(|_| Code::UNKNOWN)?;
                if number < 0 {
                    return Err(Code::UNKNOWN);
                }
                // SAFETY: not -1, and the caller of the C function vouches that it is open. Where it is
                // not, only system calls are made with the number, which say so.
                let fd = unsafe { BorrowedFd::borrow_raw(number) };
                handle.set(core.import_memory(fd)?)
            }
            HANDLE_FABRIC => {
                if core.config.fabric != Fabric::Available {
                    return Err(Code::NOT_PERMITTED);
                }
                let fd = fabric::import(&from.cast().get()?)?;
                handle.set(core.import_memory(rustix::fd::AsFd::as_fd(&fd))?)
            }
            HANDLE_WIN32 | HANDLE_WIN32_KMT => Err(Code::NOT_SUPPORTED),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    fn cuMemRetainAllocationHandle as "cuMemRetainAllocationHandle"(handle: Out<u64>, address: DevicePtr) |mut core| {
        handle.check()?;
        let (start, mapping) = core.space.at(address).ok_or(Code::INVALID_VALUE)?;
        let found = mapping.handle;
        if core.linear.holds(start) {
            return Err(Code::INVALID_VALUE);
        }
        core.memory.retain(found)?;
        handle.set(found)
    }

    fn cuMemGetHandleForAddressRange as "cuMemGetHandleForAddressRange"(
        to: Out<c_int>, address: DevicePtr, size: usize, _kind: c_int, _flags: c_ulonglong
    ) |core| {
        to.check()?;
        if size == 0 || core.space.at(address).is_none() {
            return Err(Code::INVALID_VALUE);
        }
        // There is no dma-buf behind a memory file.
        Err(Code::NOT_SUPPORTED)
    }
}

impl Core {
    pub fn create_memory(&mut self, size: u64, prop: &MemAllocationProp) -> Result<u64> {
        let location = self.check_prop(prop)?;
        if size == 0 || !size.is_multiple_of(self.config.granularity) {
            return Err(Code::INVALID_VALUE);
        }
        if prop.handle_types & HANDLE_FABRIC != 0 {
            match self.config.fabric {
                Fabric::Available => {}
                Fabric::Unavailable => return Err(Code::NOT_SUPPORTED),
                Fabric::NotPermitted => return Err(Code::NOT_PERMITTED),
            }
        }
        let uuid = if location.kind == MemLocation::DEVICE {
            let config = &self.device(location.id)?.config;
            let (uuid, memory) = (config.uuid, config.memory);
            if !self.memory.has_room(uuid, size, memory) {
                return Err(Code::OUT_OF_MEMORY);
            }
            uuid
        } else if size > self.host_memory {
            return Err(Code::OUT_OF_MEMORY);
        } else {
            [0; 16]
        };
        self.memory.create(
            size,
            uuid,
            location,
            prop.handle_types,
            granted(prop.flags)?,
        )
    }

    fn import_memory(&mut self, fd: BorrowedFd<'_>) -> Result<u64> {
        let (_, record) = crate::physical::Physical::inspect(fd)?;
        let location = self.location_here(&record)?;
        if location.kind == MemLocation::DEVICE {
            self.check_attributes(self.device(location.id)?, record.handle_types)?;
        }
        self.memory.import(fd)
    }

    /// The place of memory in this process, where its device may have another ordinal or none.
    fn location_here(&self, record: &crate::record::Record) -> Result<MemLocation> {
        if record.location.kind != MemLocation::DEVICE {
            return Ok(record.location);
        }
        let ordinal = self.ordinal_of(record.uuid).ok_or(Code::INVALID_DEVICE)?;
        Ok(MemLocation {
            kind: MemLocation::DEVICE,
            id: c_int::try_from(ordinal).unwrap_or(-1),
        })
    }

    /// Where the memory is to lie, once everything about it is found allowed.
    fn check_prop(&self, prop: &MemAllocationProp) -> Result<MemLocation> {
        if prop.kind != ALLOCATION_PINNED
            || prop.handle_types & !(HANDLE_POSIX_FD | HANDLE_FABRIC) != 0
        {
            return Err(Code::INVALID_VALUE);
        }
        match prop.location.kind {
            MemLocation::DEVICE => {
                self.check_attributes(self.device(prop.location.id)?, prop.handle_types)?;
                Ok(prop.location)
            }
            MemLocation::HOST if prop.handle_types != 0 => Err(Code::INVALID_VALUE),
            MemLocation::HOST => Ok(MemLocation {
                kind: MemLocation::HOST,
                id: 0,
            }),
            MemLocation::HOST_NUMA if prop.location.id == 0 => Ok(prop.location),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// Whether a device has what its attributes say.
    fn check_attributes(&self, device: &Device, handle_types: c_int) -> Result {
        let says = |number| device::attribute(device, &self.config, number).unwrap_or(0) != 0;
        let has = says(SUPPORTS_VMM)
            && (handle_types & HANDLE_POSIX_FD == 0 || says(SUPPORTS_POSIX_FD))
            && (handle_types & HANDLE_FABRIC == 0 || says(SUPPORTS_FABRIC));
        match has {
            true => Ok(()),
            false => Err(Code::NOT_SUPPORTED),
        }
    }

    /// Who is to have access, or none, where all memory of the range lets it.
    fn access_location(
        &self,
        location: MemLocation,
        (address, size): (DevicePtr, u64),
        some: bool,
    ) -> Result<MemLocation> {
        let mut owners = self
            .space
            .overlapping(address, address.saturating_add(size))
            .map(|(_, mapping)| mapping.physical.record)
            .filter(|record| record.location.kind == MemLocation::DEVICE);
        match location.kind {
            MemLocation::DEVICE => {
                self.device(location.id).map_err(|_| Code::INVALID_VALUE)?;
                let here = usize::try_from(location.id).unwrap_or(usize::MAX);
                let reaches = |record: Record| {
                    self.may_access(here, self.ordinal_of(record.uuid).unwrap_or(here))
                };
                match owners.all(reaches) {
                    true => Ok(location),
                    false => Err(Code::INVALID_DEVICE),
                }
            }
            // The host has none, so none can be given to it.
            MemLocation::HOST | MemLocation::HOST_NUMA if some && owners.next().is_some() => {
                Err(Code::NOT_SUPPORTED)
            }
            MemLocation::HOST => Ok(MemLocation {
                kind: MemLocation::HOST,
                id: 0,
            }),
            MemLocation::HOST_NUMA => Ok(location),
            _ => Err(Code::INVALID_VALUE),
        }
    }
}

/// What the driver says of a place: memory of the host at large is on a node all the same.
fn told_location(location: MemLocation) -> MemLocation {
    match location.kind {
        MemLocation::HOST => MemLocation {
            kind: MemLocation::HOST_NUMA,
            id: 0,
        },
        _ => location,
    }
}

/// The flags as they are read back; those that mean nothing are dropped.
fn granted(flags: AllocFlags) -> Result<AllocFlags> {
    const TILE_POOL: u16 = 1;
    if flags.compression > 1 || flags.usage & TILE_POOL != 0 || flags.reserved != [0; 4] {
        return Err(Code::INVALID_VALUE);
    }
    Ok(AllocFlags { usage: 0, ..flags })
}

fn access_flags(flags: c_int) -> Result<c_int> {
    match flags {
        0 | 1 | ACCESS_READ_WRITE => Ok(flags),
        _ => Err(Code::INVALID_VALUE),
    }
}
