//! Who is at the other end, and who may be.

use std::os::fd::AsFd;

use super::credentials;
use crate::error::{Error, ErrorKind, Result};

/// The process at the other end, as the kernel knew it when the socket was connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerCredentials {
    /// The process id, in this process's PID namespace; 0 where it is not visible there.
    pub pid: i32,
    /// The user id.
    pub uid: u32,
    /// The group id.
    pub gid: u32,
}

/// Whom a channel talks to. Checked before anything is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerPolicy {
    /// Processes of the same (effective) user id as this one.
    #[default]
    SameUser,
    /// Processes of this user id.
    User(u32),
    /// Anybody who could connect: the permissions of the socket's path decide.
    Anyone,
}

impl PeerCredentials {
    pub(crate) fn of(socket: impl AsFd) -> Result<Self> {
        let peer = credentials::of_peer(socket)
            .map_err(|errno| Error::os("asking for the peer's credentials", errno))?;
        Ok(PeerCredentials {
            pid: peer.pid,
            uid: peer.uid,
            gid: peer.gid,
        })
    }

    pub(crate) fn check(&self, policy: PeerPolicy) -> Result<()> {
        let wanted = match policy {
            PeerPolicy::Anyone => return Ok(()),
            PeerPolicy::User(uid) => uid,
            PeerPolicy::SameUser => rustix::process::geteuid().as_raw(),
        };
        if self.uid == wanted {
            return Ok(());
        }
        let reason = format!(
            "the peer runs as user {} and only user {wanted} may",
            self.uid
        );
        Err(Error::new(ErrorKind::Peer, "opening a channel", reason)
            .advise("allow it with `PeerPolicy::User` or `PeerPolicy::Anyone`, if that is meant"))
    }
}
