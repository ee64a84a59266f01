//! Each operation, done by the driver and by the model.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::without_provenance_mut;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use vmm_sys::*;

use super::ops::Op;
use super::state::{DEVICES, HOST, Handle, Memory, Model, Page};
use super::{INVALID, MEMORY_PAGES, OK, PAGE, Tested, call, location};

pub const FD: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

impl Tested<'_> {
    /// The model does not change where the driver answered otherwise than it says.
    pub fn step(&self, model: &mut Model, op: &Op) -> Result<(), TestCaseError> {
        let driver = self.driver;
        let page = self.page;
        let handles = model.handles.len();
        let chosen = |index: usize| index % handles.max(1);
        match *op {
            Op::Create {
                at,
                pages,
                shareable,
            } => {
                let at = self.user(at);
                let prop = CUmemAllocationProp {
                    type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
                    requestedHandleTypes: match shareable {
                        true => FD,
                        false => CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
                    },
                    location: location(at),
                    ..Default::default()
                };
                let mut value = 0;
                let answer = call!(
                    driver,
                    cuMemCreate(&mut value, (pages * page) as usize, &prop, 0)
                );
                let limited = at != HOST && !self.real;
                let expected = match pages {
                    0 => INVALID,
                    pages if limited && model.used(at) + pages > MEMORY_PAGES => {
                        CUresult::CUDA_ERROR_OUT_OF_MEMORY
                    }
                    _ => OK,
                };
                self.agree("cuMemCreate", answer, expected)?;
                if answer == OK {
                    model.handles.push(Handle {
                        value,
                        memory: model.memories.len(),
                        imported: false,
                        references: 1,
                    });
                    model.memories.push(Memory {
                        at,
                        shareable,
                        bytes: vec![0; (pages * PAGE) as usize],
                    });
                }
            }
            Op::Release { handle } => {
                let Some(handle) = model.handles.get_mut(chosen(handle)) else {
                    return Ok(());
                };
                let alive = handle.references > 0;
                if self.real && !alive {
                    return Ok(());
                }
                let answer = call!(driver, cuMemRelease(handle.value));
                self.agree("cuMemRelease", answer, if alive { OK } else { INVALID })?;
                handle.references = handle.references.saturating_sub(1);
            }
            Op::Retain { place } => {
                let Some(address) = model.address(place) else {
                    return Ok(());
                };
                let mut value = 0;
                let answer = call!(
                    driver,
                    cuMemRetainAllocationHandle(
                        &mut value,
                        without_provenance_mut(address as usize)
                    )
                );
                let page = model.pages.get(&address);
                let expected = if page.is_some() { OK } else { INVALID };
                self.agree("cuMemRetainAllocationHandle", answer, expected)?;
                if let Some(page) = page {
                    let handle = &mut model.handles[page.handle];
                    handle.references += 1;
                    prop_assert_eq!(value, handle.value);
                }
            }
            Op::Export { handle } => {
                let Some(handle) = model.handles.get(chosen(handle)) else {
                    return Ok(());
                };
                let alive = handle.references > 0;
                if self.real && !alive {
                    return Ok(());
                }
                let fine = alive && !handle.imported && model.memories[handle.memory].shareable;
                let exported = self.export(handle.value);
                let answer = exported.as_ref().err().copied().unwrap_or(OK);
                let memory = handle.memory;
                model.exports.extend(exported.map(|fd| (fd, memory)));
                let expected = if fine { OK } else { INVALID };
                self.agree("cuMemExportToShareableHandle", answer, expected)?;
            }
            Op::Import { export } => {
                let Some((fd, memory)) = model.exports.get(export % model.exports.len().max(1))
                else {
                    return Ok(());
                };
                let imported = self.import(fd);
                let answer = imported.err().unwrap_or(OK);
                self.agree("cuMemImportFromShareableHandle", answer, OK)?;
                let new = |value| Handle {
                    value,
                    memory: *memory,
                    imported: true,
                    references: 1,
                };
                let known = |value| model.handles.iter().any(|handle| handle.value == value);
                prop_assert!(
                    self.real || !imported.is_ok_and(known),
                    "an import gave a handle of before"
                );
                model.handles.extend(imported.map(new));
            }
            Op::Close { export } => {
                if !model.exports.is_empty() {
                    model.exports.swap_remove(export % model.exports.len());
                }
            }
            Op::Reserve { pages } => {
                let mut address = 0;
                let answer = call!(
                    driver,
                    cuMemAddressReserve(&mut address, (pages * page) as usize, 0, 0, 0)
                );
                let expected = if pages == 0 { INVALID } else { OK };
                self.agree("cuMemAddressReserve", answer, expected)?;
                if answer == OK {
                    let end = address + pages * page;
                    let free = model.reservations.iter().all(|&(start, pages, alive)| {
                        !alive || end <= start || start + pages * page <= address
                    });
                    model.reservations.push((address, pages, true));
                    prop_assert!(free, "a reservation lies in another");
                }
            }
            Op::Free { reservation, skew } => {
                if model.reservations.is_empty() {
                    return Ok(());
                }
                let (address, pages, _) =
                    model.reservations[reservation % model.reservations.len()];
                let pages = pages + skew;
                let answer = call!(driver, cuMemAddressFree(address, (pages * page) as usize));
                let exact = model
                    .reservations
                    .iter()
                    .position(|&known| known == (address, pages, true));
                let empty = !model.is_mapped(address, pages);
                let found = exact.filter(|_| empty);
                let expected = if found.is_some() { OK } else { INVALID };
                self.agree("cuMemAddressFree", answer, expected)?;
                if let Some(index) = found {
                    model.reservations[index].2 = false;
                }
            }
            Op::Map {
                handle,
                place,
                pages,
                offset,
            } => {
                let index = chosen(handle);
                let Some(handle) = model.handles.get(index) else {
                    return Ok(());
                };
                let size = model.size(handle.memory);
                let Some(address) = model.free_address(place, size) else {
                    return Ok(());
                };
                let pages = pages.unwrap_or(size);
                let alive = handle.references > 0;
                let inside = model
                    .reservation(address)
                    .is_some_and(|(_, end)| address + pages * page <= end);
                if self.real && !(alive && inside) {
                    return Ok(());
                }
                let answer = call!(
                    driver,
                    cuMemMap(
                        address,
                        (pages * page) as usize,
                        (offset * page) as usize,
                        handle.value,
                        0
                    )
                );
                let fits = inside && !model.is_mapped(address, pages);
                let expected = if pages == 0 || !alive {
                    INVALID
                } else if offset != 0 || pages != size {
                    CUresult::CUDA_ERROR_NOT_SUPPORTED
                } else if fits {
                    OK
                } else {
                    INVALID
                };
                self.agree("cuMemMap", answer, expected)?;
                if answer == OK {
                    let new = |page| Page {
                        handle: index,
                        index: page,
                        access: [0; DEVICES + 1],
                    };
                    let mapped = model.all(address, pages).zip((0..).map(new));
                    model.pages.extend(mapped);
                }
            }
            Op::Unmap { place, pages } => {
                let Some((address, pages)) = model.range(place, pages) else {
                    return Ok(());
                };
                let answer = call!(driver, cuMemUnmap(address, (pages * page) as usize));
                let fine = pages > 0
                    && model
                        .all(address, pages)
                        .all(|page| model.reservation(page).is_some())
                    && model.cuts_none(address, pages);
                self.agree("cuMemUnmap", answer, if fine { OK } else { INVALID })?;
                if fine {
                    for page in model.all(address, pages) {
                        model.pages.remove(&page);
                    }
                }
            }
            Op::Access {
                user,
                place,
                pages,
                flags,
            } => {
                let user = self.user(user);
                let Some((address, pages)) = model.range(place, pages) else {
                    return Ok(());
                };
                let Some(expected) = model.access_answer(address, pages, user, flags) else {
                    return Ok(());
                };
                let answer = self.give_access(user, address, pages, flags);
                self.agree("cuMemSetAccess", answer, expected)?;
                if answer == OK {
                    for page in model.all(address, pages) {
                        if let Some(page) = model.pages.get_mut(&page) {
                            page.access[user] = flags;
                        }
                    }
                }
            }
            Op::Fill { .. } | Op::Write { .. } | Op::Read { .. } | Op::Copy { .. } => {
                return self.move_bytes(model, op);
            }
        }
        Ok(())
    }

    pub fn export(&self, handle: u64) -> Result<OwnedFd, CUresult> {
        let mut fd = -1_i32;
        let to = (&raw mut fd).cast();
        match call!(self.driver, cuMemExportToShareableHandle(to, handle, FD, 0)) {
            // SAFETY: the driver made it for the caller.
            OK => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
            error => Err(error),
        }
    }

    pub fn import(&self, fd: &OwnedFd) -> Result<u64, CUresult> {
        let mut handle = 0;
        let from = without_provenance_mut(fd.as_raw_fd() as usize);
        match call!(
            self.driver,
            cuMemImportFromShareableHandle(&mut handle, from, FD)
        ) {
            OK => Ok(handle),
            error => Err(error),
        }
    }

    pub fn give_access(&self, user: usize, address: u64, pages: u64, flags: u32) -> CUresult {
        let desc = CUmemAccessDesc {
            location: location(user),
            flags: CUmemAccess_flags(flags),
        };
        let size = (pages * self.page) as usize;
        call!(self.driver, cuMemSetAccess(address, size, &desc, 1))
    }
}
