//! Where importers connect: a socket with a path.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::connect::address_of;
use super::{Channel, Deadline, PeerPolicy};
use crate::error::{Error, ErrorKind, Result};

/// A listening socket at a path in the file system.
///
/// The path is what crosses containers: mount its folder into the other one. The socket (and the
/// private folder, where one was made) is removed when the listener is dropped.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and inode of the socket, so that a file that took its place is left alone.
    file: (u64, u64),
    folder: Option<PathBuf>,
    policy: PeerPolicy,
    process: u32,
}

impl Listener {
    /// Listen at a random name in a folder that only this user can enter, in `XDG_RUNTIME_DIR` or
    /// else the folder for temporary files.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::System`].
    pub fn new() -> Result<Self> {
        let parent = std::env::var_os("XDG_RUNTIME_DIR")
            .map(PathBuf::from)
            .filter(|path| path.is_dir())
            .unwrap_or_else(std::env::temp_dir);
        let name = crate::random::bytes()?;
        let hex: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
        let folder = parent.join(format!("vmm-{hex}"));
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&folder)
            .map_err(|error| {
                let reason = error.to_string();
                Error::new(
                    ErrorKind::System,
                    format!("making the folder {}", folder.display()),
                    reason,
                )
            })?;
        let listener = Self::bind(folder.join("socket"), PeerPolicy::SameUser);
        match listener {
            Ok(mut listener) => {
                listener.folder = Some(folder);
                Ok(listener)
            }
            Err(error) => {
                let _ = std::fs::remove_dir(&folder);
                Err(error)
            }
        }
    }

    /// Listen at `path`. Who may connect is decided by the permissions of its folder and of the socket,
    /// and then by `policy`. The socket is made as any file is, which with the usual umask lets
    /// only this user write to it and so connect: for [`PeerPolicy::User`] and [`PeerPolicy::Anyone`]
    /// set its permissions, as by `std::fs::set_permissions(path, Permissions::from_mode(0o666))`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::System`], as where something is there already: a listener that is dropped removes
    /// its socket, a process that is killed leaves it behind.
    pub fn bind(path: impl AsRef<Path>, policy: PeerPolicy) -> Result<Self> {
        let given = path.as_ref();
        let attempt = || format!("listening at {}", given.display());
        let address = address_of(given, attempt)?;
        // The process may change its folder before the listener goes.
        let path = std::path::absolute(given).map_err(|error| {
            Error::os(attempt(), Errno::from_io_error(&error).unwrap_or(Errno::IO))
        })?;
        let path = path.as_path();
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
                .map_err(|errno| Error::os(attempt(), errno))?;
        rustix::net::bind(&socket, &address).map_err(|errno| {
            let error = Error::os(attempt(), errno);
            match errno {
                Errno::ADDRINUSE => error.advise(
                    "another process listens there, or one that was killed left the socket \
                     behind: in that case remove the file",
                ),
                Errno::NOENT => error.advise("create the folder first"),
                Errno::ACCESS => error.advise("the folder has to be writable for this user"),
                _ => error,
            }
        })?;
        let file = match std::fs::symlink_metadata(path) {
            Ok(file) if file.file_type().is_socket() => (file.dev(), file.ino()),
            _ => {
                return Err(Error::new(
                    ErrorKind::System,
                    attempt(),
                    "the socket vanished",
                ));
            }
        };
        let listener = Listener {
            socket,
            path: path.to_owned(),
            file,
            folder: None,
            policy,
            process: std::process::id(),
        };
        rustix::net::listen(&listener.socket, 128).map_err(|errno| Error::os(attempt(), errno))?;
        Ok(listener)
    }

    /// Talk to these peers only. Default: the same user.
    pub fn set_policy(&mut self, policy: PeerPolicy) {
        self.policy = policy;
    }

    /// Where importers connect.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Wait for the next peer. One that is gone again is passed over.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Timeout`]; [`ErrorKind::Peer`] for a peer that may not be talked to, which is
    /// [retryable](Error::is_retryable) here: the next one can be accepted.
    pub fn accept(&self, timeout: Duration) -> Result<Channel> {
        let attempt = "waiting for a peer";
        let deadline = Deadline::after(timeout);
        loop {
            match rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC) {
                // One that is gone already is as if it had not come.
                Ok(socket) => match Channel::from_fd(socket, self.policy) {
                    Ok(mut channel) if channel.is_broken() => channel.break_off(),
                    Err(error) if error.kind() == ErrorKind::Peer => return Err(error.of_one()),
                    result => return result,
                },
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(Errno::AGAIN) => {}
                Err(errno) => return Err(Error::os(attempt, errno)),
            }
            let Some(left) = deadline.timespec() else {
                return Err(Error::new(
                    ErrorKind::Timeout,
                    attempt,
                    "nobody connected in time",
                ));
            };
            match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&left)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::os(attempt, errno)),
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // A forked child has a copy of this value, and its parent still listens.
        if self.process != std::process::id() {
            return;
        }
        let still = std::fs::symlink_metadata(&self.path);
        if still.is_ok_and(|file| (file.dev(), file.ino()) == self.file) {
            let _ = std::fs::remove_file(&self.path);
        }
        if let Some(folder) = &self.folder {
            let _ = std::fs::remove_dir(folder);
        }
    }
}
