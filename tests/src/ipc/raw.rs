//! The protocol spoken by hand, so that it can be spoken wrongly.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
    SocketType, recv, sendmsg, socketpair, sockopt,
};
use vmm_ipc::{Channel, Error, ImportOptions, Imported, PeerPolicy};

use crate::{Context, Failure};

/// How long the importer waits for a hostile peer.
pub const DEADLINE: Duration = Duration::from_millis(400);

pub const HELLO: u8 = 1;
pub const OFFER: u8 = 2;
pub const UPDATE: u8 = 3;
pub const HANDLES: u8 = 4;
pub const ACCEPTED: u8 = 5;
pub const REFUSED: u8 = 6;
pub const RETIRED: u8 = 7;

/// A frame that holds a whole message.
pub fn frame(kind: u8, fds: usize, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_le_bytes();
    let mut bytes = vec![kind, 0];
    bytes.extend((fds as u16).to_le_bytes());
    bytes.extend(len);
    bytes.extend(len);
    bytes.extend([0; 4]);
    bytes.extend(payload);
    bytes
}

pub fn hello() -> Vec<u8> {
    frame(HELLO, 0, b"VMM-IPC\0\x01\0\0\0\0\0\0\0")
}

/// The message that `fds` file descriptors come with.
pub fn handles(descriptor: &[u8], first: u32, fds: u32) -> Vec<u8> {
    let mut payload = descriptor[16..32].to_vec();
    payload.extend(first.to_le_bytes());
    payload.extend(fds.to_le_bytes());
    frame(HANDLES, fds as usize, &payload)
}

/// One end of a socket, and a channel's worth of mischief.
pub struct Raw(pub OwnedFd);

impl Raw {
    /// Sends bytes and file descriptors in one go. A peer that has hung up is none of our business.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
        let _ = sendmsg(
            &self.0,
            &[IoSlice::new(bytes)],
            &mut control,
            SendFlags::NOSIGNAL,
        );
    }

    /// The kind and the payload of the next frame, waited for; none where the other side hung up. File
    /// descriptors that come with it are let go of.
    pub fn receive(&self) -> Option<(u8, Vec<u8>)> {
        let stream = sockopt::socket_type(&self.0) == Ok(SocketType::STREAM);
        let (mut bytes, mut got) = (vec![0; 16 + 32 * 1024], 0);
        loop {
            let header = bytes.first_chunk().filter(|_: &&[u8; 16]| got >= 16);
            let stated = header.map(|h| u32::from_le_bytes([h[4], h[5], h[6], h[7]]) as usize);
            let end = match stated {
                Some(payload) if got >= 16 + payload => {
                    return Some((bytes[0], bytes[16..16 + payload].to_vec()));
                }
                _ if !stream => bytes.len(),
                Some(payload) => 16 + payload,
                None => 16,
            };
            match recv(&self.0, &mut bytes[got..end], RecvFlags::empty()) {
                Ok((count, _)) if count > 0 => got += count,
                _ => return None,
            }
        }
    }
}

/// Both ends of a socket.
pub fn sockets(kind: SocketType) -> Result<(OwnedFd, OwnedFd), Failure> {
    let (a, b) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    Ok((a, b))
}

/// Imports from a peer that does as `script` says. Whatever comes of it comes in time, and the peer
/// is there until then unless the script drops it.
pub fn import_from(
    context: &Context,
    kind: SocketType,
    script: impl FnOnce(Raw) -> Option<Raw> + Send,
) -> Result<Result<Imported, Error>, Failure> {
    let (ours, theirs) = sockets(kind)?;
    let driver = context.driver()?;
    std::thread::scope(|scope| {
        let peer = scope.spawn(move || script(Raw(theirs)));
        let begin = Instant::now();
        let result = Channel::from_fd(ours, PeerPolicy::SameUser).and_then(|mut channel| {
            channel.set_timeout(DEADLINE);
            let limits = vmm_ipc::Limits::new().time(DEADLINE);
            let options = ImportOptions::read_write().limits(limits);
            options.receive(driver, &mut channel)
        });
        let took = begin.elapsed();
        let _peer = peer
            .join()
            .map_err(|_| Failure::new("the hostile peer panicked"))?;
        if took > 3 * DEADLINE {
            return Err(Failure::new(format!("it took {took:?}")));
        }
        Ok(result)
    })
}

/// The file descriptors as they are sent.
pub fn borrowed(fds: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    fds.iter().map(AsFd::as_fd).collect()
}
