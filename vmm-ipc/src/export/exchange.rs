//! The exporter's half of an exchange: an offer or an update, the handles, and the answer.

use std::os::fd::{AsFd, OwnedFd};

use vmm::Buffer;

use super::{BATCH, Export};
use crate::channel::{Channel, Deadline, unexpected};
use crate::error::{Error, ErrorKind, Result};
use crate::wire::{Message, Reason, WireError};

impl Export {
    /// Send the first message of an exchange.
    pub(super) fn begin(
        &self,
        channel: &mut Channel,
        message: &Message,
        generation: u64,
        deadline: Deadline,
    ) -> Result<()> {
        let sent = channel.send_by(message, &[], deadline);
        sent.map_err(|error| match channel.is_cut_short() {
            true => self.hear_why(channel, generation, error),
            false => error,
        })
    }

    /// Of an importer that hung up in the middle, which may have refused before. What it said is there
    /// already then.
    fn hear_why(&self, channel: &mut Channel, generation: u64, error: Error) -> Error {
        let answer = self.await_answer(channel, generation, Deadline::now());
        let refused = answer
            .err()
            .filter(|answer| answer.kind() == ErrorKind::Refused);
        channel.break_off_after(refused.unwrap_or(error))
    }

    pub(super) fn send_batches(
        &self,
        channel: &mut Channel,
        mut first: usize,
        end: usize,
        deadline: Deadline,
    ) -> Result<()> {
        while first < end {
            let next = (first + BATCH).min(end);
            self.send_handles(channel, first, next, deadline)?;
            first = next;
        }
        Ok(())
    }

    /// End an exchange: hear what the importer says, or tell it that there is no more where not all
    /// could be sent.
    pub(super) fn conclude(
        &self,
        channel: &mut Channel,
        generation: u64,
        deadline: Deadline,
        sent: Result<()>,
    ) -> Result<()> {
        if let Err(error) = sent {
            if error.kind() == ErrorKind::Hangup {
                return Err(self.hear_why(channel, generation, error));
            }
            let id = self.descriptor.id();
            let told = channel.send_by(&Message::Retired { id }, &[], deadline);
            return Err(match told {
                Ok(()) => error,
                Err(_) => channel.break_off_after(error),
            });
        }
        match self.await_answer(channel, generation, deadline) {
            // An answer that comes late would be taken for the one to the next question, and an
            // importer that was sent too long a message is gone.
            Err(error) if error.refusal().is_none_or(|r| r.reason == Reason::TooLong) => {
                Err(channel.break_off_after(error))
            }
            answer => answer,
        }
    }

    pub(super) fn export_and_send(
        &mut self,
        buffer: &Buffer,
        channel: &mut Channel,
        deadline: Deadline,
    ) -> Result<()> {
        let (mut first, total) = (0, buffer.chunk_count());
        for (index, chunk) in buffer.chunks().enumerate() {
            self.export_chunk(chunk.allocation, total)?;
            let end = index + 1;
            if end - first == BATCH || end == total {
                self.send_handles(channel, first, end, deadline)?;
                first = end;
            }
        }
        Ok(())
    }

    fn send_handles(
        &self,
        channel: &mut Channel,
        first: usize,
        end: usize,
        deadline: Deadline,
    ) -> Result<()> {
        let Some(fds) = self.fds.get(first..end).filter(|fds| !fds.is_empty()) else {
            return Ok(());
        };
        let fds: Vec<_> = fds.iter().map(OwnedFd::as_fd).collect();
        let (first, count) = (first as u32, fds.len() as u32);
        let message = Message::Handles {
            id: self.descriptor.id(),
            first,
            count,
        };
        channel.send_by(&message, &fds, deadline)
    }

    fn await_answer(
        &self,
        channel: &mut Channel,
        generation: u64,
        deadline: Deadline,
    ) -> Result<()> {
        let received = channel.receive_by(deadline)?;
        let attempt = || format!("sharing buffer {}", self.descriptor.id());
        let about = match &received.message {
            Message::Accepted { id, generation } | Message::Refused { id, generation, .. } => {
                (*id, *generation)
            }
            other => return Err(unexpected(other, "an acceptance")),
        };
        if about != (self.descriptor.id(), generation) {
            let other = WireError::Unexpected {
                found: "an answer about another buffer or generation",
                expected: "the one about this",
            };
            return Err(Error::wire(attempt(), other));
        }
        match received.message {
            Message::Refused { refusal, .. } => Err(Error::refused(attempt(), refusal)),
            _ => Ok(()),
        }
    }
}
