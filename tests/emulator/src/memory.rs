//! Handles: create, import, export, retain, release, and what memory is charged for.

use crate::abi::{AllocFlags, HANDLE_FABRIC, HANDLE_POSIX_FD, MemLocation};
use crate::code::{Code, Result};
use crate::fd;
use crate::physical::{FILE_NAME, Physical};
use crate::record::Record;
use rustix::fd::{BorrowedFd, IntoRawFd, OwnedFd};
use std::collections::{BTreeMap, HashMap};
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

/// Memory whose last user here is gone but whose exported fd may live on.
#[derive(Debug)]
struct Lingering {
    size: u64,
    uuid: [u8; 16],
}

/// Every handle of the process.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    handles: BTreeMap<u64, Handle>,
    made: u64,
    exported: HashMap<u64, ()>,
    lingering: HashMap<u64, Lingering>,
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
        let known = self
            .handles
            .values()
            .find(|handle| handle.physical.inode == inode);
        let physical = match known {
            Some(handle) => handle.physical.clone(),
            None => Arc::new(Physical::import(fd)?),
        };
        self.lingering.remove(&inode);
        // What came by a descriptor is charged for as long as one is open, also after the release.
        self.exported.insert(inode, ());
        Ok(self.insert(physical, true))
    }

    pub fn export(&mut self, handle: u64) -> Result<OwnedFd> {
        let (inode, fd) = {
            let physical = &self.exportable(handle, HANDLE_POSIX_FD)?.physical;
            (physical.inode, physical.export()?)
        };
        self.exported.insert(inode, ());
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
        let live: HashMap<u64, u64> = self
            .handles
            .values()
            .filter(|handle| {
                handle.physical.record.location.kind == MemLocation::DEVICE
                    && handle.physical.record.uuid == uuid
            })
            .map(|handle| (handle.physical.inode, handle.physical.record.size))
            .collect();
        let lingering = self
            .lingering
            .values()
            .filter(|memory| memory.uuid == uuid)
            .map(|memory| memory.size);
        live.values().copied().chain(lingering).sum()
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
        let mut sizes: HashMap<u64, u64> = self
            .handles
            .values()
            .map(|handle| (handle.physical.inode, handle.physical.record.size))
            .collect();
        sizes.extend(
            self.lingering
                .iter()
                .map(|(&inode, memory)| (inode, memory.size)),
        );
        (sizes.len(), sizes.values().sum())
    }

    /// Descriptors of this process that refer to emulated memory, other than our own.
    pub fn exported_fds(&mut self) -> usize {
        let inner: std::collections::HashSet<u64> = self
            .handles
            .values()
            .map(|handle| handle.physical.inode)
            .collect();
        if let Some(open) = memory_fds() {
            self.counted_fds = open.len().saturating_sub(inner.len());
        }
        self.counted_fds
    }

    fn insert(&mut self, physical: Arc<Physical>, imported: bool) -> u64 {
        self.made += 1;
        let handle = FIRST_HANDLE + self.made * HANDLE_STEP;
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
        let last = !self
            .handles
            .values()
            .any(|other| other.physical.inode == inode);
        let record = entry.physical.record;
        if last
            && self.exported.remove(&inode).is_some()
            && record.location.kind == MemLocation::DEVICE
        {
            self.lingering.insert(
                inode,
                Lingering {
                    size: record.size,
                    uuid: record.uuid,
                },
            );
        }
    }

    fn sweep(&mut self) {
        if !self.lingering.is_empty()
            && let Some(open) = memory_fds()
        {
            self.lingering.retain(|inode, _| open.contains(inode));
        }
    }
}

/// The inodes behind this process's descriptors of emulated memory, once per descriptor. `None`
/// where they cannot be listed, which takes a descriptor: not knowing is not finding none.
fn memory_fds() -> Option<Vec<u64>> {
    fd::with_room(|| {
        let ours = format!("/memfd:{FILE_NAME}");
        let mut inodes = Vec::new();
        for entry in std::fs::read_dir("/proc/self/fd").ok()? {
            let path = entry.ok()?.path();
            // A descriptor that another thread has closed meanwhile is not open.
            if std::fs::read_link(&path)
                .is_ok_and(|target| target.to_string_lossy().starts_with(&ours))
                && let Ok(stat) = rustix::fs::stat(&path)
            {
                inodes.push(stat.st_ino);
            }
        }
        Some(inodes)
    })
}

/// Hands a descriptor over to the C side.
pub(crate) fn into_c(fd: OwnedFd) -> std::ffi::c_int {
    fd.into_raw_fd()
}
