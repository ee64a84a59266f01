//! What descriptors and updates begin with: which of them it is, of which version, how long, how many
//! chunks.

use super::bytes::Reader;
use super::{BufferId, VERSION, WireError};

/// Bytes that say which buffer and which generation a descriptor or an update is about.
pub(crate) const SUBJECT: usize = 40;

/// What a descriptor or an update is about, of which only the beginning is there. Nothing is known to
/// be right about it.
pub(crate) fn subject(begin: &[u8; SUBJECT]) -> Option<(BufferId, u64)> {
    let reader = &mut Reader::new(begin.get(16..)?);
    Some((BufferId(reader.array().ok()?), reader.u64().ok()?))
}

/// Reads the head of an input of `all` bytes, and returns the number of chunks. `flags` names the
/// field that has no meaning yet.
pub(super) fn decode(
    reader: &mut Reader<'_>,
    all: usize,
    magic: [u8; 4],
    flags: &'static str,
) -> Result<u32, WireError> {
    if reader.array()? != magic {
        return Err(WireError::Magic);
    }
    let version = reader.u16()?;
    if version != VERSION {
        return Err(WireError::Version { found: version });
    }
    reader.reserved::<2>(flags)?;
    let stated = reader.u32()?;
    if stated as usize != all {
        return Err(WireError::Length {
            stated: stated.into(),
            actual: all as u64,
        });
    }
    reader.u32()
}

/// Room for an encoding of `len` bytes, with the head in it.
pub(super) fn encode(len: usize, magic: [u8; 4], chunks: usize) -> Vec<u8> {
    let mut to = Vec::with_capacity(len);
    to.extend_from_slice(&magic);
    to.extend_from_slice(&VERSION.to_le_bytes());
    to.extend_from_slice(&[0; 2]);
    to.extend_from_slice(&(len as u32).to_le_bytes());
    to.extend_from_slice(&(chunks as u32).to_le_bytes());
    to
}
