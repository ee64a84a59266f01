//! Page-locked memory of the host.

use super::{Out, api};
use crate::code::{Code, Result};
use crate::core::{Core, Pinned};
use crate::vm;
use std::ffi::{c_uint, c_void};

api! {
    fn cuMemAllocHost as "cuMemAllocHost"(address: Out<u64>, size: usize) |mut core| {
        allocate_host(&mut core, address, size)
    }

    fn cuMemHostAlloc as "cuMemHostAlloc"(address: Out<u64>, size: usize, flags: c_uint) |mut core| {
        if flags > 7 {
            return Err(Code::INVALID_VALUE);
        }
        allocate_host(&mut core, address, size)
    }

    fn cuMemFreeHost as "cuMemFreeHost"(address: *mut c_void) |mut core| {
        core.current()?;
        let start = address.expose_provenance() as u64;
        match core.pinned.get(&start) {
            Some(&Pinned { size, allocated: true, context }) => {
                core.pinned.remove(&start);
                // Work that was queued before may write there.
                let core = core.finish(context);
                vm::release(start, size);
                drop(core);
                Ok(())
            }
            _ => {
                core.misuse.bad_free += 1;
                Err(Code::INVALID_VALUE)
            }
        }
    }

    fn cuMemHostRegister as "cuMemHostRegister"(address: *mut c_void, size: usize, flags: c_uint) |mut core| {
        let (context, _) = core.current()?;
        let start = address.expose_provenance() as u64;
        if start == 0 || size == 0 || flags > 15 {
            return Err(Code::INVALID_VALUE);
        }
        let end = start.checked_add(size as u64).ok_or(Code::INVALID_VALUE)?;
        if core.pinned.range(..end).next_back().is_some_and(|(at, other)| at + other.size > start) {
            return Err(Code::HOST_MEMORY_ALREADY_REGISTERED);
        }
        // Pages that are not there cannot be locked, and those of the driver are not the program's.
        if core.space.reserves_any(start, end) || !vm::is_memory(start, size as u64) {
            return Err(Code::INVALID_VALUE);
        }
        core.pinned.insert(start, Pinned { size: size as u64, allocated: false, context });
        Ok(())
    }

    fn cuMemHostUnregister as "cuMemHostUnregister"(address: *mut c_void) |mut core| {
        core.current()?;
        let start = address.expose_provenance() as u64;
        match core.pinned.get(&start) {
            Some(&Pinned { allocated: false, context, .. }) => {
                core.pinned.remove(&start);
                drop(core.finish(context));
                Ok(())
            }
            Some(_) => Err(Code::INVALID_VALUE),
            None => Err(Code::HOST_MEMORY_NOT_REGISTERED),
        }
    }
}

fn allocate_host(core: &mut Core, address: Out<u64>, size: usize) -> Result {
    address.check()?;
    let (context, _) = core.current()?;
    core.safe_in_capture()?;
    if size == 0 {
        return address.set(0);
    }
    let page = rustix::param::page_size() as u64;
    let size = (size as u64)
        .checked_next_multiple_of(page)
        .ok_or(Code::OUT_OF_MEMORY)?;
    if size > core.host_memory {
        return Err(Code::OUT_OF_MEMORY);
    }
    let start = vm::reserve(size, page, 0)?;
    vm::protect(start, size, true, true).map_err(|_| {
        vm::release(start, size);
        Code::OUT_OF_MEMORY
    })?;
    core.pinned.insert(
        start,
        Pinned {
            size,
            allocated: true,
            context,
        },
    );
    address.set(start)
}

impl Core {
    /// The page-locked memory that holds the address, with its start.
    pub(super) fn pinned_at(&self, address: u64) -> Option<(u64, Pinned)> {
        let (&start, &memory) = self.pinned.range(..=address).next_back()?;
        (address - start < memory.size).then_some((start, memory))
    }

    /// What a context was given goes with it; memory of the program is its own again.
    pub(super) fn drop_pinned(&mut self, context: u64) {
        self.pinned.retain(|&start, memory| {
            let gone = memory.context == context;
            if gone && memory.allocated {
                vm::release(start, memory.size);
            }
            !gone
        });
    }
}
