//! How much is taken from a peer.

use std::time::Duration;

/// What an importer is willing to take of one buffer. The defaults are far above what buffers are, and
/// one such buffer takes a sixteenth of the 128 TiB of addresses that a process has: whoever serves
/// strangers counts the buffers too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Chunks of one buffer. Default: 65 536.
    pub chunks: u32,
    /// Bytes of one buffer. Default: 4 TiB.
    pub bytes: u64,
    /// Bytes of address space that a buffer's capacity may ask for. Default: 8 TiB.
    pub capacity: u64,
    /// The time that one buffer or update may take to arrive, from its first message on: until that
    /// one comes, [`Channel::set_timeout`](crate::Channel::set_timeout) holds. Default: 60 seconds.
    pub time: Duration,
}

impl Limits {
    /// The defaults.
    pub const fn new() -> Self {
        Limits {
            chunks: 65_536,
            bytes: 4 << 40,
            capacity: 8 << 40,
            time: Duration::from_secs(60),
        }
    }

    /// With this many chunks at most.
    #[must_use]
    pub const fn chunks(mut self, chunks: u32) -> Self {
        self.chunks = chunks;
        self
    }

    /// With this many bytes at most.
    #[must_use]
    pub const fn bytes(mut self, bytes: u64) -> Self {
        self.bytes = bytes;
        self
    }

    /// With this many bytes of address space at most.
    #[must_use]
    pub const fn capacity(mut self, bytes: u64) -> Self {
        self.capacity = bytes;
        self
    }

    /// With this much time for one buffer or update.
    #[must_use]
    pub const fn time(mut self, time: Duration) -> Self {
        self.time = time;
        self
    }

    /// The longest message that can describe so many chunks.
    pub(crate) fn message_bytes(&self) -> u64 {
        128 + u64::from(self.chunks) * 72
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits::new()
    }
}
