//! What went wrong, while doing what, and whether trying again makes sense.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

use rustix::io::Errno;

use crate::wire::{BufferId, Reason, Refusal, WireError};

/// The result of every fallible call in this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error: one sentence that says what was attempted, why it failed, and what to do.
///
/// Match on [`Error::kind`]; the text is for people and may change.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    attempt: Cow<'static, str>,
    cause: Cause,
    advice: Option<Cow<'static, str>>,
    /// The generation that the importer has reached, where that was sent by parts.
    reached: Option<u64>,
    /// The buffer whose end was told.
    buffer: Option<BufferId>,
    /// Whether it is about one of several, of which the next may be another matter.
    of_one: bool,
}

#[derive(Debug)]
enum Cause {
    Words(Cow<'static, str>),
    Os(Errno),
    Wire(WireError),
    Refused(Refusal),
    Memory(vmm::Error),
}

/// What kind of thing went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The deadline passed. In the middle of an exchange that breaks it off; a wait for a message can be
    /// repeated: see [`Channel::is_broken`](crate::Channel::is_broken).
    Timeout,
    /// The peer hung up, its process ended, or an earlier exchange on the channel was broken off.
    Hangup,
    /// The peer sent something that is not the protocol. Use a new channel, if at all.
    Protocol,
    /// The peer is not who may be talked to.
    Peer,
    /// The peer did not want what it was offered: see [`Error::refusal`].
    Refused,
    /// A limit that was set on this side.
    Limit,
    /// The process has too few file descriptors left.
    FdLimit,
    /// Too many file descriptors are in flight between processes, for the kernel.
    InFlight,
    /// The buffer cannot be shared.
    NotShareable,
    /// A descriptor that came is not a driver's handle, or not the memory that was stated.
    NotAHandle,
    /// The device is not visible to this process.
    NoDevice,
    /// An update that does not follow what this side has, or that is not here to be sent.
    OutOfOrder,
    /// The exporter has said that nothing more of the buffer will come. What is mapped stays.
    Retired,
    /// An argument that cannot be right.
    InvalidArgument,
    /// The operating system refused.
    System,
    /// Memory could not be exported, imported or mapped: see [`Error::memory_error`].
    Memory,
}

impl Error {
    pub(crate) fn new(
        kind: ErrorKind,
        attempt: impl Into<Cow<'static, str>>,
        reason: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::from_parts(kind, attempt.into(), Cause::Words(reason.into()))
    }

    pub(crate) fn wire(attempt: impl Into<Cow<'static, str>>, error: WireError) -> Self {
        let kind = match error {
            WireError::Limit { .. } => ErrorKind::Limit,
            _ => ErrorKind::Protocol,
        };
        let error = Self::from_parts(kind, attempt.into(), Cause::Wire(error));
        match kind {
            ErrorKind::Limit => error.advise("raise this side's `Limits` if that is meant"),
            _ => error,
        }
    }

    pub(crate) fn os(attempt: impl Into<Cow<'static, str>>, errno: Errno) -> Self {
        let (kind, advice) = match errno {
            Errno::MFILE => (
                ErrorKind::FdLimit,
                Some("raise the limit of open files: `ulimit -n`"),
            ),
            Errno::NFILE => (
                ErrorKind::FdLimit,
                Some("the whole system is at its limit: see fs.file-max"),
            ),
            Errno::TOOMANYREFS => (
                ErrorKind::InFlight,
                Some(
                    "too many descriptors of this user are on their way: let the receivers catch up",
                ),
            ),
            Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => (
                ErrorKind::Hangup,
                Some(
                    "the peer closed the connection: its own error says why; it may not serve this \
                     user (`PeerPolicy`)",
                ),
            ),
            _ => (ErrorKind::System, None),
        };
        let error = Self::from_parts(kind, attempt.into(), Cause::Os(errno));
        match advice {
            Some(advice) => error.advise(advice),
            None => error,
        }
    }

    pub(crate) fn refused(attempt: impl Into<Cow<'static, str>>, refusal: Refusal) -> Self {
        let advice = match refusal.reason {
            Reason::NoDevice => Some(
                "the importer's process has to see the same GPU: see its CUDA_VISIBLE_DEVICES and \
                 its container",
            ),
            Reason::Limit => Some("share less, or raise the importer's `Limits`"),
            Reason::TooLong => Some(
                "share fewer and larger chunks, or raise the importer's `Channel::set_limits`, and \
                 open another channel",
            ),
            Reason::Resources => {
                Some("try again once the importer has memory, addresses and open files to spare")
            }
            Reason::OutOfOrder => Some("send the whole buffer, by `Export::send`"),
            Reason::Other | Reason::Invalid => None,
        };
        let error = Self::from_parts(ErrorKind::Refused, attempt.into(), Cause::Refused(refusal));
        match advice {
            Some(advice) => error.advise(advice),
            None => error,
        }
    }

    pub(crate) fn memory(attempt: impl Into<Cow<'static, str>>, error: vmm::Error) -> Self {
        let kind = match error.kind() {
            vmm::ErrorKind::FdLimit => ErrorKind::FdLimit,
            vmm::ErrorKind::NotAHandle => ErrorKind::NotAHandle,
            vmm::ErrorKind::NoDevice => ErrorKind::NoDevice,
            vmm::ErrorKind::NotShareable => ErrorKind::NotShareable,
            _ => ErrorKind::Memory,
        };
        Self::from_parts(kind, attempt.into(), Cause::Memory(error))
    }

    pub(crate) fn advise(mut self, advice: impl Into<Cow<'static, str>>) -> Self {
        self.0.advice = Some(advice.into());
        self
    }

    /// After the importer had this generation.
    pub(crate) fn after(mut self, generation: u64) -> Self {
        self.0.reached = Some(generation);
        self
    }

    /// About this buffer.
    pub(crate) fn about(mut self, buffer: BufferId) -> Self {
        self.0.buffer = Some(buffer);
        self
    }

    /// About one peer of those that come.
    pub(crate) fn of_one(mut self) -> Self {
        self.0.of_one = true;
        self
    }

    fn from_parts(kind: ErrorKind, attempt: Cow<'static, str>, cause: Cause) -> Self {
        Error(Box::new(Inner {
            kind,
            attempt,
            cause,
            advice: None,
            reached: None,
            buffer: None,
            of_one: false,
        }))
    }

    /// What kind of thing went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether the same call may succeed later, without anything being changed: the peer was slow or
    /// gone, something was used up for the moment, or the next one to be accepted is another. It takes
    /// another channel where this one [is broken](crate::Channel::is_broken).
    pub fn is_retryable(&self) -> bool {
        match self.0.kind {
            ErrorKind::Peer => self.0.of_one,
            ErrorKind::Timeout | ErrorKind::Hangup | ErrorKind::InFlight | ErrorKind::FdLimit => {
                true
            }
            ErrorKind::Refused => self
                .refusal()
                .is_some_and(|refusal| refusal.reason == Reason::Resources),
            ErrorKind::Memory => self.memory_error().is_some_and(|error| {
                matches!(
                    error.kind(),
                    vmm::ErrorKind::OutOfMemory | vmm::ErrorKind::OutOfAddressSpace
                )
            }),
            _ => false,
        }
    }

    /// The generation that the importer has, where [`Export::send_updates`](crate::Export::send_updates)
    /// failed on the way.
    pub fn reached(&self) -> Option<u64> {
        self.0.reached
    }

    /// Which buffer [`ErrorKind::Retired`] is about: several can be shared over one channel.
    pub fn buffer(&self) -> Option<BufferId> {
        self.0.buffer
    }

    /// Why the peer refused, where it did.
    pub fn refusal(&self) -> Option<&Refusal> {
        match &self.0.cause {
            Cause::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }

    /// What is wrong with the bytes, where that is it.
    pub fn wire_error(&self) -> Option<&WireError> {
        match &self.0.cause {
            Cause::Wire(error) => Some(error),
            _ => None,
        }
    }

    /// What the memory layer said, where it failed.
    pub fn memory_error(&self) -> Option<&vmm::Error> {
        match &self.0.cause {
            Cause::Memory(error) => Some(error),
            _ => None,
        }
    }

    /// What to tell the peer that offered something: what happened, and not what to do about it here.
    /// [`Error::refused`] says what can be done there.
    pub(crate) fn to_refusal(&self) -> Refusal {
        let reason = match self.0.kind {
            ErrorKind::NoDevice => Reason::NoDevice,
            ErrorKind::Limit => Reason::Limit,
            ErrorKind::FdLimit => Reason::Resources,
            ErrorKind::OutOfOrder => Reason::OutOfOrder,
            ErrorKind::NotAHandle | ErrorKind::Protocol => Reason::Invalid,
            ErrorKind::Memory if self.is_retryable() => Reason::Resources,
            _ => Reason::Other,
        };
        let attempt = &self.0.attempt;
        Refusal::new(reason, &format!("{attempt}: {}", self.0.cause.told()))
    }
}

impl Cause {
    /// For the peer.
    fn told(&self) -> String {
        let text = self.to_string();
        let Cause::Memory(error) = self else {
            return text;
        };
        match error.kind() {
            vmm::ErrorKind::NoDevice => {
                "the importer's process does not see the device that it is on".to_owned()
            }
            // What these have in place of advice is what happened.
            vmm::ErrorKind::NotAHandle
            | vmm::ErrorKind::InvalidArgument
            | vmm::ErrorKind::NotPermitted
            | vmm::ErrorKind::ContextBroken => text,
            _ => {
                let advice = error.advice().map(|advice| format!("; {advice}"));
                let end = advice.and_then(|advice| text.strip_suffix(&advice).map(str::len));
                text.get(..end.unwrap_or(text.len()))
                    .unwrap_or_default()
                    .to_owned()
            }
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.attempt, self.0.cause)?;
        match &self.0.advice {
            Some(advice) => write!(f, "; {advice}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Words(words) => f.write_str(words),
            Cause::Os(errno) => write!(f, "{errno}"),
            Cause::Wire(error) => write!(f, "{error}"),
            Cause::Refused(refusal) => {
                f.write_str("the importer refused: ")?;
                // The peer's words go to people's terminals and logs, and may have been made for that.
                refusal.text.chars().try_for_each(|c| match c.is_control() {
                    true => write!(f, "{}", c.escape_default()),
                    false => f.write_char(c),
                })
            }
            Cause::Memory(error) => write!(f, "{error}"),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("text", &self.to_string())
            .finish()
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_open_files_are_told_from_each_other_and_from_the_rest() {
        for (errno, kind, advice) in [
            (Errno::MFILE, ErrorKind::FdLimit, "ulimit -n"),
            (Errno::NFILE, ErrorKind::FdLimit, "fs.file-max"),
            (Errno::TOOMANYREFS, ErrorKind::InFlight, "catch up"),
        ] {
            let error = Error::os("duplicating", errno);
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.is_retryable(), "{error}");
            assert!(error.to_string().contains(advice), "{error}");
            // The importer may have room again.
            if kind == ErrorKind::FdLimit {
                assert_eq!(error.to_refusal().reason, Reason::Resources, "{error}");
            }
        }
        let other = Error::os("duplicating", Errno::BADF);
        assert_eq!(other.kind(), ErrorKind::System);
        assert!(!other.is_retryable());
    }

    #[test]
    fn a_refusal_cannot_write_control_characters_to_a_terminal() {
        let refusal = Refusal::new(Reason::Other, "no \u{1b}[2J\nroom für Größe");
        let text = Error::refused("sharing", refusal).to_string();
        assert_eq!(
            text,
            "sharing: the importer refused: no \\u{1b}[2J\\nroom für Größe"
        );
    }
}
