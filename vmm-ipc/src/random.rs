//! Bytes that nobody can guess, from the kernel.

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::{Error, Result};

/// 16 random bytes.
pub(crate) fn bytes() -> Result<[u8; 16]> {
    let mut bytes = [0; 16];
    loop {
        match getrandom(&mut bytes, GetRandomFlags::empty()) {
            Ok(16) => return Ok(bytes),
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(Error::os("asking the kernel for random bytes", errno)),
        }
    }
}
