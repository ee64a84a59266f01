//! Fixed-width little-endian values, read without ever looking past the end.

use super::WireError;

/// Takes values off the front of a byte string.
#[derive(Clone, Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes, at: 0 }
    }

    /// How many bytes are left.
    pub(super) fn left(&self) -> usize {
        self.rest.len()
    }

    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], WireError> {
        let Some((front, rest)) = self.rest.split_at_checked(count) else {
            return Err(WireError::Truncated {
                at: self.at,
                needed: count,
                left: self.left(),
            });
        };
        self.rest = rest;
        self.at += count;
        Ok(front)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let Some((front, rest)) = self.rest.split_first_chunk() else {
            return Err(WireError::Truncated {
                at: self.at,
                needed: N,
                left: self.left(),
            });
        };
        self.rest = rest;
        self.at += N;
        Ok(*front)
    }

    pub(super) fn u8(&mut self) -> Result<u8, WireError> {
        self.array().map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self) -> Result<u16, WireError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn i32(&mut self) -> Result<i32, WireError> {
        self.array().map(i32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, WireError> {
        self.array().map(u64::from_le_bytes)
    }

    /// A field that has no meaning yet and has to be zero, so that it can have one later.
    pub(super) fn reserved<const N: usize>(
        &mut self,
        field: &'static str,
    ) -> Result<(), WireError> {
        match self.array::<N>()?.iter().all(|&byte| byte == 0) {
            true => Ok(()),
            false => Err(WireError::Reserved { field }),
        }
    }

    /// That nothing is left.
    pub(super) fn end(&self) -> Result<(), WireError> {
        match self.left() {
            0 => Ok(()),
            bytes => Err(WireError::TrailingBytes { bytes }),
        }
    }
}
