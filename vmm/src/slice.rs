//! Parts of a buffer that keep the whole alive.

use std::fmt;
use std::ops::RangeBounds;

use bytemuck::{AnyBitPattern, NoUninit};

use crate::buffer::{Buffer, resolve};
use crate::close_error::CloseError;
use crate::copy::check_aligned;
use crate::error::Result;
use crate::stream::Stream;

/// A range of a buffer's bytes. It owns a share of the buffer's memory, so it can outlive the buffer
/// it was taken from.
pub struct Slice {
    buffer: Buffer,
    offset: usize,
    len: usize,
}

impl Buffer {
    /// A part of the buffer that keeps the whole of its memory alive.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfBounds`](crate::ErrorKind::OutOfBounds) for a range that is not inside the
    /// length.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Slice> {
        let (offset, len) = self.resolve(range)?;
        Ok(Slice::new(self.alias(), offset, len))
    }
}

impl Slice {
    pub(crate) fn new(buffer: Buffer, offset: usize, len: usize) -> Self {
        Slice {
            buffer,
            offset,
            len,
        }
    }

    /// The length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes from the start of the buffer.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The device address of the first byte.
    pub fn address(&self) -> u64 {
        self.buffer.address() + self.offset as u64
    }

    /// The buffer that it is a part of.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// A part of this part.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`](crate::ErrorKind::OutOfBounds).
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Slice> {
        let (offset, len) = resolve(range, self.len)?;
        Ok(Slice {
            buffer: self.buffer.alias(),
            offset: self.offset + offset,
            len,
        })
    }

    /// As [`Buffer::read`], from the start of this part.
    ///
    /// # Errors
    ///
    /// As [`Buffer::read`].
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        self.buffer.read(self.place(offset, to.len())?, to)
    }

    /// As [`Buffer::write`], from the start of this part.
    ///
    /// # Errors
    ///
    /// As [`Buffer::write`].
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        self.buffer.write(self.place(offset, from.len())?, from)
    }

    /// As [`Buffer::read_values`], from the start of this part.
    ///
    /// # Errors
    ///
    /// As [`Buffer::read_values`].
    pub fn read_values<T: AnyBitPattern + NoUninit>(
        &self,
        offset: usize,
        to: &mut [T],
    ) -> Result<()> {
        self.check_aligned::<T>(offset)?;
        self.read(offset, bytemuck::cast_slice_mut(to))
    }

    /// As [`Buffer::write_values`], from the start of this part.
    ///
    /// # Errors
    ///
    /// As [`Buffer::write_values`].
    pub fn write_values<T: NoUninit>(&self, offset: usize, from: &[T]) -> Result<()> {
        self.check_aligned::<T>(offset)?;
        self.write(offset, bytemuck::cast_slice(from))
    }

    /// Set every byte of this part. As [`Buffer::fill`].
    ///
    /// # Errors
    ///
    /// As [`Buffer::fill`].
    pub fn fill(&self, value: u8) -> Result<()> {
        self.buffer.fill(self.offset, self.len, value)
    }

    /// Set every byte of this part on a stream. As [`Buffer::fill_on`].
    ///
    /// # Errors
    ///
    /// As [`Buffer::fill_on`].
    pub fn fill_on(&self, stream: &Stream, value: u8) -> Result<()> {
        self.buffer.fill_on(stream, self.offset, self.len, value)
    }

    /// Give up this owner and hear what could not be released. As [`Buffer::close`].
    ///
    /// # Errors
    ///
    /// As [`Buffer::close`].
    pub fn close(self) -> std::result::Result<(), CloseError> {
        self.buffer.close()
    }

    /// Copy this part to `offset` of another buffer. As [`Buffer::copy_to`].
    ///
    /// # Errors
    ///
    /// As [`Buffer::copy_to`].
    pub fn copy_to(&self, to: &Buffer, offset: usize) -> Result<()> {
        self.buffer.copy_to(self.offset, to, offset, self.len)
    }

    /// It is the buffer's offset that has to be aligned: addresses of buffers are.
    fn check_aligned<T>(&self, offset: usize) -> Result<()> {
        check_aligned::<T>(self.offset.wrapping_add(offset), || {
            format!("{offset} of a part that begins at {}", self.offset)
        })
    }

    /// An offset of this part as one of the buffer.
    fn place(&self, offset: usize, len: usize) -> Result<usize> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.offset + offset),
            _ => Err(crate::buffer::out_of_bounds(offset, len, self.len)),
        }
    }
}

impl fmt::Debug for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slice")
            .field("offset", &self.offset)
            .field("len", &self.len)
            .field("buffer", &self.buffer)
            .finish()
    }
}
