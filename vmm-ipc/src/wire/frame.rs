//! Frames: what one send carries. A message is one frame or, where it is long, several.

use super::bytes::Reader;
use super::{MessageKind, WireError};

/// Bytes before the payload.
pub const FRAME_HEADER: usize = 16;
/// Bytes of payload in one frame at most, so that a frame fits a packet of a socket with the
/// smallest buffers that Linux gives by default.
pub const MAX_PAYLOAD: usize = 32 * 1024;
/// File descriptors in one frame at most: the kernel's own limit (`SCM_MAX_FD`).
pub const MAX_FDS: usize = 253;

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What the message is.
    pub kind: MessageKind,
    /// How many file descriptors come with the frame: at most [`MAX_FDS`].
    pub fds: u16,
    /// Bytes of payload in this frame: at most [`MAX_PAYLOAD`].
    pub payload: u32,
    /// Bytes of payload in the whole message.
    pub total: u32,
    /// Where this frame's payload belongs in the message's.
    pub offset: u32,
}

impl Frame {
    /// The only way to cut `total` bytes: every frame but the last is full.
    pub fn cut(kind: MessageKind, total: u32, fds: u16) -> impl Iterator<Item = Frame> {
        let frames = (total as usize).div_ceil(MAX_PAYLOAD).max(1);
        (0..frames).map(move |index| {
            let offset = (index * MAX_PAYLOAD) as u32;
            let payload = (total - offset).min(MAX_PAYLOAD as u32);
            // Descriptors come with short messages only, and so with the first frame.
            Frame {
                kind,
                fds: if index == 0 { fds } else { 0 },
                payload,
                total,
                offset,
            }
        })
    }

    /// Read a header. What follows it has to be `payload` bytes.
    ///
    /// # Errors
    ///
    /// Says what is wrong with the bytes.
    pub fn decode(bytes: &[u8; FRAME_HEADER]) -> Result<Self, WireError> {
        let reader = &mut Reader::new(bytes);
        let kind = MessageKind::decode(reader.u8()?)?;
        reader.reserved::<1>("the flags field of a frame")?;
        let (fds, payload, total, offset) =
            (reader.u16()?, reader.u32()?, reader.u32()?, reader.u32()?);
        if fds as usize > MAX_FDS {
            let (found, limit) = (fds.into(), MAX_FDS as u64);
            return Err(WireError::Limit {
                what: "file descriptors in a frame",
                found,
                limit,
            });
        }
        let frame = Frame {
            kind,
            fds,
            payload,
            total,
            offset,
        };
        let expected = total
            .checked_sub(offset)
            .map(|left| left.min(MAX_PAYLOAD as u32));
        if expected != Some(payload) || !(offset as usize).is_multiple_of(MAX_PAYLOAD) {
            let (stated, actual) = (total.into(), u64::from(offset) + u64::from(payload));
            return Err(WireError::Length { stated, actual });
        }
        if offset != 0 && payload == 0 {
            return Err(WireError::Length {
                stated: total.into(),
                actual: offset.into(),
            });
        }
        if offset != 0 && fds != 0 {
            return Err(WireError::Reserved {
                field: "the descriptor count of a later frame",
            });
        }
        Ok(frame)
    }

    /// The bytes.
    pub fn encode(&self) -> [u8; FRAME_HEADER] {
        let mut bytes = [0; FRAME_HEADER];
        bytes[0] = self.kind.encode();
        bytes[2..4].copy_from_slice(&self.fds.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.payload.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.total.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes
    }

    /// Whether the message ends with this frame.
    pub fn is_last(&self) -> bool {
        self.offset.checked_add(self.payload) == Some(self.total)
    }
}
