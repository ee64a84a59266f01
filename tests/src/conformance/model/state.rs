//! The plain model: what there is, what lies where, and who may do what with it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::OwnedFd;

use vmm_sys::*;

use super::ops::Place;
use super::{INVALID, OK, PAGE};

/// Who uses memory: a device by its ordinal, or the processor.
pub type User = usize;
pub const DEVICES: usize = 2;
pub const HOST: User = DEVICES;
pub const READ: u32 = 1;
pub const WRITE: u32 = 3;

/// Whether a device may use memory of another one: the first may, the second may not.
pub const fn reaches(from: User, to: User) -> bool {
    from == to || from == 0
}

/// Addresses and lengths are in bytes; what memory holds is one byte for each unit.
pub struct Model {
    /// Bytes in a granule, and in a unit.
    pub page: u64,
    pub unit: u64,
    pub real: bool,
    /// Whether access can be given across a hole between mappings: a real driver does not mind it.
    pub holes: bool,
    pub memories: Vec<Memory>,
    /// Every handle that there ever was.
    pub handles: Vec<Handle>,
    /// Exported descriptors, with the memory behind each.
    pub exports: Vec<(OwnedFd, usize)>,
    /// Every address that a reservation ever had, with its pages and whether it still is one.
    pub reservations: Vec<(u64, u64, bool)>,
    /// Mapped pages.
    pub pages: BTreeMap<u64, Page>,
}

pub struct Memory {
    /// The device that it lies on, or the host.
    pub at: User,
    pub shareable: bool,
    pub bytes: Vec<u8>,
}

pub struct Handle {
    pub value: u64,
    pub memory: usize,
    pub imported: bool,
    /// How many releases it takes.
    pub references: u64,
}

#[derive(Clone, Copy)]
pub struct Page {
    /// The handle that it was mapped by.
    pub handle: usize,
    /// Which page of the memory it is.
    pub index: u64,
    /// What each user may do.
    pub access: [u32; DEVICES + 1],
}

/// Units of one mapping that follow each other.
#[derive(Debug)]
pub struct Run {
    pub memory: usize,
    pub units: Range<usize>,
}

impl Model {
    pub fn new(page: u64, real: bool, holes: bool) -> Self {
        Model {
            page,
            unit: page / PAGE,
            real,
            holes,
            memories: Vec::new(),
            handles: Vec::new(),
            exports: Vec::new(),
            reservations: Vec::new(),
            pages: BTreeMap::new(),
        }
    }

    /// Pages that a device is charged with: what a handle, a mapping or a descriptor keeps.
    pub fn used(&self, device: User) -> u64 {
        (0..self.memories.len())
            .filter(|&memory| self.memories[memory].at == device && self.is_alive(memory))
            .map(|memory| self.size(memory))
            .sum()
    }

    fn is_alive(&self, memory: usize) -> bool {
        let handles = self.handles.iter();
        let mapped = self.pages.values().map(|page| &self.handles[page.handle]);
        let exported = self.exports.iter().map(|export| export.1);
        handles
            .filter(|handle| handle.references > 0)
            .chain(mapped)
            .map(|handle| handle.memory)
            .chain(exported)
            .any(|alive| alive == memory)
    }

    /// Pages of a piece of memory.
    pub fn size(&self, memory: usize) -> u64 {
        self.memories[memory].bytes.len() as u64 / PAGE
    }

    /// The reservation that holds a page, as its first page address and its end.
    pub fn reservation(&self, address: u64) -> Option<(u64, u64)> {
        let alive = self.reservations.iter().filter(|reservation| reservation.2);
        alive
            .map(|&(start, pages, _)| (start, start + pages * self.page))
            .find(|(start, end)| (*start..*end).contains(&address))
    }

    /// A place for an operation on what is mapped.
    pub fn address(&self, place: Place) -> Option<u64> {
        match place.aimed {
            true => aim(place, self.pages.keys().copied()),
            false => self.anywhere(place),
        }
    }

    /// A place for a user of bytes.
    pub fn address_for(&self, user: User, place: Place, needed: u32) -> Option<u64> {
        let allowed = |(&at, page): (&u64, &Page)| (page.access[user] >= needed).then_some(at);
        match place.aimed {
            true => aim(place, self.pages.iter().filter_map(allowed)),
            false => self.anywhere(place),
        }
    }

    /// A place for as many pages of which none is mapped.
    pub fn free_address(&self, place: Place, pages: u64) -> Option<u64> {
        if !place.aimed {
            return self.anywhere(place);
        }
        let alive = self.reservations.iter().filter(|reservation| reservation.2);
        let starts = alive.flat_map(|&(start, reserved, _)| {
            self.all(start, (reserved + 1).saturating_sub(pages))
        });
        let free = |&at: &u64| !self.is_mapped(at, pages);
        aim(place, starts.filter(free))
    }

    fn anywhere(&self, place: Place) -> Option<u64> {
        let (start, _, alive) = *self
            .reservations
            .get(place.reservation % self.reservations.len().max(1))?;
        // What is free may be the driver's own by now.
        if self.real && !alive {
            return None;
        }
        Some(start + place.page * self.page)
    }

    /// Whether a page of the range is.
    pub fn is_mapped(&self, address: u64, pages: u64) -> bool {
        let range = address..address + pages * self.page;
        self.pages.range(range).next().is_some()
    }

    /// The first page and the pages of the mapping at an address, one page where there is none.
    pub fn mapping(&self, address: u64) -> (u64, u64) {
        self.pages.get(&address).map_or((address, 1), |page| {
            let start = address - page.index * self.page;
            (start, self.size(self.memory(page)))
        })
    }

    /// As many pages at a place, or the mapping there; `None` where the operation is left out.
    pub fn range(&self, place: Place, pages: Option<u64>) -> Option<(u64, u64)> {
        let address = self.address(place)?;
        let (address, pages) = match pages {
            Some(pages) => (address, pages),
            None => self.mapping(address),
        };
        (!self.leaves_out(address, pages * self.page)).then_some((address, pages))
    }

    /// The memory behind a mapped page.
    pub fn memory(&self, page: &Page) -> usize {
        self.handles[page.handle].memory
    }

    /// Whether the range begins and ends where mappings do, or in nothing.
    pub fn cuts_none(&self, address: u64, pages: u64) -> bool {
        let starts = self.pages.get(&address).is_none_or(|page| page.index == 0);
        let ends = self
            .pages
            .get(&(address + (pages - 1) * self.page))
            .is_none_or(|page| page.index + 1 == self.size(self.memory(page)));
        starts && ends
    }

    /// Whether an operation on these bytes is left out: on a real driver what lies outside of the
    /// reservations may be the driver's own, and unmapping it is no error.
    pub fn leaves_out(&self, address: u64, len: u64) -> bool {
        let first = address - address % self.page;
        let pages = (address + len - first).div_ceil(self.page);
        self.real
            && self
                .all(first, pages)
                .any(|page| self.reservation(page).is_none())
    }

    /// What giving a user access to pages answers; `None` where it is left out, since nothing says
    /// which of several reasons to refuse the real driver looks at first.
    pub fn access_answer(
        &self,
        address: u64,
        pages: u64,
        user: User,
        flags: u32,
    ) -> Option<CUresult> {
        let fine = pages > 0
            && flags != 2
            && self.covers(address, pages)
            && self.cuts_none(address, pages);
        let mut owners = self
            .all(address, pages)
            .filter_map(|page| self.pages.get(&page))
            .map(|page| self.memories[self.memory(page)].at)
            .filter(|&at| at != HOST);
        let refused = match user {
            // What the host has none of can be taken from it.
            HOST if flags == 0 => None,
            HOST => owners.next().map(|_| CUresult::CUDA_ERROR_NOT_SUPPORTED),
            device => owners
                .find(|&owner| !reaches(device, owner))
                .map(|_| CUresult::CUDA_ERROR_INVALID_DEVICE),
        };
        let holed = self
            .all(address, pages)
            .any(|at| !self.pages.contains_key(&at));
        match refused {
            // What a real driver does with what lies behind a hole is not said by its answer.
            _ if self.holes && fine && holed => None,
            Some(_) if self.real && !fine => None,
            // Of no pages inside a mapping, the emulator looks at the mapping.
            None if pages == 0 && user != 0 => None,
            Some(refused) => Some(refused),
            None => Some(if fine { OK } else { INVALID }),
        }
    }

    /// Whether access can be given to the range.
    fn covers(&self, address: u64, pages: u64) -> bool {
        let mapped = |at: u64| self.pages.contains_key(&at);
        match self.holes {
            true => mapped(address) && mapped(address + (pages - 1) * self.page),
            false => self.all(address, pages).all(mapped),
        }
    }

    pub fn all(&self, address: u64, pages: u64) -> impl Iterator<Item = u64> + use<> {
        let size = self.page;
        (0..pages).map(move |page| address + page * size)
    }

    /// Whether some of the range is memory of the host.
    pub fn touches_host(&self, address: u64, len: u64) -> bool {
        let first = address - address % self.page;
        let pages = (address + len - first).div_ceil(self.page);
        self.all(first, pages)
            .filter_map(|page| self.pages.get(&page))
            .any(|page| self.memories[self.memory(page)].at == HOST)
    }

    /// What a copy from or to the program's own memory finds. The processor does it where memory of the
    /// host is meant: what it may use itself is as good, but where it may only read it cannot write.
    pub fn runs_by_host(
        &self,
        user: User,
        address: u64,
        units: u64,
        needed: u32,
    ) -> Option<Vec<Run>> {
        self.runs_if(address, units, |page| {
            let (given, by_host) = (page.access[user], page.access[HOST]);
            match self.memories[self.memory(page)].at {
                HOST if needed == WRITE && by_host == READ => false,
                HOST => given.max(by_host) >= needed,
                _ => given >= needed,
            }
        })
    }

    /// What lies behind as many units at an address, mapping by mapping, where the access of all
    /// of it allows it.
    pub fn runs(&self, user: User, address: u64, units: u64, needed: u32) -> Option<Vec<Run>> {
        self.runs_if(address, units, |page| page.access[user] >= needed)
    }

    fn runs_if(
        &self,
        address: u64,
        units: u64,
        allowed: impl Fn(&Page) -> bool,
    ) -> Option<Vec<Run>> {
        let end = address + units * self.unit;
        let mut runs: Vec<Run> = Vec::new();
        let mut at = address;
        while at < end {
            let within = at % self.page;
            let page = self.pages.get(&(at - within))?;
            if !allowed(page) {
                return None;
            }
            let len = (self.page - within).min(end - at);
            let first = (page.index * self.page + within) / self.unit;
            let units = first as usize..(first + len / self.unit) as usize;
            match runs.last_mut() {
                Some(last) if page.index > 0 => last.units.end = units.end,
                _ => runs.push(Run {
                    memory: self.memory(page),
                    units,
                }),
            }
            at += len;
        }
        Some(runs)
    }

    pub fn is_host(&self, run: &Run) -> bool {
        self.memories[run.memory].at == HOST
    }

    /// What the runs hold, one after another.
    pub fn bytes(&self, runs: &[Run]) -> Vec<u8> {
        let parts: Vec<&[u8]> = runs
            .iter()
            .map(|run| &self.memories[run.memory].bytes[run.units.clone()])
            .collect();
        parts.concat()
    }

    pub fn set(&mut self, runs: &[Run], mut bytes: &[u8]) {
        for run in runs {
            let (now, later) = bytes.split_at(run.units.len());
            self.memories[run.memory].bytes[run.units.clone()].copy_from_slice(now);
            bytes = later;
        }
    }
}

fn aim(place: Place, among: impl Iterator<Item = u64>) -> Option<u64> {
    let among: Vec<u64> = among.collect();
    let number = place.reservation * 7 + place.page as usize;
    among.get(number % among.len().max(1)).copied()
}
