//! Which buffer an export is of, without keeping that.

use vmm::{AllocationId, Buffer, Prefix};

/// What was exported of a buffer, by which one that grew from it is recognised.
pub(super) struct Origin {
    /// The memory of each chunk, in order.
    memory: Vec<AllocationId>,
    /// The same chunks where they were mapped last.
    prefix: Prefix,
}

impl Origin {
    pub(super) fn new(buffer: &Buffer) -> Self {
        Origin {
            memory: buffer.chunks().map(|chunk| chunk.allocation.id()).collect(),
            prefix: buffer.prefix(),
        }
    }

    /// Whether a buffer begins with the memory that was exported. It looks at the new chunks alone,
    /// and at every chunk only where the buffer has moved.
    pub(super) fn begins(&self, grown: &Buffer) -> bool {
        if grown.starts_with(&self.prefix) {
            return true;
        }
        // A buffer can be put together by hand from memory that others have too, so that the last
        // chunk alone would not tell.
        let mut chunks = grown.chunks();
        self.memory.iter().all(|known| {
            let chunk = chunks.next();
            chunk.is_some_and(|chunk| chunk.allocation.id() == *known)
        })
    }

    /// Take in what `grown`, which begins with what is here, has beyond it.
    pub(super) fn take_in(&mut self, grown: &Buffer) {
        let new = grown.chunks_from(self.memory.len());
        self.memory.extend(new.map(|chunk| chunk.allocation.id()));
        self.prefix = grown.prefix();
    }
}
