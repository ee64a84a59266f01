//! Handles: create, import, export, retain, release, and what memory is charged for.

use crate::abi::{AllocFlags, HANDLE_FABRIC, HANDLE_POSIX_FD, MemLocation};
use crate::code::{Code, Result};
use crate::fd;
use crate::physical::{FILE_NAME, Physical};
use crate::record::Record;
use rustix::fd::{BorrowedFd, IntoRawFd, OwnedFd};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

const FIRST_HANDLE: u64 = 0x4000_0000_0000;
const HANDLE_STEP: u64 = 0x10;

/// What a handle value names.
#[derive(Debug)]
pub(crate) struct Handle {
    pub physical: Arc<Physical>,
    pub imported: bool,
    /// How many releases it still takes.
    pub references: usize,
    /// How many mappings were made from it: they keep the value alive for `cuMemRetainAllocationHandle`.
    mappings: usize,
}

/// Physical memory that handles of the process name.
#[derive(Debug)]
struct Named {
    physical: Arc<Physical>,
    handles: usize,
    /// Whether a descriptor of it was seen, which may outlive the handles.
    exported: bool,
}

/// Every handle of the process.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    handles: BTreeMap<u64, Handle>,
    made: u64,
    /// By inode, as `lingering`.
    named: HashMap<u64, Named>,
    /// Memory whose last user here is gone but whose exported fd may live on.
    lingering: HashMap<u64, Record>,
    /// Bytes of both, by the UUID of their device.
    charged: HashMap<[u8; 16], u64>,
    /// Descriptors of memory that the program had when they could last be counted.
    counted_fds: usize,
}

impl Memory {
    pub fn create(
        &mut self,
        size: u64,
        uuid: [u8; 16],
        location: MemLocation,
        handle_types: i32,
        flags: AllocFlags,
    ) -> Result<u64> {
        let mut id = [0; 16];
        rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty())
            .map_err(|_| Code::OPERATING_SYSTEM)?;
        let physical = Physical::create(Record {
            size,
            uuid,
            location,
            handle_types,
            flags,
            id,
        })?;
        Ok(self.insert(Arc::new(physical), false))
    }

    /// A new handle value each time; the fd stays the caller's.
    pub fn import(&mut self, fd: BorrowedFd<'_>) -> Result<u64> {
        let (inode, _) = Physical::inspect(fd)?;
        let physical = match self.named.get(&inode) {
            Some(known) => known.physical.clone(),
            None => Arc::new(Physical::import(fd)?),
        };
        let handle = self.insert(physical, true);
        // What came by a descriptor is charged for as long as one is open, also after the release.
        self.seen_exported(inode);
        Ok(handle)
    }

    pub fn export(&mut self, handle: u64) -> Result<OwnedFd> {
        let (inode, fd) = {
            let physical = &self.exportable(handle, HANDLE_POSIX_FD)?.physical;
            (physical.inode, physical.export()?)
        };
        self.seen_exported(inode);
        Ok(fd)
    }

    pub fn exportable_fabric(&self, handle: u64) -> Result<&Arc<Physical>> {
        Ok(&self.exportable(handle, HANDLE_FABRIC)?.physical)
    }

    pub fn get(&self, handle: u64) -> Result<&Handle> {
        self.handles
            .get(&handle)
            .filter(|handle| handle.references > 0)
            .ok_or(Code::INVALID_VALUE)
    }

    /// One more release to come; also for a value that only mappings keep.
    pub fn retain(&mut self, handle: u64) -> Result {
        self.handles
            .get_mut(&handle)
            .ok_or(Code::INVALID_VALUE)?
            .references += 1;
        Ok(())
    }

    pub fn release(&mut self, handle: u64) -> Result {
        let entry = self
            .handles
            .get_mut(&handle)
            .filter(|entry| entry.references > 0)
            .ok_or(Code::INVALID_VALUE)?;
        entry.references -= 1;
        self.forget_if_unused(handle);
        Ok(())
    }

    pub fn mapped(&mut self, handle: u64) {
        if let Some(entry) = self.handles.get_mut(&handle) {
            entry.mappings += 1;
        }
    }

    pub fn unmapped(&mut self, handle: u64) {
        if let Some(entry) = self.handles.get_mut(&handle) {
            entry.mappings = entry.mappings.saturating_sub(1);
            self.forget_if_unused(handle);
        }
    }

    /// Bytes charged to a device: everything a handle, a mapping or an exported fd keeps.
    pub fn used(&mut self, uuid: [u8; 16]) -> u64 {
        self.sweep();
        self.charged_to(uuid)
    }

    /// Whether a device with this many bytes has room for so many more. What lingers is looked
    /// through only where it matters.
    pub fn has_room(&mut self, uuid: [u8; 16], size: u64, total: u64) -> bool {
        let fits = |used: u64| used.saturating_add(size) <= total;
        fits(self.charged_to(uuid)) || fits(self.used(uuid))
    }

    /// Handle values alive and the releases they still take.
    pub fn counts(&self) -> (usize, usize) {
        let alive = self.handles.values().filter(|handle| handle.references > 0);
        alive.fold((0, 0), |(handles, references), handle| {
            (handles + 1, references + handle.references)
        })
    }

    /// Distinct physical memory that this process keeps, in pieces and bytes.
    pub fn physical(&mut self) -> (usize, u64) {
        self.sweep();
        let named = self.named.values().map(|named| named.physical.record.size);
        let lingering = self.lingering.values().map(|record| record.size);
        let count = self.named.len() + self.lingering.len();
        (count, named.chain(lingering).sum())
    }

    /// Descriptors of this process that refer to emulated memory, other than our own.
    pub fn exported_fds(&mut self) -> usize {
        if let Some(open) = memory_fds() {
            self.counted_fds = open.len().saturating_sub(self.named.len());
        }
        self.counted_fds
    }

    fn insert(&mut self, physical: Arc<Physical>, imported: bool) -> u64 {
        self.made += 1;
        let handle = FIRST_HANDLE + self.made * HANDLE_STEP;
        let lingered = match self.lingering.remove(&physical.inode) {
            // The kernel gives numbers of files that are gone to others.
            Some(other) if other.id != physical.record.id => {
                charge(&mut self.charged, &other, false);
                false
            }
            found => found.is_some(),
        };
        let new = Named {
            physical: physical.clone(),
            handles: 0,
            exported: lingered,
        };
        let named = self.named.entry(physical.inode).or_insert(new);
        if named.handles == 0 && !lingered {
            charge(&mut self.charged, &physical.record, true);
        }
        named.handles += 1;
        self.handles.insert(
            handle,
            Handle {
                physical,
                imported,
                references: 1,
                mappings: 0,
            },
        );
        handle
    }

    fn exportable(&self, handle: u64, wanted: i32) -> Result<&Handle> {
        let handle = self.get(handle)?;
        if handle.imported || handle.physical.record.handle_types & wanted == 0 {
            return Err(Code::INVALID_VALUE);
        }
        Ok(handle)
    }

    fn forget_if_unused(&mut self, handle: u64) {
        if !self
            .handles
            .get(&handle)
            .is_some_and(|entry| entry.references == 0 && entry.mappings == 0)
        {
            return;
        }
        let Some(entry) = self.handles.remove(&handle) else {
            return;
        };
        let inode = entry.physical.inode;
        let Some(named) = self.named.get_mut(&inode) else {
            return;
        };
        named.handles -= 1;
        if named.handles > 0 {
            return;
        }
        let record = named.physical.record;
        if named.exported {
            self.lingering.insert(inode, record);
        } else {
            charge(&mut self.charged, &record, false);
        }
        self.named.remove(&inode);
    }

    fn seen_exported(&mut self, inode: u64) {
        if let Some(named) = self.named.get_mut(&inode) {
            named.exported = true;
        }
    }

    fn charged_to(&self, uuid: [u8; 16]) -> u64 {
        self.charged.get(&uuid).copied().unwrap_or(0)
    }

    fn sweep(&mut self) {
        if !self.lingering.is_empty()
            && let Some(open) = memory_fds()
        {
            let open = HashSet::<u64>::from_iter(open);
            let charged = &mut self.charged;
            self.lingering.retain(|inode, record| {
                let stays = open.contains(inode);
                if !stays {
                    charge(charged, record, false);
                }
                stays
            });
        }
    }
}

/// Adds memory to what its device is charged with, or takes it off; the host is charged with none.
fn charge(charged: &mut HashMap<[u8; 16], u64>, record: &Record, more: bool) {
    if record.location.kind == MemLocation::DEVICE {
        let bytes = charged.entry(record.uuid).or_default();
        *bytes = match more {
            true => bytes.saturating_add(record.size),
            false => bytes.saturating_sub(record.size),
        };
    }
}

/// The inodes behind this process's descriptors of emulated memory, once per descriptor. `None`
/// where they cannot be found: not knowing is not finding none.
fn memory_fds() -> Option<Vec<u64>> {
    let paths = fd::with_room(|| fd::listed().or_else(fd::asked_for))?;
    let ours = format!("/memfd:{FILE_NAME}");
    let inode = |path: &PathBuf| {
        // A descriptor that another thread has closed meanwhile is not open.
        let target = std::fs::read_link(path).ok()?;
        if !target.to_string_lossy().starts_with(&ours) {
            return None;
        }
        Some(rustix::fs::stat(path).ok()?.st_ino)
    };
    Some(paths.iter().filter_map(inode).collect())
}

/// Hands a descriptor over to the C side.
pub(crate) fn into_c(fd: OwnedFd) -> std::ffi::c_int {
    fd.into_raw_fd()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;

    const SIZE: u64 = 2 << 20;

    fn create(memory: &mut Memory, device: u8, pages: u64) -> u64 {
        let location = MemLocation {
            kind: MemLocation::DEVICE,
            id: 0,
        };
        let flags = AllocFlags {
            compression: 0,
            gpu_direct_rdma: 0,
            usage: 0,
            reserved: [0; 4],
        };
        memory
            .create(pages * SIZE, [device; 16], location, HANDLE_POSIX_FD, flags)
            .unwrap()
    }

    #[test]
    fn memory_is_charged_once_however_many_handles_and_descriptors_name_it() {
        let mut memory = Memory::default();
        let (one, other) = ([1; 16], [2; 16]);
        let first = create(&mut memory, 1, 1);
        let second = create(&mut memory, 2, 3);
        let fd = memory.export(first).unwrap();
        let again = memory.import(fd.as_fd()).unwrap();
        assert_eq!((memory.used(one), memory.used(other)), (SIZE, 3 * SIZE));
        memory.release(first).unwrap();
        assert_eq!(memory.used(one), SIZE, "another handle names it");
        memory.release(again).unwrap();
        assert_eq!(memory.used(one), SIZE, "a descriptor keeps it");
        assert!(memory.has_room(one, SIZE, 2 * SIZE));
        assert!(!memory.has_room(one, 2 * SIZE, 2 * SIZE));
        let back = memory.import(fd.as_fd()).unwrap();
        assert_eq!(memory.used(one), SIZE);
        memory.release(back).unwrap();
        drop(fd);
        assert_eq!(memory.charged_to(one), SIZE, "nobody has looked");
        assert!(
            memory.has_room(one, 2 * SIZE, 2 * SIZE),
            "and it is found gone"
        );
        memory.release(second).unwrap();
        assert_eq!((memory.used(one), memory.used(other)), (0, 0));
        assert!(memory.named.is_empty() && memory.lingering.is_empty());
    }

    #[test]
    fn an_inode_number_that_is_given_to_another_file_is_not_taken_for_the_same() {
        let mut memory = Memory::default();
        let (one, other) = ([1; 16], [2; 16]);
        let first = create(&mut memory, 1, 5);
        let fd = memory.export(first).unwrap();
        memory.release(first).unwrap();
        drop(fd);
        let inode = *memory.lingering.keys().next().unwrap();
        let second = create(&mut memory, 2, 3);
        let physical = memory.get(second).unwrap().physical.clone();
        memory.release(second).unwrap();
        // As if the kernel had given it the number of the file that is gone.
        let mut again = Arc::try_unwrap(physical).unwrap();
        again.inode = inode;
        let third = memory.insert(Arc::new(again), false);
        assert_eq!((memory.used(one), memory.used(other)), (0, 3 * SIZE));
        memory.release(third).unwrap();
        assert_eq!((memory.used(one), memory.used(other)), (0, 0));
    }
}
