//! One frame at a time over a Unix socket, with file descriptors, by a deadline.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketType, recvmsg, sendmsg, sockopt,
};

use super::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::fd_limit;
use crate::wire::{FRAME_HEADER, Frame, MAX_FDS, WireError};

/// A connected socket that does not block.
#[derive(Debug)]
pub(super) struct Socket {
    fd: OwnedFd,
    /// Whether the socket keeps the bounds between packets.
    packets: bool,
    /// Where the payload of a packet arrives, which is as long as it turns out to be.
    room: Vec<u8>,
    /// Whether this side spoke last, so that there is nothing to receive before the peer has had its
    /// turn.
    spoke: bool,
    /// Whether the last send ended in the middle of a frame.
    midway: bool,
    /// What has come of the next frame, on a stream.
    partial: Partial,
    /// Whether the kernel has told that the peer went without having read everything.
    reset: bool,
}

/// A frame of which not all has come.
#[derive(Debug, Default)]
struct Partial {
    header: [u8; FRAME_HEADER],
    frame: Option<Frame>,
    /// Bytes of the header, then of the payload.
    got: usize,
    /// Descriptors that came with it.
    fds: usize,
    cut_off: bool,
}

impl Socket {
    pub(super) fn new(fd: OwnedFd) -> Result<Self> {
        let attempt = "taking over a socket";
        let kind = sockopt::socket_type(&fd).map_err(|e| Error::os(attempt, e))?;
        let domain = sockopt::socket_domain(&fd).map_err(|e| Error::os(attempt, e))?;
        let packets = match kind {
            SocketType::SEQPACKET => true,
            SocketType::STREAM => false,
            _ => {
                let reason = "only SEQPACKET and STREAM sockets carry this protocol";
                return Err(Error::new(ErrorKind::InvalidArgument, attempt, reason));
            }
        };
        if domain != rustix::net::AddressFamily::UNIX {
            let reason = "only Unix sockets carry file descriptors";
            return Err(Error::new(ErrorKind::InvalidArgument, attempt, reason));
        }
        if rustix::net::getpeername(&fd) == Err(Errno::NOTCONN) {
            let reason = "the socket is not connected";
            return Err(Error::new(ErrorKind::InvalidArgument, attempt, reason));
        }
        let flags = rustix::fs::fcntl_getfl(&fd).map_err(|e| Error::os(attempt, e))?;
        rustix::fs::fcntl_setfl(&fd, flags | rustix::fs::OFlags::NONBLOCK)
            .map_err(|e| Error::os(attempt, e))?;
        rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)
            .map_err(|e| Error::os(attempt, e))?;
        let room = if packets {
            vec![0; crate::wire::MAX_PAYLOAD]
        } else {
            Vec::new()
        };
        Ok(Socket {
            fd,
            packets,
            room,
            spoke: false,
            midway: false,
            partial: Partial::default(),
            reset: false,
        })
    }

    pub(super) fn send(
        &mut self,
        frame: &Frame,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
        deadline: Deadline,
    ) -> Result<()> {
        if fds.len() > MAX_FDS {
            return Err(too_many());
        }
        // Whoever has a duplicate of the socket can make it blocking again.
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let header = frame.encode();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut sent = 0;
        self.spoke = true;
        self.midway = false;
        let total = header.len() + payload.len();
        while sent < total {
            let mut control = SendAncillaryBuffer::new(&mut space);
            // They go with the first byte, and only once.
            if sent == 0 && !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
                return Err(too_many());
            }
            let rest = [
                IoSlice::new(header.get(sent..).unwrap_or_default()),
                IoSlice::new(
                    payload
                        .get(sent.saturating_sub(header.len())..)
                        .unwrap_or_default(),
                ),
            ];
            match sendmsg(&self.fd, &rest, &mut control, flags) {
                Ok(count) => {
                    sent += count;
                    self.midway = sent < total;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, deadline, SENDING)?,
                // Nothing tells when these pass, so it is tried again until the deadline.
                Err(errno @ (Errno::TOOMANYREFS | Errno::NOBUFS)) => {
                    if deadline.left().is_none_or(|left| left <= PAUSE) {
                        return Err(Error::os(SENDING, errno));
                    }
                    std::thread::sleep(PAUSE);
                }
                Err(errno) => return Err(Error::os(SENDING, errno)),
            }
        }
        Ok(())
    }

    /// Receive one frame, and whether descriptors that came with it were cut off: none is kept then.
    /// The payload is appended to `payload`, the descriptors to `fds`. Where the deadline passes in the
    /// middle, the next call goes on there and wants the same two.
    ///
    /// `bound` is asked, once the header is known, how many bytes the whole message may have.
    pub(super) fn receive(
        &mut self,
        payload: &mut Vec<u8>,
        fds: &mut Vec<OwnedFd>,
        deadline: Deadline,
        bound: &dyn Fn(&Frame) -> Result<()>,
    ) -> Result<(Frame, bool)> {
        if std::mem::take(&mut self.spoke) && deadline.left().is_some() {
            // One call less than to try, fail, wait, and try again.
            self.wait(PollFlags::IN, deadline, RECEIVING)?;
        }
        let mut partial = std::mem::take(&mut self.partial);
        let result = match self.packets {
            true => self.packet(&mut partial, payload, fds, deadline, bound),
            false => self.piece_by_piece(&mut partial, payload, fds, deadline, bound),
        };
        let frame = match result {
            Ok(frame) => frame,
            Err(error) => {
                self.partial = partial;
                return Err(error);
            }
        };
        if partial.cut_off {
            fds.truncate(fds.len().saturating_sub(partial.fds));
        } else if partial.fds != usize::from(frame.fds) {
            let reason = format!(
                "{} file descriptors came where the message states {}",
                partial.fds, frame.fds
            );
            return Err(Error::new(ErrorKind::Protocol, RECEIVING, reason));
        }
        Ok((frame, partial.cut_off))
    }

    /// Whether the last send ended in the middle of a frame.
    pub(super) fn is_midway(&self) -> bool {
        self.midway
    }

    /// The first bytes of the payload of a frame that was longer than `receive` was to take. They are
    /// sent with the header, so that nothing is waited for.
    pub(super) fn head_of_refused<const N: usize>(&mut self) -> Option<[u8; N]> {
        if self.packets {
            return self.room.first_chunk().copied();
        }
        let (mut head, mut got, mut fds) = ([0; N], 0, Vec::new());
        while let Some(place) = head.get_mut(got..).filter(|place| !place.is_empty()) {
            let came = self.some(&mut [IoSliceMut::new(place)], &mut fds, Deadline::now());
            got += came.ok()?.bytes;
        }
        Some(head)
    }

    /// Have nothing more come or go. What was sent already can still be received by the peer; what lies
    /// in this side's queue would keep its descriptors open, and with them the peer's memory, and is
    /// thrown away.
    pub(super) fn shut_down(&mut self) {
        // One that is not connected any more is as good.
        let _ = rustix::net::shutdown(&self.fd, Shutdown::Both);
        let (mut empty, mut place) = (0, [0; 256]);
        loop {
            let mut fds = Vec::new();
            match self.once(&mut [IoSliceMut::new(&mut place)], &mut fds) {
                Err(_) => return,
                Ok(came) if came.bytes > 0 || came.fds > 0 || came.cut_off => empty = 0,
                // The end of a stream; of packets, the end or an empty one.
                Ok(_) if !self.packets || empty == MOST_EMPTY => return,
                Ok(_) => empty += 1,
            }
        }
    }

    pub(super) fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// One packet, which is one frame.
    fn packet(
        &mut self,
        partial: &mut Partial,
        payload: &mut Vec<u8>,
        fds: &mut Vec<OwnedFd>,
        deadline: Deadline,
        bound: &dyn Fn(&Frame) -> Result<()>,
    ) -> Result<Frame> {
        let mut room = std::mem::take(&mut self.room);
        let header = &mut partial.header;
        let parts = &mut [IoSliceMut::new(header), IoSliceMut::new(&mut room)];
        let result = self.some(parts, fds, deadline);
        self.room = room;
        let came = result?;
        (partial.fds, partial.cut_off) = (came.fds, came.cut_off);
        let short = WireError::Truncated {
            at: 0,
            needed: FRAME_HEADER,
            left: came.bytes,
        };
        if came.bytes < FRAME_HEADER {
            return Err(Error::wire(RECEIVING, short));
        }
        let frame =
            Frame::decode(&partial.header).map_err(|error| Error::wire(RECEIVING, error))?;
        let (stated, actual) = (u64::from(frame.payload), (came.bytes - FRAME_HEADER) as u64);
        if stated != actual {
            return Err(Error::wire(RECEIVING, WireError::Length { stated, actual }));
        }
        bound(&frame)?;
        let came = self.room.get(..came.bytes - FRAME_HEADER);
        payload.extend_from_slice(came.unwrap_or_default());
        Ok(frame)
    }

    /// One frame of a stream. Descriptors come with its first byte, or not at all.
    fn piece_by_piece(
        &mut self,
        partial: &mut Partial,
        payload: &mut Vec<u8>,
        fds: &mut Vec<OwnedFd>,
        deadline: Deadline,
        bound: &dyn Fn(&Frame) -> Result<()>,
    ) -> Result<Frame> {
        loop {
            let place = match &partial.frame {
                None => partial.header.get_mut(partial.got..),
                Some(frame) => {
                    let missing = (frame.payload as usize).saturating_sub(partial.got);
                    let start = payload.len().saturating_sub(missing);
                    payload.get_mut(start..)
                }
            };
            if let Some(place) = place.filter(|place| !place.is_empty()) {
                let begins = partial.frame.is_none() && partial.got == 0;
                let came = self.some(&mut [IoSliceMut::new(place)], fds, deadline)?;
                if begins {
                    (partial.fds, partial.cut_off) = (came.fds, came.cut_off);
                } else if came.fds > 0 || came.cut_off {
                    let reason = "file descriptors came in the middle of a frame";
                    return Err(Error::new(ErrorKind::Protocol, RECEIVING, reason));
                }
                partial.got += came.bytes;
            } else if let Some(frame) = partial.frame.take() {
                return Ok(frame);
            } else {
                let frame = Frame::decode(&partial.header)
                    .map_err(|error| Error::wire(RECEIVING, error))?;
                bound(&frame)?;
                payload.resize(payload.len() + frame.payload as usize, 0);
                partial.got = 0;
                partial.frame = Some(frame);
            }
        }
    }

    /// What one `recvmsg` gives, waited for.
    fn some(
        &mut self,
        parts: &mut [IoSliceMut<'_>],
        fds: &mut Vec<OwnedFd>,
        deadline: Deadline,
    ) -> Result<Came> {
        loop {
            let came = match self.once(parts, fds) {
                Err(Errno::AGAIN) => {
                    self.wait(PollFlags::IN, deadline, RECEIVING)?;
                    continue;
                }
                result => result.map_err(|errno| Error::os(RECEIVING, errno))?,
            };
            if came.too_long {
                let reason = "a packet is larger than any of the protocol";
                return Err(Error::new(ErrorKind::Protocol, RECEIVING, reason));
            }
            if came.bytes == 0 {
                return Err(Error::new(ErrorKind::Hangup, RECEIVING, "the peer hung up")
                    .advise("its process ended or it failed: its own error says why"));
            }
            return Ok(came);
        }
    }

    /// What one `recvmsg` gives, if there is something. Whatever descriptors come are owned at once.
    fn once(
        &mut self,
        parts: &mut [IoSliceMut<'_>],
        fds: &mut Vec<OwnedFd>,
    ) -> rustix::io::Result<Came> {
        // Always for as many as the kernel can send, so that none is cut off, whatever was agreed.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        loop {
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            let message = match recvmsg(&self.fd, parts, &mut control, flags) {
                Err(Errno::INTR) => continue,
                // Told once, and before what the peer had sent: that can still be received.
                Err(Errno::CONNRESET) if !std::mem::replace(&mut self.reset, true) => continue,
                result => result?,
            };
            let had = fds.len();
            for part in control.drain() {
                if let RecvAncillaryMessage::ScmRights(rights) = part {
                    fds.extend(rights.map(without_linger));
                }
            }
            return Ok(Came {
                bytes: message.bytes,
                fds: fds.len() - had,
                cut_off: message.flags.contains(ReturnFlags::CTRUNC),
                too_long: message.flags.contains(ReturnFlags::TRUNC),
            });
        }
    }

    fn wait(&self, what: PollFlags, deadline: Deadline, attempt: &'static str) -> Result<()> {
        loop {
            let Some(left) = deadline.timespec() else {
                return Err(Error::new(
                    ErrorKind::Timeout,
                    attempt,
                    "the deadline has passed: the peer is slow, or stuck",
                )
                .advise("try again, with a longer `set_timeout` for a slow peer"));
            };
            let mut list = [PollFd::new(&self.fd, what)];
            match poll(&mut list, Some(&left)) {
                // A hangup or an error is told by the call that is tried next.
                Ok(count) if count > 0 => return Ok(()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::os(attempt, errno)),
            }
        }
    }
}

/// Closing it would wait otherwise. What is no socket answers so at once.
fn without_linger(fd: OwnedFd) -> OwnedFd {
    let _ = sockopt::set_socket_linger(&fd, None);
    fd
}

/// What one `recvmsg` gave.
struct Came {
    bytes: usize,
    fds: usize,
    /// Whether there were more descriptors than this process has numbers left for.
    cut_off: bool,
    /// Whether a packet had more bytes than there was room for.
    too_long: bool,
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Packets without a byte that fit a socket's buffer as it is: twice as many as the kernel's usual bound
/// on buffers (`net.core.wmem_max`) lets a peer queue.
const MOST_EMPTY: usize = 1024;

/// How long to pause where the kernel does not say when to go on.
const PAUSE: Duration = Duration::from_millis(1);

const SENDING: &str = "sending to the peer";
const RECEIVING: &str = "receiving from the peer";

fn too_many() -> Error {
    let reason = format!("a message carries at most {MAX_FDS} file descriptors");
    Error::new(ErrorKind::InvalidArgument, SENDING, reason)
}

/// The kernel drops what this process has no numbers left for.
pub(super) fn cut_off() -> Error {
    Error::new(
        ErrorKind::FdLimit,
        "receiving file descriptors",
        format!(
            "more came than the process can hold: {}",
            fd_limit::in_words()
        ),
    )
    .advise(fd_limit::ADVICE)
}
