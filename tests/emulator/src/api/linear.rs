//! Classic device memory: `cuMemAlloc`.

use super::{Out, api};
use crate::abi::{
    ACCESS_READ_WRITE, ALLOCATION_PINNED, AllocFlags, DevicePtr, MemAllocationProp, MemLocation,
};
use crate::code::{Code, Result};
use crate::core::{Core, Linear};
use std::collections::BTreeMap;

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
        let Some(freed) = core.linear.remove(&address) else {
            core.misuse.bad_free += 1;
            return Err(Code::INVALID_VALUE);
        };
        // Unlike the calls for mappings, this one waits.
        core = core.finish(context);
        core.free_linear(address, freed.mapped)
    }
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

    /// What a context was given goes with it.
    pub(super) fn drop_linear(&mut self, context: u64) {
        let linear = std::mem::take(&mut self.linear);
        let (gone, left) = linear
            .into_iter()
            .partition::<BTreeMap<_, _>, _>(|(_, memory)| memory.context == context);
        self.linear = left;
        for (address, memory) in gone {
            let _ = self.free_linear(address, memory.mapped);
        }
    }

    fn free_linear(&mut self, address: DevicePtr, mapped: u64) -> Result {
        for mapping in self.space.unmap(address, mapped)? {
            self.memory.unmapped(mapping.handle);
        }
        self.space.free(address, mapped)
    }
}
