//! The channel: messages and file descriptors between two processes, by a deadline.

mod connect;
mod credentials;
mod deadline;
mod incoming;
mod listener;
mod peer;
mod socket;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType};

pub use self::listener::Listener;
pub use self::peer::{PeerCredentials, PeerPolicy};

pub(crate) use self::deadline::Deadline;
pub(crate) use self::incoming::Arrival;
use self::incoming::Incoming;
use self::socket::Socket;
use crate::error::{Error, ErrorKind, Result};
use crate::limits::Limits;
use crate::wire::{Frame, Hello, MAX_PAYLOAD, Message, Reason, Refusal, VERSION, WireError};

/// A connection to one other process.
///
/// Every call is over by a deadline; a peer that hangs up or dies ends it at once.
///
/// An error in the middle of an exchange leaves the two sides out of step. The channel is shut down
/// then, so that the peer hears of it at once too: every later call answers [`ErrorKind::Hangup`], see
/// [`Channel::is_broken`], and another channel is needed. After a wait for a message that has not come,
/// or not all of it, and after a message whose file descriptors this process has no numbers left for, the
/// channel goes on. So it does after [`ErrorKind::Refused`], unless [`Channel::is_broken`]: an importer
/// that is offered a longer message than its channel takes refuses, and is gone.
///
/// Who waits for several things at once polls the channel ([`AsFd`]) and calls
/// [`Channel::try_receive`].
#[derive(Debug)]
pub struct Channel {
    socket: Socket,
    peer: PeerCredentials,
    timeout: Duration,
    limits: Limits,
    /// Whether this side has said hello.
    said_hello: bool,
    /// Whether the peer has.
    heard_hello: bool,
    /// What has come of the next message.
    incoming: Incoming,
    broken: bool,
    /// Whether sending has told that the peer is gone. What it said before can still be heard.
    gone: bool,
    /// Whether it went in the middle of a message to it.
    cut_short: bool,
}

/// A message and the file descriptors that came with it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Received {
    /// What was said.
    pub message: Message,
    /// What came along, close-on-exec. Dropping closes them.
    pub fds: Vec<OwnedFd>,
}

/// How long each call waits at most, unless it is told otherwise.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

impl Channel {
    /// A channel over a connected Unix socket of the caller's: SEQPACKET, or STREAM.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] for another kind of socket; [`ErrorKind::Peer`]. A peer that is
    /// gone already is no error here: what it said before can be received.
    pub fn from_fd(socket: OwnedFd, policy: PeerPolicy) -> Result<Self> {
        let mut channel = Self::silent(socket, policy)?;
        match channel.greet(channel.deadline()) {
            Err(error) if error.kind() != ErrorKind::Hangup => Err(error),
            _ => Ok(channel),
        }
    }

    /// A channel on which nothing was said yet.
    fn silent(socket: OwnedFd, policy: PeerPolicy) -> Result<Self> {
        let mut socket = Socket::new(socket)?;
        credentials::take_no_extras(&socket);
        let peer = PeerCredentials::of(&socket)?;
        if let Err(error) = peer.check(policy) {
            // What a stranger has sent already is let go of as anything that comes.
            socket.shut_down();
            return Err(error);
        }
        Ok(Channel {
            socket,
            peer,
            timeout: DEFAULT_TIMEOUT,
            limits: Limits::default(),
            said_hello: false,
            heard_hello: false,
            incoming: Incoming::default(),
            broken: false,
            gone: false,
            cut_short: false,
        })
    }

    /// Two channels that are connected with each other.
    ///
    /// To give the second to a child process, take the socket out of it with [`Channel::into_fd`], have
    /// the child inherit that, and make it a channel there with [`Channel::from_fd`]. Both sides see
    /// the process that called this as their peer. The socket is close-on-exec, as every descriptor
    /// here: as one of the child's standard streams it is inherited all the same.
    ///
    /// ```no_run
    /// use std::process::{Command, Stdio};
    /// use vmm_ipc::{Channel, PeerPolicy};
    ///
    /// let (ours, theirs) = Channel::pair()?;
    /// let child = Command::new("importer").stdin(Stdio::from(theirs.into_fd()?)).spawn()?;
    ///
    /// // In the child:
    /// use std::os::fd::AsFd;
    /// let socket = std::io::stdin().as_fd().try_clone_to_owned()?;
    /// let channel = Channel::from_fd(socket, PeerPolicy::SameUser)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::FdLimit`], [`ErrorKind::System`].
    pub fn pair() -> Result<(Self, Self)> {
        let (a, b) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(|errno| Error::os("making a pair of sockets", errno))?;
        let first = Self::from_fd(a, PeerPolicy::SameUser)?;
        // It greets when it is used first, which may be in another process.
        let second = Self::silent(b, PeerPolicy::SameUser)?;
        Ok((first, second))
    }

    /// The socket of the second channel of [`Channel::pair`], to be made a channel in another process.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] for any other, and where it was used already. It is closed then.
    pub fn into_fd(self) -> Result<OwnedFd> {
        if self.said_hello || self.heard_hello || self.is_broken() {
            let reason = "it was used already";
            let attempt = "taking the socket out of a channel";
            return Err(Error::new(ErrorKind::InvalidArgument, attempt, reason)
                .advise("take it out of the second channel of a fresh `Channel::pair`"));
        }
        Ok(self.socket.into_fd())
    }

    /// Whether another channel is needed: an exchange was broken off, or the peer is gone. What a peer
    /// said before it went can still be received, until that answers [`ErrorKind::Hangup`] too.
    pub fn is_broken(&self) -> bool {
        self.broken || self.gone
    }

    /// Whether the peer went in the middle of a message to it.
    pub(crate) fn is_cut_short(&self) -> bool {
        self.cut_short
    }

    /// Have no more said here, and have the peer hear of that. Nothing that came is kept.
    pub(crate) fn break_off(&mut self) {
        self.broken = true;
        self.incoming = Incoming::default();
        self.socket.shut_down();
    }

    /// The same, on account of an error.
    pub(crate) fn break_off_after(&mut self, error: Error) -> Error {
        self.break_off();
        match error.kind() {
            ErrorKind::Timeout => {
                error.advise("open a new channel, with a longer `set_timeout` for a slow peer")
            }
            _ => error,
        }
    }

    /// What follows one after the other on a channel that is not broken.
    fn check(&self, attempt: &'static str) -> Result<()> {
        if !self.broken {
            return Ok(());
        }
        let reason = "an earlier exchange on this channel was broken off";
        Err(Error::new(ErrorKind::Hangup, attempt, reason).advise("open another channel"))
    }

    fn greet(&mut self, deadline: Deadline) -> Result<()> {
        // One that is gone needs no greeting.
        if !self.said_hello && !self.gone {
            self.send_frames(&Message::Hello(Hello { version: VERSION }), &[], deadline)?;
            self.said_hello = true;
        }
        Ok(())
    }

    /// Several messages that belong together: broken off where `work` fails to say how it ended, by a
    /// panic of a callback.
    pub(crate) fn exchange<T>(&mut self, work: impl FnOnce(&mut Channel) -> T) -> T {
        struct Guard<'a>(&'a mut Channel);
        impl Drop for Guard<'_> {
            fn drop(&mut self) {
                self.0.break_off();
            }
        }
        let guard = Guard(self);
        let value = work(guard.0);
        std::mem::forget(guard);
        value
    }

    /// The process at the other end.
    pub fn peer(&self) -> PeerCredentials {
        self.peer
    }

    /// How long each call waits at most.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Set how long each call waits at most. Default: [`DEFAULT_TIMEOUT`].
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Set how large messages may be that are received. One that is larger breaks the channel off; the
    /// exporter hears [`ErrorKind::Refused`] first, with [`Reason::TooLong`].
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Send a message, and file descriptors with it. They stay open, and stay the caller's.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Timeout`], [`ErrorKind::Hangup`], [`ErrorKind::InFlight`].
    pub fn send(&mut self, message: &Message, fds: &[BorrowedFd<'_>]) -> Result<()> {
        self.send_by(message, fds, Deadline::after(self.timeout))
    }

    /// Receive the next message.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Timeout`], after which what has come of the message is kept for the next call;
    /// [`ErrorKind::FdLimit`], after which the next message can be received, while this one is lost: in
    /// the middle of an exchange that is spoken by hand, open another channel then;
    /// [`ErrorKind::Hangup`], [`ErrorKind::Protocol`], [`ErrorKind::Limit`]. Except after a timeout, file
    /// descriptors that came are closed.
    pub fn receive(&mut self) -> Result<Received> {
        self.receive_by(Deadline::after(self.timeout))
    }

    /// Receive the next message where all of it is there, else `None`, without waiting: for who
    /// [polls](AsFd) the channel. It can be readable without a whole message being there, as after the
    /// greeting with which every channel begins.
    ///
    /// A buffer or an update is several messages. The first of them, [`Message::Offer`] or
    /// [`Message::Update`], says how many handles follow:
    /// [`ImportOptions::receive_offered`](crate::ImportOptions::receive_offered) and
    /// [`Imported::receive_offered_update`](crate::Imported::receive_offered_update) wait for these,
    /// for [`Limits::time`] at most; [`decline_offer`](crate::decline_offer) and
    /// [`decline_update`](crate::decline_update) say no.
    ///
    /// # Errors
    ///
    /// As [`Channel::receive`], without the timeout.
    pub fn try_receive(&mut self) -> Result<Option<Received>> {
        match self.receive_by(Deadline::now()) {
            Err(error) if error.kind() == ErrorKind::Timeout && !self.broken => Ok(None),
            result => result.map(Some),
        }
    }

    pub(crate) fn deadline(&self) -> Deadline {
        Deadline::after(self.timeout)
    }

    pub(crate) fn send_by(
        &mut self,
        message: &Message,
        fds: &[BorrowedFd<'_>],
        deadline: Deadline,
    ) -> Result<()> {
        self.check(SENDING)?;
        self.greet(deadline)?;
        self.send_frames(message, fds, deadline)
    }

    fn send_frames(
        &mut self,
        message: &Message,
        fds: &[BorrowedFd<'_>],
        deadline: Deadline,
    ) -> Result<()> {
        let payload = message.encode();
        let attempt = SENDING;
        let too_long = |_| {
            Error::new(
                ErrorKind::InvalidArgument,
                attempt,
                "the message is too long",
            )
        };
        let total = u32::try_from(payload.len()).map_err(too_long)?;
        let count = u16::try_from(fds.len()).unwrap_or(u16::MAX);
        let cuts = payload
            .chunks(MAX_PAYLOAD)
            .chain(payload.is_empty().then_some(&[][..]));
        for (frame, part) in Frame::cut(message.kind(), total, count).zip(cuts) {
            let fds = if frame.offset == 0 { fds } else { &[] };
            if let Err(error) = self.socket.send(&frame, part, fds, deadline) {
                let gone = error.kind() == ErrorKind::Hangup;
                self.gone |= gone;
                let midway = frame.offset > 0 || self.socket.is_midway();
                // With a peer that is gone nobody is out of step, and it may have said why.
                self.cut_short |= midway && gone;
                return Err(match midway && !gone {
                    true => self.break_off_after(error),
                    false => error,
                });
            }
        }
        Ok(())
    }

    pub(crate) fn receive_by(&mut self, deadline: Deadline) -> Result<Received> {
        self.arrive_by(deadline)?.whole()
    }

    /// The next message, also where its descriptors were cut off.
    pub(crate) fn arrive_by(&mut self, deadline: Deadline) -> Result<Arrival> {
        self.check(RECEIVING)?;
        match self.greet(deadline) {
            // What a peer said before it went can still be heard.
            Err(error) if error.kind() != ErrorKind::Hangup => return Err(error),
            _ => {}
        }
        let result = self.arrive(deadline);
        if let Err(error) = &result
            && error.kind() != ErrorKind::Timeout
        {
            self.say_why(error);
            self.break_off();
        }
        result
    }

    /// Where an offer or an update is too long to be taken, its exporter hears so before the end.
    fn say_why(&mut self, error: &Error) {
        let subject = self.incoming.subject_of_refused(&mut self.socket);
        if let Some((id, generation)) = subject {
            let reason = Reason::TooLong;
            let refusal = Refusal {
                reason,
                ..error.to_refusal()
            };
            let message = Message::Refused {
                id,
                generation,
                refusal,
            };
            // The error is this side's; that the peer does not hear of it is not.
            let _ = self.send_frames(&message, &[], Deadline::now());
        }
    }

    fn arrive(&mut self, deadline: Deadline) -> Result<Arrival> {
        let mut next = || {
            let (incoming, socket) = (&mut self.incoming, &mut self.socket);
            incoming.complete(socket, &self.limits, deadline)
        };
        if !self.heard_hello {
            // The peer's first message says which version it speaks.
            match next()?.message {
                Message::Hello(_) => self.heard_hello = true,
                other => return Err(unexpected(&other, "hello")),
            }
        }
        let arrival = next()?;
        match arrival.message {
            Message::Hello(_) => Err(unexpected(&arrival.message, "another message")),
            _ => Ok(arrival),
        }
    }
}

const SENDING: &str = "sending to the peer";
const RECEIVING: &str = "receiving from the peer";

pub(crate) fn unexpected(found: &Message, expected: &'static str) -> Error {
    let found = found.kind().name();
    Error::wire(RECEIVING, WireError::Unexpected { found, expected })
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
