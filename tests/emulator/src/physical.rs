//! Physical memory: a sealed memory file with its record behind the data.

use crate::code::{Code, Result};
use crate::fd;
use crate::file_size::unbounded;
use crate::host_span::HostSpan;
use crate::record::{RECORD_BYTES, Record};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    FileType, MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate,
    memfd_create,
};
use rustix::io::{Errno, pread, pwrite};

/// Every memory file has this name, as `/proc/self/fd` shows it.
pub(crate) const FILE_NAME: &str = "vmm-emulator";
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);
const BOUNCE_BYTES: usize = 256 << 10;

/// One physical allocation, however many handles and mappings name it.
#[derive(Debug)]
pub(crate) struct Physical {
    file: OwnedFd,
    /// Tells memory apart where handle values differ: each import gives a new handle.
    pub inode: u64,
    pub record: Record,
}

impl Physical {
    pub fn create(record: Record) -> Result<Self> {
        let file = fd::open_high(|| {
            let file = memfd_create(FILE_NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
            let length = record.size.checked_add(RECORD_BYTES).ok_or(Errno::FBIG)?;
            unbounded(|| {
                ftruncate(&file, length)?;
                write_all(file.as_fd(), record.size, &record.encode())
            })?;
            fcntl_add_seals(&file, SEALS)?;
            Ok(file)
        })
        .map_err(|_| Code::OUT_OF_MEMORY)?;
        let inode = fstat(&file).map_err(|_| Code::OPERATING_SYSTEM)?.st_ino;
        Ok(Self {
            file,
            inode,
            record,
        })
    }

    /// What an fd refers to, when it is one of ours; the driver's answer to anything else.
    pub fn inspect(fd: BorrowedFd<'_>) -> Result<(u64, Record)> {
        let foreign = |_| Code::UNKNOWN;
        let stat = fstat(fd).map_err(foreign)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile
            || !fcntl_get_seals(fd).map_err(foreign)?.contains(SEALS)
        {
            return Err(Code::UNKNOWN);
        }
        let length = u64::try_from(stat.st_size).map_err(|_| Code::UNKNOWN)?;
        let size = length.checked_sub(RECORD_BYTES).ok_or(Code::UNKNOWN)?;
        let mut bytes = [0; Record::encoded_len()];
        read_all(fd, size, &mut bytes).map_err(foreign)?;
        let record = Record::decode(&bytes).ok_or(Code::UNKNOWN)?;
        if record.size != size || size == 0 {
            return Err(Code::UNKNOWN);
        }
        Ok((stat.st_ino, record))
    }

    pub fn import(fd: BorrowedFd<'_>) -> Result<Self> {
        let (inode, record) = Self::inspect(fd)?;
        let file = fd::dup_high(fd).map_err(|_| Code::OPERATING_SYSTEM)?;
        Ok(Self {
            file,
            inode,
            record,
        })
    }

    /// A new descriptor for the program, inside its own limit.
    pub fn export(&self) -> Result<OwnedFd> {
        rustix::io::fcntl_dupfd_cloexec(&self.file, 0).map_err(|_| Code::OPERATING_SYSTEM)
    }

    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Errors with `INVALID_VALUE` where the program's memory cannot be written.
    pub fn read_span(&self, offset: u64, into: HostSpan) -> Result {
        into.read_from(self.file(), offset).map_err(io_code)
    }

    /// The same where it cannot be read.
    pub fn write_span(&self, offset: u64, from: HostSpan) -> Result {
        unbounded(|| from.write_to(self.file(), offset)).map_err(io_code)
    }

    pub fn write(&self, offset: u64, from: &[u8]) -> Result {
        unbounded(|| write_all(self.file(), offset, from)).map_err(io_code)
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result {
        read_all(self.file(), offset, into).map_err(io_code)
    }

    /// Repeats `pattern`, whose length divides `len`.
    pub fn fill(&self, offset: u64, len: u64, pattern: &[u8]) -> Result {
        let bounce_len = usize::try_from(len)
            .unwrap_or(BOUNCE_BYTES)
            .min(BOUNCE_BYTES);
        let bounce: Vec<u8> = pattern.iter().copied().cycle().take(bounce_len).collect();
        let mut done = 0;
        while done < len {
            let step = (len - done).min(bounce.len() as u64);
            let bytes = usize::try_from(step)
                .ok()
                .and_then(|step| bounce.get(..step))
                .ok_or(Code::UNKNOWN)?;
            self.write(offset + done, bytes)?;
            done += step;
        }
        Ok(())
    }

    pub fn copy(from: &Self, from_offset: u64, to: &Self, to_offset: u64, len: u64) -> Result {
        let mut bounce = vec![
            0;
            usize::try_from(len)
                .unwrap_or(BOUNCE_BYTES)
                .min(BOUNCE_BYTES)
        ];
        let mut done = 0;
        while done < len {
            let step = (len - done).min(bounce.len() as u64);
            let bytes = usize::try_from(step)
                .ok()
                .and_then(|step| bounce.get_mut(..step))
                .ok_or(Code::UNKNOWN)?;
            from.read(from_offset + done, bytes)?;
            to.write(to_offset + done, bytes)?;
            done += step;
        }
        Ok(())
    }
}

fn io_code(error: Errno) -> Code {
    match error {
        Errno::FAULT => Code::INVALID_VALUE,
        Errno::NOSPC | Errno::NOMEM => Code::OUT_OF_MEMORY,
        _ => Code::OPERATING_SYSTEM,
    }
}

fn read_all(fd: BorrowedFd<'_>, mut offset: u64, mut into: &mut [u8]) -> rustix::io::Result<()> {
    while !into.is_empty() {
        match pread(fd, &mut *into, offset) {
            Ok(0) => return Err(Errno::IO),
            Ok(n) => {
                offset += n as u64;
                into = into.get_mut(n..).unwrap_or_default();
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn write_all(fd: BorrowedFd<'_>, mut offset: u64, mut from: &[u8]) -> rustix::io::Result<()> {
    while !from.is_empty() {
        match pwrite(fd, from, offset) {
            Ok(0) => return Err(Errno::IO),
            Ok(n) => {
                offset += n as u64;
                from = from.get(n..).unwrap_or_default();
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
