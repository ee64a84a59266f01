//! Classic device memory: `cuMemAlloc`.

use super::{Out, api};
use crate::abi::{
    ACCESS_READ_WRITE, ALLOCATION_PINNED, AllocFlags, DevicePtr, MemAllocationProp, MemLocation,
};
use crate::code::{Code, Result};
use crate::core::Core;
use crate::linear;

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
        let Some(freed) = core.linear.forget(address) else {
            core.misuse.bad_free += 1;
            return Err(Code::INVALID_VALUE);
        };
        // Unlike the calls for mappings, this one waits.
        core = core.finish(context);
        match core.linear.give_back(address, freed) {
            Some((block, len)) => core.free_block(block, len),
            None => Ok(()),
        }
    }
}

impl Core {
    fn allocate_linear(
        &mut self,
        size: u64,
        (context, location): (u64, MemLocation),
    ) -> Result<DevicePtr> {
        if size == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let granularity = self.config.granularity;
        if let Some(address) = self.linear.allocate(size, context, granularity) {
            return Ok(address);
        }
        let len = linear::block_len(size, granularity).ok_or(Code::OUT_OF_MEMORY)?;
        let block = self.make_block(len, location)?;
        self.linear.add_block(block, len, context);
        let address = self.linear.allocate(size, context, granularity);
        address.ok_or(Code::UNKNOWN)
    }

    /// A block is a reservation, an allocation and a mapping with one owner.
    fn make_block(&mut self, len: u64, location: MemLocation) -> Result<DevicePtr> {
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
        let handle = self.create_memory(len, &prop)?;
        let address = match self.space.reserve(len, 0, 0, self.config.granularity) {
            Ok(address) => address,
            Err(code) => {
                let _ = self.memory.release(handle);
                return Err(code);
            }
        };
        let physical = self.memory.get(handle)?.physical.clone();
        let mapping = self.space.map(address, handle, physical).and_then(|()| {
            self.memory.mapped(handle);
            self.space
                .set_access(address, len, &[(location, ACCESS_READ_WRITE)])
        });
        self.memory.release(handle)?;
        match mapping {
            Ok(()) => Ok(address),
            Err(code) => {
                self.free_block(address, len)?;
                Err(code)
            }
        }
    }

    /// What a context was given goes with it.
    pub(super) fn drop_linear(&mut self, context: u64) {
        for (block, len) in self.linear.drop_context(context) {
            let _ = self.free_block(block, len);
        }
    }

    fn free_block(&mut self, address: DevicePtr, len: u64) -> Result {
        for mapping in self.space.unmap(address, len)? {
            self.memory.unmapped(mapping.handle);
        }
        self.space.free(address, len)
    }
}
