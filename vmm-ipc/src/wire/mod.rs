//! The bytes that travel, and nothing else: no socket, no CUDA.
//!
//! `docs/protocol.md` in the repository specifies every byte; this module is its implementation.
//! Values are fixed-width and little-endian, every value has one encoding, and a decoder reads
//! nothing past its input, allocates nothing that the input does not pay for, and refuses what it
//! does not know.
#![forbid(unsafe_code)]

mod bytes;
mod chunks;
mod descriptor;
mod error;
mod frame;
#[cfg(test)]
mod golden;
mod head;
mod message;
mod update;

pub use self::chunks::{HandleKind, Place};
pub use self::descriptor::Descriptor;
pub(crate) use self::descriptor::Fields as DescriptorFields;
pub use self::error::WireError;
pub use self::frame::{FRAME_HEADER, Frame, MAX_FDS, MAX_PAYLOAD};
pub(crate) use self::head::{SUBJECT, subject};
pub use self::message::{Hello, Message, MessageKind, Reason, Refusal};
pub(crate) use self::update::Fields as UpdateFields;
pub use self::update::Update;

/// The version of the format that this crate reads and writes.
pub const VERSION: u16 = 1;

/// No header is longer, so that lengths fit their fields.
const MAX_HEADER: usize = 128;

/// 16 random bytes that name a buffer among all buffers that were ever exported.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub [u8; 16]);

impl std::fmt::Display for BufferId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for BufferId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}
