//! What one driver call may run over: memory of one kind.
//!
//! A driver (580, H200) ends the process by SIGSEGV where a copy from or to the host runs over the
//! bound between memory of the host and of a device, and refuses to set bytes over the bound before a
//! chunk of host memory. So a call is cut at these, and where the device changes.

use std::sync::Arc;

use crate::buffer::Buffer;
use crate::chain::{self, Link};

impl Buffer {
    /// The chunks that a range touches, the last one first. Those behind it are passed over one by
    /// one, and nothing but their address is looked at.
    pub(crate) fn touched(&self, offset: usize, len: usize) -> impl Iterator<Item = &Arc<Link>> {
        let start = self.base + offset as u64;
        let end = start + len as u64;
        chain::backwards(self.tail.as_ref())
            .skip_while(move |link| link.mapping().address() >= end)
            .take_while(move |link| link.mapping().end() > start)
    }

    /// Where a range has to be cut: bytes from `offset` on, ascending. None in a buffer of one device's
    /// memory, as most are, for which nothing is looked at or allocated.
    pub(crate) fn cuts(&self, offset: usize, len: usize) -> Vec<usize> {
        let mut cuts = Vec::new();
        if self.kind.is_plain {
            return cuts;
        }
        for link in self.touched(offset, len) {
            let start = (link.mapping().address() - self.base) as usize;
            if start <= offset {
                break;
            }
            let before = link.prev().and_then(|prev| prev.mapping().allocation());
            let alike = match (before, link.mapping().allocation()) {
                (Some(before), Some(here)) => !here.location().is_host() && here.lies_with(before),
                _ => false,
            };
            if !alike {
                cuts.push(start - offset);
            }
        }
        cuts.reverse();
        cuts
    }
}

/// The pieces of `len` bytes between cuts, as start and length.
pub(crate) fn between(cuts: &[usize], len: usize) -> impl Iterator<Item = (usize, usize)> {
    let starts = std::iter::once(0).chain(cuts.iter().copied());
    let ends = cuts.iter().copied().chain(std::iter::once(len));
    starts.zip(ends).map(|(start, end)| (start, end - start))
}

/// The cuts of both, for a call that runs over two ranges.
pub(crate) fn merged(mut a: Vec<usize>, b: Vec<usize>) -> Vec<usize> {
    a.extend(b);
    a.sort_unstable();
    a.dedup();
    a
}
