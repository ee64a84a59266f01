//! Asking the kernel who is at the other end: the only unsafe code of the crate.
//!
//! rustix asks too, but has no value for the process id 0, which is what the kernel says of a peer in
//! a PID namespace that is not visible here, as that of another container.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

/// The kernel's `struct ucred`, in which every bit pattern is a value.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Credentials {
    pub(super) pid: i32,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// Whose process connected the socket, or listened at its other end.
pub(super) fn of_peer(socket: impl AsFd) -> Result<Credentials, Errno> {
    let mut credentials = Credentials::default();
    let mut len = size_of::<Credentials>() as u32;
    let number = socket.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open, being borrowed; the kernel writes at most `len` bytes to a
    // value of that size, whatever they are, and `len` is a live `socklen_t`.
    let status = unsafe {
        getsockopt(
            number,
            SOL_SOCKET,
            SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut len,
        )
    };
    if status != 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    match len as usize == size_of::<Credentials>() {
        true => Ok(credentials),
        false => Err(Errno::INVAL),
    }
}

/// Whoever made the socket may have asked the kernel to send more along than what the peer sends:
/// credentials, a security label, a descriptor of the process. There is no room for it here, and
/// the descriptor would have no owner.
pub(super) fn take_no_extras(socket: impl AsFd) {
    let number = socket.as_fd().as_raw_fd();
    let off: c_int = 0;
    for name in [SO_PASSCRED, SO_PASSSEC, SO_PASSPIDFD] {
        // SAFETY: the descriptor is open, being borrowed; the kernel reads one live integer. A kernel
        // that does not know an option does not send what it stands for.
        unsafe {
            setsockopt(
                number,
                SOL_SOCKET,
                name,
                (&raw const off).cast(),
                size_of::<c_int>() as u32,
            )
        };
    }
}

// The same numbers on x86-64 and aarch64.
const SOL_SOCKET: c_int = 1;
const SO_PASSCRED: c_int = 16;
const SO_PEERCRED: c_int = 17;
const SO_PASSSEC: c_int = 34;
const SO_PASSPIDFD: c_int = 76;

unsafe extern "C" {
    /// Of the C library, which the standard library links.
    fn getsockopt(
        socket: c_int,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        len: *mut u32,
    ) -> c_int;

    fn setsockopt(
        socket: c_int,
        level: c_int,
        name: c_int,
        value: *const c_void,
        len: u32,
    ) -> c_int;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_whose_process_id_is_not_visible_is_no_error() {
        // Of a socket without a peer the kernel says what it says of one in another PID namespace.
        let socket = rustix::net::socket(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::SEQPACKET,
            None,
        );
        let credentials = of_peer(socket.unwrap()).unwrap();
        assert_eq!((credentials.pid, credentials.uid), (0, u32::MAX));
    }

    #[test]
    fn the_peer_of_an_own_socket_is_this_process() {
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let credentials = of_peer(socket).unwrap();
        assert_eq!(credentials.pid, std::process::id() as i32);
        assert_eq!(credentials.uid, rustix::process::geteuid().as_raw());
        assert_eq!(credentials.gid, rustix::process::getegid().as_raw());
    }

    #[test]
    fn what_is_no_socket_is_an_error() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(of_peer(file), Err(Errno::NOTSOCK));
    }
}
