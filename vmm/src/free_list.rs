//! The free places of one range, in order and coalesced.

use std::collections::BTreeMap;

/// Which bytes of `0..size` are free. Neighbouring free places are one, so that a range filled from
/// its start, as buffers do, is one entry however many chunks are in it.
#[derive(Debug)]
pub(crate) struct FreeList {
    /// Offset to length.
    free: BTreeMap<usize, usize>,
}

impl FreeList {
    pub(crate) fn new(size: usize) -> Self {
        FreeList {
            free: BTreeMap::from([(0, size)]),
        }
    }

    /// Take exactly these bytes; false, and nothing taken, unless all of them are free.
    pub(crate) fn take(&mut self, offset: usize, size: usize) -> bool {
        let Some(end) = offset.checked_add(size) else {
            return false;
        };
        let Some((&start, &len)) = self.free.range(..=offset).next_back() else {
            return false;
        };
        let free_end = start + len;
        if size == 0 || end > free_end {
            return false;
        }
        self.free.remove(&start);
        if start < offset {
            self.free.insert(start, offset - start);
        }
        if end < free_end {
            self.free.insert(end, free_end - end);
        }
        true
    }

    /// Give back bytes that were taken.
    pub(crate) fn give(&mut self, offset: usize, size: usize) {
        let (mut start, mut end) = (offset, offset + size);
        if let Some((&before, &len)) = self.free.range(..offset).next_back()
            && before + len == start
        {
            self.free.remove(&before);
            start = before;
        }
        if let Some(len) = self.free.remove(&end) {
            end += len;
        }
        self.free.insert(start, end - start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taken_places_cannot_be_taken_again() {
        let mut list = FreeList::new(100);
        assert!(list.take(10, 20));
        assert!(!list.take(10, 20));
        assert!(!list.take(0, 11));
        assert!(!list.take(29, 1));
        assert!(list.take(0, 10));
        assert!(list.take(30, 70));
        assert!(!list.take(99, 1));
    }

    #[test]
    fn places_past_the_end_and_overflows_are_refused() {
        let mut list = FreeList::new(100);
        assert!(!list.take(90, 11));
        assert!(!list.take(100, 1));
        assert!(!list.take(usize::MAX, 2));
        assert!(!list.take(5, 0));
        assert!(list.take(0, 100));
    }

    #[test]
    fn given_places_join_their_neighbours() {
        let mut list = FreeList::new(100);
        assert!(list.take(0, 100));
        list.give(0, 30);
        list.give(60, 40);
        assert_eq!(list.free.len(), 2);
        list.give(30, 30);
        assert_eq!(list.free, BTreeMap::from([(0, 100)]));
    }
}
