//! What a buffer begins with, by which those that grew from it are recognised.

use std::fmt;
use std::sync::{Arc, Weak};

use crate::buffer::Buffer;
use crate::chain::{self, Link};

/// The chunks of a buffer where they are mapped, without keeping them: see [`Buffer::prefix`].
#[derive(Clone)]
pub struct Prefix {
    chunks: usize,
    /// The last of them, which has all that come before it; none where there are no chunks.
    last: Weak<Link>,
}

impl Buffer {
    /// What the buffers that grow from this one at its address begin with. It keeps no memory and no
    /// addresses.
    pub fn prefix(&self) -> Prefix {
        Prefix {
            chunks: self.chunk_count(),
            last: self.tail.as_ref().map_or_else(Weak::new, Arc::downgrade),
        }
    }

    /// Whether the buffer begins with those very chunks, where they were: it is the buffer that the
    /// prefix is of, or grew from it in place. False for one that was mapped anew at another address,
    /// though its memory can be the same (see [`Allocation::id`](crate::Allocation::id)).
    ///
    /// The cost is that of the chunks beyond the prefix, however many are in it.
    pub fn starts_with(&self, prefix: &Prefix) -> bool {
        let Some(beyond) = self.chunk_count().checked_sub(prefix.chunks) else {
            return false;
        };
        if prefix.chunks == 0 {
            return true;
        }
        chain::backwards(self.tail.as_ref())
            .nth(beyond)
            // As long as the prefix lives, no other chunk takes that place.
            .is_some_and(|link| std::ptr::eq(Arc::as_ptr(link), prefix.last.as_ptr()))
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prefix")
            .field("chunks", &self.chunks)
            .finish_non_exhaustive()
    }
}
