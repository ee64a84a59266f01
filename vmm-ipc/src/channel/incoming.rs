//! A message on its way in: what has come of it so far, kept from one call to the next.

use std::cell::Cell;
use std::os::fd::OwnedFd;

use super::socket::{Socket, cut_off};
use super::{Deadline, RECEIVING, Received};
use crate::error::{Error, ErrorKind, Result};
use crate::limits::Limits;
use crate::wire::{BufferId, Frame, Message, MessageKind, SUBJECT, WireError, subject};

/// The frames that have come of the next message.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    payload: Vec<u8>,
    fds: Vec<OwnedFd>,
    last: Option<Frame>,
    cut_off: bool,
    /// Whether it was an offer or an update that is longer than is taken.
    too_long: bool,
}

/// A message, of which only the file descriptors may be missing.
pub(crate) struct Arrival {
    pub(crate) message: Message,
    /// None where they were cut off.
    pub(crate) fds: Vec<OwnedFd>,
    cut_off: bool,
}

impl Arrival {
    /// With its descriptors, or the error that this process could not hold them.
    pub(crate) fn whole(self) -> Result<Received> {
        match self.cut_off {
            true => Err(cut_off()),
            false => Ok(Received {
                message: self.message,
                fds: self.fds,
            }),
        }
    }
}

impl Incoming {
    /// Receive what is missing of the message. A deadline that passes on the way loses nothing.
    pub(super) fn complete(
        &mut self,
        socket: &mut Socket,
        limits: &Limits,
        deadline: Deadline,
    ) -> Result<Arrival> {
        let too_long = Cell::new(false);
        let bound = |frame: &Frame| {
            let result = check_bound(frame, limits);
            let begins = frame.kind.max_payload().is_none() && frame.offset == 0;
            too_long.set(result.is_err() && begins);
            result
        };
        let kind = loop {
            let came = socket.receive(&mut self.payload, &mut self.fds, deadline, &bound);
            self.too_long = too_long.get();
            let (frame, cut_off) = came?;
            self.cut_off |= cut_off;
            let follows = match &self.last {
                None => frame.offset == 0,
                Some(last) => {
                    frame.kind == last.kind
                        && frame.total == last.total
                        && frame.offset == last.offset + last.payload
                }
            };
            if !follows {
                let error = WireError::Unexpected {
                    found: frame.kind.name(),
                    expected: "the rest of a message",
                };
                return Err(Error::wire(RECEIVING, error));
            }
            if frame.is_last() {
                break frame.kind;
            }
            self.last = Some(frame);
        };
        std::mem::take(self).decode(kind)
    }

    /// What buffer and generation it is about, where it is longer than is taken.
    pub(super) fn subject_of_refused(&self, socket: &mut Socket) -> Option<(BufferId, u64)> {
        if !self.too_long {
            return None;
        }
        subject(&socket.head_of_refused::<SUBJECT>()?)
    }

    fn decode(self, kind: MessageKind) -> Result<Arrival> {
        let message = Message::decode(kind, &self.payload)
            .map_err(|error| Error::wire(format!("reading {}", kind.name()), error))?;
        let expected = match message {
            Message::Handles { count, .. } => count as usize,
            _ => 0,
        };
        let came = self.fds.len();
        if came != expected && !self.cut_off {
            let reason = format!(
                "{came} file descriptors came with {} that is for {expected}",
                kind.name()
            );
            return Err(Error::new(ErrorKind::Protocol, RECEIVING, reason));
        }
        Ok(Arrival {
            message,
            fds: self.fds,
            cut_off: self.cut_off,
        })
    }
}

/// Refuse a message for its stated size, before any of it is kept.
fn check_bound(frame: &Frame, limits: &Limits) -> Result<()> {
    let most = match frame.kind.max_payload() {
        Some(most) => most as u64,
        None => limits.message_bytes(),
    };
    let found = u64::from(frame.total);
    if found <= most {
        return Ok(());
    }
    let what = match frame.kind {
        MessageKind::Offer | MessageKind::Update => "bytes, more than its chunks may have,",
        _ => "bytes",
    };
    Err(Error::wire(
        format!("receiving {}", frame.kind.name()),
        WireError::Limit {
            what,
            found,
            limit: most,
        },
    ))
}
