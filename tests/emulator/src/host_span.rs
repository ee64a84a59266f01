//! The program's own memory, as C gave it.

use crate::code::{Code, Result};
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

/// A stretch of the program's memory. No reference to it is ever made: the program may write there
/// meanwhile, and where it passed a wrong address there may be nothing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostSpan {
    address: usize,
    len: usize,
}

impl HostSpan {
    /// `INVALID_VALUE` for null and what no memory can be.
    ///
    /// # Safety
    /// Until the work that it is for is over, the bytes may be read, and written where they are what
    /// is copied to.
    pub unsafe fn new(address: u64, len: u64) -> Result<Self> {
        let narrow = |value: u64| usize::try_from(value).map_err(|_| Code::INVALID_VALUE);
        let span = Self {
            address: narrow(address)?,
            len: narrow(len)?,
        };
        let end = span.address.checked_add(span.len);
        if span.address == 0 || end.is_none_or(|end| end > isize::MAX as usize) {
            return Err(Code::INVALID_VALUE);
        }
        Ok(span)
    }

    pub fn address(self) -> u64 {
        self.address as u64
    }

    /// A part that lies inside.
    pub fn part(self, offset: u64, len: u64) -> Self {
        // The end of the whole was checked.
        Self {
            address: self.address + offset as usize,
            len: len as usize,
        }
    }

    /// The bytes as they are now.
    pub fn to_vec(self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        bytes
            .try_reserve_exact(self.len)
            .map_err(|_| Code::OUT_OF_MEMORY)?;
        let from = with_exposed_provenance::<u8>(self.address);
        // SAFETY: `new` says that the bytes may be read; there is room for them, which is new.
        unsafe {
            from.copy_to_nonoverlapping(bytes.as_mut_ptr(), self.len);
            bytes.set_len(self.len);
        }
        Ok(bytes)
    }

    /// Copies as many bytes as it has from another one, which may overlap.
    pub fn copy_from(self, other: Self) {
        let to = with_exposed_provenance_mut::<u8>(self.address);
        let from = with_exposed_provenance::<u8>(other.address);
        // SAFETY: `new` says that the one may be written and the other be read.
        unsafe { to.copy_from(from, self.len.min(other.len)) };
    }

    /// Copies from bytes of ours.
    pub fn copy_from_slice(self, bytes: &[u8]) {
        let to = with_exposed_provenance_mut::<u8>(self.address);
        // SAFETY: `new` says that it may be written, and nothing of the program overlaps ours.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), self.len.min(bytes.len())) };
    }

    /// Fills it from a file; `FAULT` where it is no memory.
    pub fn read_from(mut self, file: BorrowedFd<'_>, mut offset: u64) -> rustix::io::Result<()> {
        while self.len > 0 {
            let to = with_exposed_provenance_mut::<libc::c_void>(self.address);
            // SAFETY: an open file; the kernel writes where `new` says that it may, and looks itself
            // whether there is memory.
            let read = unsafe { libc::pread64(file.as_raw_fd(), to, self.len, offset_of(offset)?) };
            self.go_on(read, &mut offset)?;
        }
        Ok(())
    }

    /// Writes it to a file; `FAULT` where it is no memory.
    pub fn write_to(mut self, file: BorrowedFd<'_>, mut offset: u64) -> rustix::io::Result<()> {
        while self.len > 0 {
            let from = with_exposed_provenance::<libc::c_void>(self.address);
            // SAFETY: as in `read_from`, for reading.
            let written =
                unsafe { libc::pwrite64(file.as_raw_fd(), from, self.len, offset_of(offset)?) };
            self.go_on(written, &mut offset)?;
        }
        Ok(())
    }

    /// What is left after a call that did a part.
    fn go_on(&mut self, done: isize, offset: &mut u64) -> rustix::io::Result<()> {
        match usize::try_from(done) {
            Ok(0) => Err(Errno::IO),
            Ok(done) => {
                *self = self.part(done as u64, (self.len - done) as u64);
                *offset += done as u64;
                Ok(())
            }
            Err(_) => match Errno::from_io_error(&std::io::Error::last_os_error()) {
                Some(Errno::INTR) => Ok(()),
                other => Err(other.unwrap_or(Errno::IO)),
            },
        }
    }
}

fn offset_of(offset: u64) -> rustix::io::Result<i64> {
    i64::try_from(offset).map_err(|_| Errno::FBIG)
}
