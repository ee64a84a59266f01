//! Connecting to a listener.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::{Channel, DEFAULT_TIMEOUT, Deadline, PeerPolicy};
use crate::error::{Error, ErrorKind, Result};

/// How long to pause before a full listener is tried again.
const RETRY: Duration = Duration::from_millis(2);

impl Channel {
    /// Connect to the [`Listener`](crate::Listener) at `path`, as the same user. Waits for a busy one for
    /// [`DEFAULT_TIMEOUT`] at most.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Hangup`] where nobody listens; [`ErrorKind::Peer`] where another user does;
    /// [`ErrorKind::Timeout`].
    pub fn connect(path: impl AsRef<Path>) -> Result<Self> {
        Self::connect_with(path, PeerPolicy::SameUser)
    }

    /// Connect to the [`Listener`](crate::Listener) at `path`, if the process there is who it should be.
    ///
    /// # Errors
    ///
    /// As [`Channel::connect`].
    pub fn connect_with(path: impl AsRef<Path>, policy: PeerPolicy) -> Result<Self> {
        let path = path.as_ref();
        let attempt = || format!("connecting to {}", path.display());
        let address = address_of(path, attempt)?;
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )
        .map_err(|errno| Error::os(attempt(), errno))?;
        let deadline = Deadline::after(DEFAULT_TIMEOUT);
        loop {
            match rustix::net::connect(&socket, &address) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                // The listener's queue is full, and nothing tells when it no longer is.
                Err(Errno::AGAIN) if deadline.left().is_some() => std::thread::sleep(RETRY),
                Err(Errno::AGAIN) => {
                    let reason =
                        "many others wait for the same listener, and it did not accept in time";
                    return Err(Error::new(ErrorKind::Timeout, attempt(), reason));
                }
                Err(Errno::NOENT | Errno::CONNREFUSED) => {
                    let is_other =
                        std::fs::metadata(path).is_ok_and(|file| !file.file_type().is_socket());
                    if is_other {
                        let reason = "what is there is no socket";
                        return Err(Error::new(ErrorKind::InvalidArgument, attempt(), reason));
                    }
                    let reason = "nobody listens there";
                    return Err(Error::new(ErrorKind::Hangup, attempt(), reason)
                        .advise("start the process that listens first, and name the same path"));
                }
                Err(errno @ Errno::PROTOTYPE) => {
                    return Err(Error::os(attempt(), errno).advise(
                        "what listens there is no `Listener`: connect in its own way, and give \
                         the socket to `Channel::from_fd`",
                    ));
                }
                Err(errno @ Errno::ACCESS) => {
                    return Err(Error::os(attempt(), errno).advise(
                        "to connect takes write permission on the socket, and to enter its \
                         folders: whoever listens there gives it this user (`chown`), or a group \
                         of this user's (`chgrp`, `chmod g+w`)",
                    ));
                }
                Err(errno) => return Err(Error::os(attempt(), errno)),
            }
        }
        Self::from_fd(socket, policy)
    }
}

/// The address of a socket at `path`.
pub(super) fn address_of(path: &Path, attempt: impl Fn() -> String) -> Result<SocketAddrUnix> {
    if path.as_os_str().is_empty() {
        let reason = "the path is empty";
        return Err(Error::new(ErrorKind::InvalidArgument, attempt(), reason));
    }
    // One byte less than the kernel takes, for peers in C that end the path by a zero.
    let short = path.as_os_str().len() <= MOST_PATH;
    let address = match short {
        true => SocketAddrUnix::new(path),
        false => Err(Errno::NAMETOOLONG),
    };
    address.map_err(|errno| {
        let error = Error::os(attempt(), errno);
        match errno {
            Errno::NAMETOOLONG => error.advise("a socket's path has at most 107 bytes"),
            _ => error,
        }
    })
}

/// Bytes of a socket's path.
const MOST_PATH: usize = 107;
