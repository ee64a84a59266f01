//! The device's address space: reservations, and the mappings inside them.

use crate::abi::{ACCESS_NONE, ACCESS_READ, ACCESS_READ_WRITE, MemLocation};
use crate::code::{Code, Result};
use crate::physical::Physical;
use crate::vm;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::Arc;

/// One allocation at one address.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub size: u64,
    pub handle: u64,
    pub physical: Arc<Physical>,
    access: Vec<(MemLocation, c_int)>,
}

/// No address of a process is as large.
const USER_SPACE_END: u64 = 1 << 47;

/// A part of physical memory, found by address.
#[derive(Debug)]
pub(crate) struct Piece {
    pub physical: Arc<Physical>,
    pub offset: u64,
    pub len: u64,
}

/// Reservations and mappings, by address.
#[derive(Debug, Default)]
pub(crate) struct Space {
    reservations: BTreeMap<u64, u64>,
    mappings: BTreeMap<u64, Mapping>,
    /// The host sees device memory too, at the strongest access that a device has.
    pub host_touch: bool,
}

impl Space {
    pub fn reserve(
        &mut self,
        size: u64,
        alignment: u64,
        hint: u64,
        granularity: u64,
    ) -> Result<u64> {
        if size == 0
            || !size.is_multiple_of(granularity)
            || (alignment != 0 && !alignment.is_power_of_two())
        {
            return Err(Code::INVALID_VALUE);
        }
        if hint >= USER_SPACE_END {
            return Err(Code::OUT_OF_MEMORY);
        }
        if !hint.is_multiple_of(granularity) {
            return Err(Code::INVALID_VALUE);
        }
        let address = vm::reserve(size, alignment.max(granularity), hint)?;
        self.reservations.insert(address, size);
        Ok(address)
    }

    pub fn free(&mut self, address: u64, size: u64) -> Result {
        if self.reservations.get(&address) != Some(&size) || self.overlaps(address, size) {
            return Err(Code::INVALID_VALUE);
        }
        self.reservations.remove(&address);
        vm::release(address, size);
        Ok(())
    }

    pub fn map(&mut self, address: u64, handle: u64, physical: Arc<Physical>) -> Result {
        let size = physical.record.size;
        let end = address.checked_add(size).ok_or(Code::INVALID_VALUE)?;
        let (start, reserved) = self.reservation_at(address).ok_or(Code::INVALID_VALUE)?;
        if end > start + reserved || self.overlaps(address, size) {
            return Err(Code::INVALID_VALUE);
        }
        vm::map(address, size, physical.file())?;
        self.mappings.insert(
            address,
            Mapping {
                size,
                handle,
                physical,
                access: Vec::new(),
            },
        );
        Ok(())
    }

    /// The mappings that were there; nothing changes unless the range cuts none of them.
    pub fn unmap(&mut self, address: u64, size: u64) -> Result<Vec<Mapping>> {
        let end = address.checked_add(size).ok_or(Code::INVALID_VALUE)?;
        if size == 0 || !self.is_reserved(address, size) {
            return Err(Code::INVALID_VALUE);
        }
        let inside: Vec<u64> = self
            .overlapping(address, end)
            .map(|(&start, _)| start)
            .collect();
        if self
            .overlapping(address, end)
            .any(|(&start, mapping)| start < address || start + mapping.size > end)
        {
            return Err(Code::INVALID_VALUE);
        }
        let mut gone = Vec::new();
        for start in inside {
            if let Some(mapping) = self.mappings.remove(&start) {
                vm::clear(start, mapping.size);
                gone.push(mapping);
            }
        }
        Ok(gone)
    }

    /// `INVALID_VALUE` unless the range is one or more whole mappings without a hole.
    pub fn set_access(
        &mut self,
        address: u64,
        size: u64,
        wanted: &[(MemLocation, c_int)],
    ) -> Result {
        let end = address.checked_add(size).ok_or(Code::INVALID_VALUE)?;
        let mut at = address;
        while at < end {
            at += self.mappings.get(&at).ok_or(Code::INVALID_VALUE)?.size;
        }
        if size == 0 || at != end {
            return Err(Code::INVALID_VALUE);
        }
        for (&start, mapping) in self.mappings.range_mut(address..end) {
            for &(location, flags) in wanted {
                mapping.access.retain(|entry| entry.0 != location);
                mapping.access.push((location, flags));
            }
            let host = mapping.host_access(self.host_touch);
            vm::protect(
                start,
                mapping.size,
                host >= ACCESS_READ,
                host >= ACCESS_READ_WRITE,
            )?;
        }
        Ok(())
    }

    pub fn access(&self, address: u64, location: MemLocation) -> Result<c_int> {
        let (_, mapping) = self.at(address).ok_or(Code::INVALID_VALUE)?;
        Ok(mapping.access_of(location))
    }

    /// The mapping that holds the address, with its start.
    pub fn at(&self, address: u64) -> Option<(u64, &Mapping)> {
        let (&start, mapping) = self.mappings.range(..=address).next_back()?;
        (address - start < mapping.size).then_some((start, mapping))
    }

    /// The reservation that holds the address.
    pub fn reservation_at(&self, address: u64) -> Option<(u64, u64)> {
        let (&start, &size) = self.reservations.range(..=address).next_back()?;
        (address - start < size).then_some((start, size))
    }

    /// Whether something of the range is reserved.
    pub fn reserves_any(&self, address: u64, end: u64) -> bool {
        let last = self.reservations.range(..end).next_back();
        last.is_some_and(|(start, size)| start + size > address)
    }

    /// The physical memory behind a range that `location` may use, mapping by mapping.
    pub fn resolve(
        &self,
        address: u64,
        len: u64,
        location: MemLocation,
        write: bool,
    ) -> Result<Vec<Piece>> {
        self.pieces(address, len, write, |mapping| mapping.access_of(location))
    }

    /// The same for a copy by the processor, for which what the processor may do itself is as good. Where
    /// it may only read, a real driver ends the process when it is to write.
    pub fn resolve_by_host(
        &self,
        address: u64,
        len: u64,
        location: MemLocation,
        write: bool,
    ) -> Result<Vec<Piece>> {
        self.pieces(address, len, write, |mapping| {
            let given = mapping.access_of(location);
            match mapping.physical.record.location.kind {
                MemLocation::DEVICE => given,
                _ => match mapping.host_access(false) {
                    ACCESS_READ if write => ACCESS_NONE,
                    by_host => given.max(by_host),
                },
            }
        })
    }

    fn pieces(
        &self,
        address: u64,
        len: u64,
        write: bool,
        access: impl Fn(&Mapping) -> c_int,
    ) -> Result<Vec<Piece>> {
        let needed = if write {
            ACCESS_READ_WRITE
        } else {
            ACCESS_READ
        };
        let end = address.checked_add(len).ok_or(Code::INVALID_VALUE)?;
        let mut pieces = Vec::new();
        let mut at = address;
        while at < end {
            let (start, mapping) = self.at(at).ok_or(Code::INVALID_VALUE)?;
            if access(mapping) < needed {
                return Err(Code::INVALID_VALUE);
            }
            let len = (start + mapping.size).min(end) - at;
            pieces.push(Piece {
                physical: mapping.physical.clone(),
                offset: at - start,
                len,
            });
            at += len;
        }
        Ok(pieces)
    }

    /// Whether there is a place in the range that is reserved and not mapped.
    pub fn has_hole(&self, address: u64, len: u64) -> bool {
        let end = address.saturating_add(len);
        let mut at = address;
        while at < end {
            match self.at(at) {
                Some((start, mapping)) => at = start + mapping.size,
                None => return self.reservation_at(at).is_some(),
            }
        }
        false
    }

    pub fn counts(&self) -> (usize, usize) {
        (self.reservations.len(), self.mappings.len())
    }

    /// The mappings that have something of the range.
    pub fn overlapping(&self, address: u64, end: u64) -> impl Iterator<Item = (&u64, &Mapping)> {
        let first = self
            .mappings
            .range(..address)
            .next_back()
            .filter(|(start, mapping)| *start + mapping.size > address);
        first.into_iter().chain(self.mappings.range(address..end))
    }

    fn overlaps(&self, address: u64, size: u64) -> bool {
        self.overlapping(address, address.saturating_add(size))
            .next()
            .is_some()
    }

    /// Whether one or several adjacent reservations cover the range.
    fn is_reserved(&self, address: u64, size: u64) -> bool {
        let Some(end) = address.checked_add(size) else {
            return false;
        };
        let mut at = address;
        while at < end {
            match self.reservation_at(at) {
                Some((start, size)) => at = start + size,
                None => return false,
            }
        }
        true
    }
}

impl Mapping {
    fn access_of(&self, location: MemLocation) -> c_int {
        self.access
            .iter()
            .find(|entry| entry.0 == location)
            .map_or(ACCESS_NONE, |entry| entry.1)
    }

    /// Host access is what host locations were given.
    fn host_access(&self, host_touch: bool) -> c_int {
        let counted = self
            .access
            .iter()
            .filter(|(location, _)| host_touch || location.kind != MemLocation::DEVICE);
        counted.map(|entry| entry.1).max().unwrap_or(ACCESS_NONE)
    }
}
