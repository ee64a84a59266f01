//! How large the chunks of a buffer are.

/// How large the chunks are that an allocator makes. Sizes are bytes, rounded up to the granularity.
///
/// What sharing a buffer costs is decided by the number of its chunks and hardly by its bytes, so by
/// default an allocation is one chunk, and a buffer that grows in small steps takes chunks of a
/// quarter of its size, and of 1 GiB from 4 GiB on: up to there n bytes grown in any number of steps
/// are O(log n) chunks, and then one for each GiB. At most a quarter more memory is mapped than was
/// asked for, and at most 1 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkPolicy {
    growth: bool,
    smallest: usize,
    most_ahead: usize,
    largest: usize,
}

impl ChunkPolicy {
    /// One chunk for an allocation; a growing buffer takes a quarter of its size at least, but no
    /// more than 1 GiB beyond what is asked for.
    pub const fn growing() -> Self {
        ChunkPolicy {
            growth: true,
            smallest: 0,
            most_ahead: 1 << 30,
            largest: usize::MAX,
        }
    }

    /// Exactly what is asked for, always: no memory is mapped ahead.
    pub const fn exact() -> Self {
        ChunkPolicy {
            growth: false,
            smallest: 0,
            most_ahead: 0,
            largest: usize::MAX,
        }
    }

    /// No chunk of a growing buffer is smaller than this.
    pub const fn smallest(mut self, bytes: usize) -> Self {
        self.smallest = bytes;
        self
    }

    /// A growing buffer maps at most this much beyond what is asked for.
    pub const fn most_ahead(mut self, bytes: usize) -> Self {
        self.most_ahead = bytes;
        self
    }

    /// No chunk is larger than this: more is split over several chunks.
    pub const fn largest(mut self, bytes: usize) -> Self {
        self.largest = bytes;
        self
    }

    /// How many bytes to add to a buffer of `mapped` bytes that needs `needed` more, and has room
    /// for `room` at its address. All are multiples of `granularity`.
    pub(crate) fn step(
        &self,
        mapped: usize,
        needed: usize,
        room: usize,
        granularity: usize,
    ) -> usize {
        if mapped == 0 {
            return needed;
        }
        let ahead = if self.growth {
            (mapped / 4).saturating_sub(needed)
        } else {
            0
        };
        let ahead = ahead
            .max(self.smallest.saturating_sub(needed))
            .min(self.most_ahead);
        let ahead = ahead / granularity * granularity;
        // Ahead of more than a process has addresses is as good as not ahead.
        let step = match mapped.saturating_add(needed).checked_add(ahead) {
            Some(total) if isize::try_from(total).is_ok() => needed + ahead,
            _ => needed,
        };
        // Staying at the address is worth more than a larger chunk.
        if needed <= room { step.min(room) } else { step }
    }

    /// Cut `bytes` into chunks.
    pub(crate) fn chunks(
        &self,
        bytes: usize,
        granularity: usize,
    ) -> impl Iterator<Item = usize> + use<> {
        let largest = (self.largest / granularity * granularity).max(granularity);
        let rest = bytes % largest;
        // Not a list: whoever asks for more memory than there is hears so at the first chunks.
        std::iter::repeat_n(largest, bytes / largest).chain((rest != 0).then_some(rest))
    }
}

impl Default for ChunkPolicy {
    fn default() -> Self {
        ChunkPolicy::growing()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const M: usize = 1 << 20;
    const G: usize = 2 * M;

    /// The number of chunks after growing to `total` in steps of `by`.
    fn grown(policy: ChunkPolicy, total: usize, by: usize) -> (usize, usize) {
        let (mut len, mut mapped, mut chunks) = (by, by, 1);
        while len < total {
            len += by;
            if len > mapped {
                let step = policy.step(mapped, len - mapped, usize::MAX, G);
                chunks += policy.chunks(step, G).count();
                mapped += step;
            }
            assert!(mapped >= len);
        }
        (chunks, mapped)
    }

    #[test]
    fn many_small_grows_make_logarithmically_many_chunks() {
        let policy = ChunkPolicy::growing().most_ahead(usize::MAX);
        let (small, _) = grown(policy, 1 << 30, G);
        let (large, mapped) = grown(policy, 1 << 36, G);
        assert!(small <= 40, "{small}");
        assert!(large <= small + 6 * 4, "{large} against {small}");
        assert!(mapped <= (1 << 36) / 4 * 5, "{mapped}");
    }

    #[test]
    fn by_default_there_is_a_chunk_for_each_gibibyte_at_most() {
        let (policy, gib) = (ChunkPolicy::growing(), 1 << 30);
        for by in [G, 16 * M] {
            let (first, _) = grown(policy, 4 * gib, by);
            let (all, mapped) = grown(policy, 1024 * gib, by);
            assert!(first <= 40, "{first}");
            assert!(all <= first + 1020, "{all} against {first}");
            assert!(mapped <= 1025 * gib, "{mapped}");
        }
    }

    #[test]
    fn an_exact_policy_maps_nothing_ahead() {
        assert_eq!(grown(ChunkPolicy::exact(), 1 << 30, G), (512, 1 << 30));
    }

    #[test]
    fn bounds_of_the_user_hold() {
        let policy = ChunkPolicy::growing().most_ahead(4 * M);
        assert_eq!(policy.step(1 << 30, G, usize::MAX, G), G + 4 * M);
        let policy = ChunkPolicy::exact().smallest(64 * M).most_ahead(usize::MAX);
        assert_eq!(policy.step(G, G, usize::MAX, G), 64 * M);
        assert_eq!(policy.step(G, G, 8 * M, G), 8 * M);
        assert_eq!(policy.step(G, 16 * M, 8 * M, G), 64 * M);
        let policy = ChunkPolicy::growing()
            .smallest(usize::MAX)
            .most_ahead(usize::MAX);
        assert_eq!(policy.step(G, G, usize::MAX, G), G);
        // That is a sum, but more than there are addresses.
        assert_eq!(
            policy
                .smallest(usize::MAX / 4 * 3)
                .step(G, G, usize::MAX, G),
            G
        );
        let policy = ChunkPolicy::exact().largest(5 * M);
        assert!(policy.chunks(10 * M, G).eq([4 * M, 4 * M, 2 * M]));
        assert!(policy.largest(0).chunks(4 * M, G).eq([G, G]));
    }
}
