//! Where `cuMemAlloc` puts what: blocks of mapped memory, and the places in them.
//!
//! As with a driver, small allocations of a context share a block, so that thousands of them take up
//! no more than their bytes.

use std::collections::{BTreeMap, BTreeSet};

/// Places begin at multiples of it.
const ALIGNMENT: u64 = 512;

/// Classic device memory of a context.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Allocation {
    /// What was asked for.
    pub size: u64,
    pub context: u64,
    /// Unlike every other one of the process.
    pub id: u64,
    /// What it takes up.
    len: u64,
    /// The number of its block.
    block: u64,
}

#[derive(Debug)]
struct Block {
    number: u64,
    context: u64,
    len: u64,
    /// How much of it is taken.
    used: u64,
}

/// All of it.
#[derive(Debug, Default)]
pub(crate) struct Linear {
    allocations: BTreeMap<u64, Allocation>,
    blocks: BTreeMap<u64, Block>,
    made: u64,
    /// The lengths of the free places, and the places by context and length.
    free: BTreeMap<u64, u64>,
    by_len: BTreeSet<(u64, u64, u64)>,
}

/// What an allocation of a size takes up: a block of its own from half a granule on.
fn taken(size: u64, granularity: u64) -> Option<u64> {
    let unit = match size > granularity / 2 {
        true => granularity,
        false => ALIGNMENT,
    };
    size.checked_next_multiple_of(unit)
}

/// How long a block for an allocation of a size has to be. `None` where no number says it.
pub(crate) fn block_len(size: u64, granularity: u64) -> Option<u64> {
    size.checked_next_multiple_of(granularity)
}

impl Linear {
    /// A place in one of the context's blocks, if there is one.
    pub fn allocate(&mut self, size: u64, context: u64, granularity: u64) -> Option<u64> {
        let len = taken(size, granularity)?;
        let roomy = (context, len, 0)..=(context, u64::MAX, u64::MAX);
        let &(_, room, start) = self.by_len.range(roomy).next()?;
        self.remove_free(context, start);
        if room > len {
            self.add_free(context, start + len, room - len);
        }
        let (_, block) = self.blocks.range_mut(..=start).next_back()?;
        block.used += len;
        self.made += 1;
        let allocation = Allocation {
            size,
            context,
            id: self.made,
            len,
            block: block.number,
        };
        self.allocations.insert(start, allocation);
        Some(start)
    }

    /// A block that is all free.
    pub fn add_block(&mut self, start: u64, len: u64, context: u64) {
        self.made += 1;
        let block = Block {
            number: self.made,
            context,
            len,
            used: 0,
        };
        self.blocks.insert(start, block);
        self.add_free(context, start, len);
    }

    /// Nobody can name the allocation from here on; its place stays taken.
    pub fn forget(&mut self, start: u64) -> Option<Allocation> {
        self.allocations.remove(&start)
    }

    /// The place of an allocation that was forgotten is free. The block, if that is all free now and so
    /// no block any more.
    pub fn give_back(&mut self, start: u64, gone: Allocation) -> Option<(u64, u64)> {
        let (&first, block) = self.blocks.range_mut(..=start).next_back()?;
        // Its context may have gone meanwhile and taken the block along.
        if block.number != gone.block {
            return None;
        }
        block.used -= gone.len;
        let (empty, end) = (block.used == 0, first + block.len);
        let (mut from, mut to) = (start, start + gone.len);
        if let Some((&before, &len)) = self.free.range(first..start).next_back()
            && before + len == start
        {
            self.remove_free(gone.context, before);
            from = before;
        }
        if to < end
            && let Some(&len) = self.free.get(&to)
        {
            self.remove_free(gone.context, to);
            to += len;
        }
        if empty {
            let block = self.blocks.remove(&first)?;
            return Some((first, block.len));
        }
        self.add_free(gone.context, from, to - from);
        None
    }

    /// The blocks of a context, which are none any more.
    pub fn drop_context(&mut self, context: u64) -> Vec<(u64, u64)> {
        self.allocations.retain(|_, known| known.context != context);
        let theirs = self
            .blocks
            .iter()
            .filter(|(_, block)| block.context == context);
        let gone: Vec<(u64, u64)> = theirs.map(|(start, block)| (*start, block.len)).collect();
        for (start, len) in &gone {
            self.blocks.remove(start);
            let inside: Vec<u64> = self
                .free
                .range(start..&(start + len))
                .map(|free| *free.0)
                .collect();
            for start in inside {
                self.remove_free(context, start);
            }
        }
        gone
    }

    /// The allocation that holds the address, with its start.
    pub fn at(&self, address: u64) -> Option<(u64, &Allocation)> {
        let (&start, found) = self.allocations.range(..=address).next_back()?;
        (address - start < found.size).then_some((start, found))
    }

    /// Whether the address lies in a block.
    pub fn holds(&self, address: u64) -> bool {
        self.has_any(address, address.saturating_add(1))
    }

    /// Whether something of the range lies in a block.
    pub fn has_any(&self, address: u64, end: u64) -> bool {
        let last = self.blocks.range(..end).next_back();
        last.is_some_and(|(start, block)| start + block.len > address)
    }

    fn add_free(&mut self, context: u64, start: u64, len: u64) {
        self.free.insert(start, len);
        self.by_len.insert((context, len, start));
    }

    fn remove_free(&mut self, context: u64, start: u64) {
        if let Some(len) = self.free.remove(&start) {
            self.by_len.remove(&(context, len, start));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRANULE: u64 = 2 << 20;

    /// A place, in a new block where there is none.
    fn place(linear: &mut Linear, next: &mut u64, size: u64, context: u64) -> u64 {
        if let Some(start) = linear.allocate(size, context, GRANULE) {
            return start;
        }
        let len = block_len(size, GRANULE).unwrap();
        linear.add_block(*next, len, context);
        *next += len;
        linear.allocate(size, context, GRANULE).unwrap()
    }

    fn free(linear: &mut Linear, start: u64) -> Option<(u64, u64)> {
        let gone = linear.forget(start).unwrap();
        linear.give_back(start, gone)
    }

    #[test]
    fn a_hundred_thousand_places_do_not_meet_and_leave_nothing_behind() {
        let (mut linear, mut next) = (Linear::default(), GRANULE);
        let sizes = |n: u64| 1 + n * 7919 % 9000;
        let mut starts: Vec<u64> = (0..100_000)
            .map(|n| place(&mut linear, &mut next, sizes(n), n % 3))
            .collect();
        let bytes: u64 = (0..100_000)
            .map(|n| sizes(n).next_multiple_of(ALIGNMENT))
            .sum();
        let blocks = linear.blocks.len() as u64;
        assert!(
            blocks <= bytes / GRANULE + 6,
            "{blocks} blocks for {bytes} bytes"
        );
        let ids: BTreeSet<u64> = linear.allocations.values().map(|one| one.id).collect();
        assert_eq!(ids.len(), starts.len());
        let mut end = 0;
        for (start, one) in &linear.allocations {
            assert!(start.is_multiple_of(ALIGNMENT) && *start >= end);
            end = start + one.size;
            assert_eq!(linear.at(end - 1).map(|found| found.0), Some(*start));
        }

        // Every other one, and as many again: they fit where those were.
        let odd: Vec<u64> = starts.iter().copied().skip(1).step_by(2).collect();
        let gone = odd
            .into_iter()
            .filter_map(|start| free(&mut linear, start))
            .count();
        assert_eq!(gone, 0);
        for n in (1..100_000).step_by(2) {
            starts[n as usize] = place(&mut linear, &mut next, sizes(n), n % 3);
        }
        assert!(linear.blocks.len() as u64 <= blocks + blocks / 20);

        // In an order that has nothing to do with theirs.
        let (mut at, mut given, blocks) = (0, 0, linear.blocks.len());
        for _ in 0..starts.len() {
            at = (at + 61_487) % starts.len();
            given += usize::from(free(&mut linear, starts[at]).is_some());
        }
        assert_eq!(given, blocks);
        assert!(linear.blocks.is_empty() && linear.allocations.is_empty());
        assert!(linear.free.is_empty() && linear.by_len.is_empty());
    }

    #[test]
    fn a_large_one_has_a_block_of_its_own_and_contexts_share_none() {
        let (mut linear, mut next) = (Linear::default(), GRANULE);
        let large = place(&mut linear, &mut next, GRANULE / 2 + 1, 1);
        let small = place(&mut linear, &mut next, 1, 1);
        let other = place(&mut linear, &mut next, 1, 2);
        assert_eq!(linear.blocks.len(), 3);
        assert_eq!(small - large, GRANULE);
        let late = linear.forget(small).unwrap();
        assert_eq!(linear.drop_context(1), [(large, GRANULE), (small, GRANULE)]);
        // Another block lies there before the place is given back.
        linear.add_block(small, GRANULE, 2);
        assert_eq!(linear.give_back(small, late), None);
        assert!(linear.has_any(small, small + 1) && !linear.has_any(large, large + GRANULE));
        assert_eq!(linear.at(other).map(|found| found.1.context), Some(2));
        assert!(linear.at(other + 1).is_none());
        assert_eq!(linear.drop_context(2).len(), 2);
        assert!(linear.free.is_empty() && linear.by_len.is_empty());
    }
}
