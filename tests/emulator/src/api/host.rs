//! Memory without handles: `cuMemAlloc`, page-locked host memory.

use super::{Out, api};
use crate::abi::{
    ACCESS_READ_WRITE, ALLOCATION_PINNED, AllocFlags, DevicePtr, MemAllocationProp, MemLocation,
};
use crate::code::{Code, Result};
use crate::core::{Core, Linear, Pinned};
use crate::vm;
use std::collections::BTreeMap;
use std::ffi::{c_uint, c_void};

api! {
    fn cuMemAlloc as "cuMemAlloc"(address: Out<DevicePtr>, size: usize) |mut core| {
        address.check()?;
        let current = core.current()?;
        core.safe_in_capture()?;
        address.set(core.allocate_linear(size as u64, current)?)
    }

    fn cuMemFree as "cuMemFree"(address: DevicePtr) |mut core| {
        if address == 0 {
            return Ok(());
        }
        let (context, _) = core.current()?;
        core.safe_in_capture()?;
        let freed = core.linear.remove(&address).ok_or(Code::INVALID_VALUE)?;
        // Unlike the calls for mappings, this one waits.
        let steps = core.streams.left_in(context);
        core = core.wait_for(&steps);
        core.free_linear(address, freed.mapped)
    }

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
                let steps = core.streams.left_in(context);
                let core = core.wait_for(&steps);
                vm::release(start, size);
                drop(core);
                Ok(())
            }
            _ => Err(Code::INVALID_VALUE),
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
        core.pinned.insert(start, Pinned { size: size as u64, allocated: false, context });
        Ok(())
    }

    fn cuMemHostUnregister as "cuMemHostUnregister"(address: *mut c_void) |mut core| {
        core.current()?;
        let start = address.expose_provenance() as u64;
        match core.pinned.get(&start) {
            Some(&Pinned { allocated: false, context, .. }) => {
                core.pinned.remove(&start);
                let steps = core.streams.left_in(context);
                drop(core.wait_for(&steps));
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
    /// The classic allocation is a reservation, an allocation and a mapping with one owner.
    fn allocate_linear(
        &mut self,
        size: u64,
        (context, location): (u64, MemLocation),
    ) -> Result<DevicePtr> {
        if size == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let granularity = self.config.granularity;
        let mapped = size
            .checked_next_multiple_of(granularity)
            .ok_or(Code::OUT_OF_MEMORY)?;
        let prop = MemAllocationProp {
            kind: ALLOCATION_PINNED,
            handle_types: 0,
            location,
            win32_meta: std::ptr::null_mut(),
            flags: AllocFlags {
                compression: 0,
                gpu_direct_rdma: 0,
                usage: 0,
                reserved: [0; 4],
            },
        };
        let handle = self.create_memory(mapped, &prop)?;
        let address = match self.space.reserve(mapped, 0, 0, granularity) {
            Ok(address) => address,
            Err(code) => {
                let _ = self.memory.release(handle);
                return Err(code);
            }
        };
        self.linear.insert(
            address,
            Linear {
                size,
                mapped,
                context,
            },
        );
        let physical = self.memory.get(handle)?.physical.clone();
        let mapping = self.space.map(address, handle, physical).and_then(|()| {
            self.memory.mapped(handle);
            self.space
                .set_access(address, mapped, &[(location, ACCESS_READ_WRITE)])
        });
        self.memory.release(handle)?;
        match mapping {
            Ok(()) => Ok(address),
            Err(code) => {
                self.linear.remove(&address);
                self.free_linear(address, mapped)?;
                Err(code)
            }
        }
    }

    /// What a context was given goes with it; memory of the program is its own again.
    pub(super) fn drop_memory(&mut self, context: u64) {
        let linear = std::mem::take(&mut self.linear);
        let (gone, left) = linear
            .into_iter()
            .partition::<BTreeMap<_, _>, _>(|(_, memory)| memory.context == context);
        self.linear = left;
        for (address, memory) in gone {
            let _ = self.free_linear(address, memory.mapped);
        }
        self.pinned.retain(|&start, memory| {
            let gone = memory.context == context;
            if gone && memory.allocated {
                vm::release(start, memory.size);
            }
            !gone
        });
    }

    fn free_linear(&mut self, address: DevicePtr, mapped: u64) -> Result {
        for mapping in self.space.unmap(address, mapped)? {
            self.memory.unmapped(mapping.handle);
        }
        self.space.free(address, mapped)
    }
}
