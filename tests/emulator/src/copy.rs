//! Copies and fills, checked against mappings and access, at once or on a stream.

use crate::abi::MemLocation;
use crate::code::{Code, Result};
use crate::host_span::HostSpan;
use crate::physical::Physical;
use crate::space::{Piece, Space};

/// One side of a copy.
#[derive(Debug, Clone)]
pub(crate) enum Side {
    Device(u64),
    Host(HostSpan),
    /// Host bytes taken when the copy was queued.
    Staged(Vec<u8>),
}

/// What a copy or a fill does.
#[derive(Debug, Clone)]
pub(crate) enum Action {
    Copy {
        to: Side,
        from: Side,
        len: u64,
    },
    Fill {
        to: u64,
        len: u64,
        pattern: Vec<u8>,
    },
    /// Time that passes.
    Nothing,
}

/// Something that a stream does, for the device of a context.
#[derive(Debug, Clone)]
pub(crate) struct Work {
    pub context: u64,
    pub location: MemLocation,
    pub action: Action,
}

enum Found<'a> {
    Device(Vec<Piece>),
    Host(HostSpan),
    Staged(&'a [u8]),
}

impl Work {
    /// An address that C calls a host pointer may still be one of ours. Which it is is settled here: when
    /// the work is done, something else may lie there.
    pub fn new(context: u64, location: MemLocation, mut action: Action, space: &Space) -> Self {
        if let Action::Copy { to, from, .. } = &mut action {
            for side in [to, from] {
                if let Side::Host(span) = side
                    && space.reservation_at(span.address()).is_some()
                {
                    *side = Side::Device(span.address());
                }
            }
        }
        Self {
            context,
            location,
            action,
        }
    }

    /// Whether it names addresses that are reserved and have no memory.
    pub fn meets_no_memory(&self, space: &Space) -> bool {
        match &self.action {
            Action::Copy { to, from, len } => [to, from]
                .into_iter()
                .any(|side| matches!(side, Side::Device(at) if space.has_hole(*at, *len))),
            Action::Fill { to, len, .. } => space.has_hole(*to, *len),
            Action::Nothing => false,
        }
    }

    pub fn check(&self, space: &Space) -> Result {
        match &self.action {
            Action::Copy { to, from, len } => {
                let by_host = !is_device(to) || !is_device(from);
                let to = self.find(space, to, (*len, by_host), true)?;
                let from = self.find(space, from, (*len, by_host), false)?;
                match (&to, &from) {
                    // The real driver copies as its first byte lies, and touches device memory by
                    // the processor: SIGSEGV.
                    (Found::Device(pieces), Found::Host(_) | Found::Staged(_))
                    | (Found::Host(_), Found::Device(pieces))
                        if pieces
                            .iter()
                            .any(|piece| is_host(piece) != pieces.first().is_some_and(is_host)) =>
                    {
                        Err(Code::INVALID_VALUE)
                    }
                    _ => Ok(()),
                }
            }
            Action::Fill { to, len, .. } => {
                let pieces = space.resolve(*to, *len, self.location, true)?;
                match pieces.iter().skip(1).any(is_host) {
                    true => Err(Code::INVALID_VALUE),
                    false => Ok(()),
                }
            }
            Action::Nothing => Ok(()),
        }
    }

    pub fn perform(&self, space: &Space) -> Result {
        match &self.action {
            Action::Copy { to, from, len } => {
                let by_host = !is_device(to) || !is_device(from);
                let to = self.find(space, to, (*len, by_host), true)?;
                let from = self.find(space, from, (*len, by_host), false)?;
                copy(&to, &from, *len)
            }
            Action::Fill { to, len, pattern } => {
                for piece in space.resolve(*to, *len, self.location, true)? {
                    piece.physical.fill(piece.offset, piece.len, pattern)?;
                }
                Ok(())
            }
            Action::Nothing => Ok(()),
        }
    }

    /// Takes the host bytes now, so that the program may change them afterwards.
    pub fn stage(&mut self) -> Result {
        if let Action::Copy { from, .. } = &mut self.action
            && let Side::Host(span) = from
        {
            *from = Side::Staged(span.to_vec()?);
        }
        Ok(())
    }

    pub fn writes_host(&self) -> bool {
        self.host_target().is_some()
    }

    /// The host address that the work writes to.
    pub fn host_target(&self) -> Option<u64> {
        match &self.action {
            Action::Copy {
                to: Side::Host(span),
                ..
            } => Some(span.address()),
            _ => None,
        }
    }

    /// Whether the work touches device addresses in the range.
    pub fn touches(&self, address: u64, size: u64) -> bool {
        let overlaps = |start: u64, len: u64| {
            start < address.saturating_add(size) && address < start.saturating_add(len)
        };
        match &self.action {
            Action::Copy { to, from, len } => [to, from].into_iter().any(|side| match side {
                Side::Device(start) => overlaps(*start, *len),
                Side::Host(_) | Side::Staged(_) => false,
            }),
            Action::Fill { to, len, .. } => overlaps(*to, *len),
            Action::Nothing => false,
        }
    }

    fn find<'a>(
        &self,
        space: &Space,
        side: &'a Side,
        (len, by_host): (u64, bool),
        write: bool,
    ) -> Result<Found<'a>> {
        match side {
            Side::Device(address) => {
                // The processor does it where one side is the program's own memory.
                let found = match by_host {
                    true => space.resolve_by_host(*address, len, self.location, write),
                    false => space.resolve(*address, len, self.location, write),
                };
                Ok(Found::Device(found?))
            }
            Side::Host(span) => Ok(Found::Host(*span)),
            Side::Staged(bytes) => Ok(Found::Staged(bytes)),
        }
    }
}

fn is_device(side: &Side) -> bool {
    matches!(side, Side::Device(_))
}

fn is_host(piece: &Piece) -> bool {
    piece.physical.record.location.kind != MemLocation::DEVICE
}

fn copy(to: &Found<'_>, from: &Found<'_>, len: u64) -> Result {
    match (to, from) {
        (Found::Device(to), Found::Device(from)) => copy_pieces(to, from, len),
        (Found::Device(to), Found::Host(from)) => {
            let mut at = 0;
            for piece in to {
                piece
                    .physical
                    .write_span(piece.offset, from.part(at, piece.len))?;
                at += piece.len;
            }
            Ok(())
        }
        (Found::Host(to), Found::Device(from)) => {
            let mut at = 0;
            for piece in from {
                piece
                    .physical
                    .read_span(piece.offset, to.part(at, piece.len))?;
                at += piece.len;
            }
            Ok(())
        }
        (Found::Device(to), Found::Staged(from)) => {
            let mut left = *from;
            for piece in to {
                let here = usize::try_from(piece.len).map_err(|_| Code::INVALID_VALUE)?;
                let (now, later) = left.split_at_checked(here).ok_or(Code::UNKNOWN)?;
                piece.physical.write(piece.offset, now)?;
                left = later;
            }
            Ok(())
        }
        (Found::Host(to), Found::Host(from)) => {
            to.copy_from(*from);
            Ok(())
        }
        (Found::Host(to), Found::Staged(from)) => {
            to.copy_from_slice(from);
            Ok(())
        }
        // Nothing is copied to what was taken from the program.
        (Found::Staged(_), _) => Err(Code::UNKNOWN),
    }
}

fn copy_pieces(to: &[Piece], from: &[Piece], len: u64) -> Result {
    let (mut to_at, mut from_at, mut done) = ((0, 0), (0, 0), 0);
    while done < len {
        let (Some(target), Some(source)) = (to.get(to_at.0), from.get(from_at.0)) else {
            return Err(Code::UNKNOWN);
        };
        let step = (target.len - to_at.1).min(source.len - from_at.1);
        Physical::copy(
            &source.physical,
            source.offset + from_at.1,
            &target.physical,
            target.offset + to_at.1,
            step,
        )?;
        to_at = advance(to_at, step, target.len);
        from_at = advance(from_at, step, source.len);
        done += step;
    }
    Ok(())
}

fn advance((piece, at): (usize, u64), step: u64, len: u64) -> (usize, u64) {
    if at + step == len {
        (piece + 1, 0)
    } else {
        (piece, at + step)
    }
}
