//! Address space: the few calls that change the process's memory map.
//!
//! Everything here changes only ranges that `reserve` returned and `release` has not taken back;
//! nothing else of the process lies there. What the program puts into memory that it was given there
//! is its own, as with any driver.

use crate::code::{Code, Result};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::mm::{
    MapFlags, MprotectFlags, MsyncFlags, ProtFlags, mmap, mmap_anonymous, mprotect, msync, munmap,
};
use std::ffi::c_void;
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::{Mutex, MutexGuard, PoisonError};

const EMPTY: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);
/// Pages of the spare range, each an entry of the process's memory map.
const SPARE_PAGES: u64 = 16;

/// Entries of the memory map, whose number the kernel bounds (`vm.max_map_count`), for when it is
/// full: to take a mapping away needs one for a moment. Nothing is added while there are none.
static SPARE: Mutex<Option<u64>> = Mutex::new(None);

/// Address space that costs nothing; `OUT_OF_MEMORY` where there is none left.
pub(crate) fn reserve(size: u64, alignment: u64, hint: u64) -> Result<u64> {
    hold_spare()?;
    if hint != 0
        && hint.is_multiple_of(alignment)
        && let Ok(address) = anonymous(hint, size, EMPTY | MapFlags::FIXED_NOREPLACE)
    {
        if address == hint {
            return Ok(address);
        }
        // A kernel without FIXED_NOREPLACE takes the hint as a mere hint.
        unmap(address, size);
    }
    let roomy = size.checked_add(alignment).ok_or(Code::OUT_OF_MEMORY)?;
    let start = anonymous(0, roomy, EMPTY)?;
    let address = start.next_multiple_of(alignment);
    unmap(start, address - start);
    unmap(address + size, roomy - size - (address - start));
    Ok(address)
}

/// Gives a reserved range back to the process.
pub(crate) fn release(address: u64, size: u64) {
    unmap(address, size);
}

/// Puts `size` bytes of the file at a reserved address, without access.
pub(crate) fn map(address: u64, size: u64, file: BorrowedFd<'_>) -> Result {
    let length = usize::try_from(size).map_err(|_| Code::INVALID_VALUE)?;
    hold_spare()?;
    // SAFETY: the range lies inside a reservation of ours where nothing is mapped.
    unsafe {
        mmap(
            pointer(address),
            length,
            ProtFlags::empty(),
            MapFlags::SHARED | MapFlags::FIXED,
            file,
            0,
        )
    }
    .map_err(|_| Code::OUT_OF_MEMORY)?;
    Ok(())
}

/// Makes a mapped range bare address space again.
pub(crate) fn clear(address: u64, size: u64) {
    let replace = || anonymous(address, size, EMPTY | MapFlags::FIXED);
    if replace().is_err() && !(drop_spare() && replace().is_ok()) {
        // Others have filled the memory map. What was mapped stays in memory until the range is
        // used again or given back, but nobody sees it. For a whole mapping this needs no entry.
        let _ = protect(address, size, false, false);
    }
}

/// What the host may do with the range.
pub(crate) fn protect(address: u64, size: u64, read: bool, write: bool) -> Result {
    let length = usize::try_from(size).map_err(|_| Code::INVALID_VALUE)?;
    let mut flags = MprotectFlags::empty();
    flags.set(MprotectFlags::READ, read);
    flags.set(MprotectFlags::WRITE, write);
    // SAFETY: the range is a mapping of ours; whoever holds a pointer into it asked for the change.
    unsafe { mprotect(pointer(address), length, flags) }.map_err(|_| Code::OPERATING_SYSTEM)
}

/// Whether something is mapped everywhere in a range that is the program's own.
pub(crate) fn is_memory(address: u64, size: u64) -> bool {
    let page = rustix::param::page_size() as u64;
    let start = address - address % page;
    let length = (address.checked_add(size)).and_then(|end| end.checked_next_multiple_of(page));
    let length = length.and_then(|end| usize::try_from(end - start).ok());
    // SAFETY: MS_ASYNC writes nothing anywhere: the kernel only looks whether there are mappings.
    length.is_some_and(|length| unsafe { msync(pointer(start), length, MsyncFlags::ASYNC) }.is_ok())
}

fn anonymous(address: u64, size: u64, flags: MapFlags) -> Result<u64> {
    let length = usize::try_from(size).map_err(|_| Code::OUT_OF_MEMORY)?;
    // SAFETY: without FIXED the kernel picks free space; with FIXED the range is a reservation's.
    let start = unsafe { mmap_anonymous(pointer(address), length, ProtFlags::empty(), flags) };
    Ok(start.map_err(|_| Code::OUT_OF_MEMORY)?.expose_provenance() as u64)
}

fn unmap(address: u64, size: u64) {
    let Ok(length) = usize::try_from(size) else {
        return;
    };
    if length > 0 {
        // SAFETY: the range was reserved by this module and nothing refers to it any more.
        let remove = || unsafe { munmap(pointer(address), length) };
        // A part of an entry leaves two behind. It fails otherwise only for ranges that are no
        // mapping, which then need no unmapping.
        if remove() == Err(Errno::NOMEM) && drop_spare() {
            let _ = remove();
        }
    }
}

fn hold_spare() -> Result {
    let mut spare = lock_spare();
    if spare.is_none() {
        let page = rustix::param::page_size() as u64;
        let start = anonymous(0, SPARE_PAGES * page, EMPTY)?;
        // Neighbours with different protection are entries of their own.
        let split = (0..SPARE_PAGES)
            .step_by(2)
            .try_for_each(|at| protect(start + at * page, page, true, false));
        if split.is_err() {
            remove_spare(start);
            return Err(Code::OUT_OF_MEMORY);
        }
        *spare = Some(start);
    }
    Ok(())
}

/// Whether there was one.
fn drop_spare() -> bool {
    let spare = lock_spare().take();
    spare.map(remove_spare).is_some()
}

fn remove_spare(start: u64) {
    let length = usize::try_from(SPARE_PAGES).unwrap_or(0) * rustix::param::page_size();
    // SAFETY: the spare range, to which nothing refers. Its ends are those of entries.
    let _ = unsafe { munmap(pointer(start), length) };
}

fn lock_spare() -> MutexGuard<'static, Option<u64>> {
    SPARE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn pointer(address: u64) -> *mut c_void {
    match usize::try_from(address) {
        Ok(0) | Err(_) => null_mut(),
        Ok(address) => with_exposed_provenance_mut(address),
    }
}
