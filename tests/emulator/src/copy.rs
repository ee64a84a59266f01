//! Copies and fills, checked against mappings and access, at once or on a stream.

use crate::abi::MemLocation;
use crate::code::{Code, Result};
use crate::physical::Physical;
use crate::space::{Piece, Space};

/// A stretch of the program's own memory, as C gave it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostSpan {
    address: usize,
    len: usize,
}

// A span is only an address: it is turned into memory by calls whose contract covers it.
impl HostSpan {
    pub fn new(address: u64, len: u64) -> Result<Self> {
        let narrow = |value: u64| usize::try_from(value).map_err(|_| Code::INVALID_VALUE);
        let span = Self {
            address: narrow(address)?,
            len: narrow(len)?,
        };
        let end = span.address.checked_add(span.len);
        if span.address == 0 || end.is_none_or(|end| end > isize::MAX as usize) {
            return Err(Code::INVALID_VALUE);
        }
        Ok(span)
    }

    fn part(self, offset: u64, len: u64) -> Self {
        // Parts lie inside a span whose end was checked.
        Self {
            address: self.address + offset as usize,
            len: len as usize,
        }
    }

    fn bytes(&self) -> &[u8] {
        let start = std::ptr::with_exposed_provenance(self.address);
        // SAFETY: the caller of the driver vouches for the memory, as everywhere in C. Copies to and
        // from device memory only hand it to the kernel, which answers EFAULT where there is none.
        unsafe { std::slice::from_raw_parts(start, self.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        let start = std::ptr::with_exposed_provenance_mut(self.address);
        // SAFETY: as in `bytes`, and the caller lets the driver write.
        unsafe { std::slice::from_raw_parts_mut(start, self.len) }
    }
}

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

enum Found {
    Device(Vec<Piece>),
    Host(HostSpan),
}

impl Work {
    /// An address that C calls a host pointer may still be one of ours. Which it is is settled here: when
    /// the work is done, something else may lie there.
    pub fn new(context: u64, location: MemLocation, mut action: Action, space: &Space) -> Self {
        if let Action::Copy { to, from, .. } = &mut action {
            for side in [to, from] {
                if let Side::Host(span) = side
                    && space.reservation_at(span.address as u64).is_some()
                {
                    *side = Side::Device(span.address as u64);
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
                let to = self.find(space, to, *len, true)?;
                let from = self.find(space, from, *len, false)?;
                match (&to, &from) {
                    // The real driver copies as its first byte lies, and touches device memory by
                    // the processor: SIGSEGV.
                    (Found::Device(pieces), Found::Host(_))
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
            Action::Copy {
                to,
                from: Side::Staged(bytes),
                len,
            } => {
                let from = HostSpan::new(bytes.as_ptr().expose_provenance() as u64, *len)?;
                copy(&self.find(space, to, *len, true)?, &Found::Host(from), *len)
            }
            Action::Copy { to, from, len } => {
                let to = self.find(space, to, *len, true)?;
                copy(&to, &self.find(space, from, *len, false)?, *len)
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
        if let Action::Copy { from, len, .. } = &mut self.action
            && let Side::Host(span) = from
        {
            let mut bytes = Vec::new();
            let wanted = usize::try_from(*len).map_err(|_| Code::INVALID_VALUE)?;
            bytes
                .try_reserve_exact(wanted)
                .map_err(|_| Code::OUT_OF_MEMORY)?;
            bytes.extend_from_slice(span.bytes());
            *from = Side::Staged(bytes);
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
            } => Some(span.address as u64),
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

    fn find(&self, space: &Space, side: &Side, len: u64, write: bool) -> Result<Found> {
        match side {
            Side::Device(address) => Ok(Found::Device(space.resolve(
                *address,
                len,
                self.location,
                write,
            )?)),
            Side::Host(span) => Ok(Found::Host(*span)),
            Side::Staged(bytes) => {
                HostSpan::new(bytes.as_ptr().expose_provenance() as u64, len).map(Found::Host)
            }
        }
    }
}

fn is_host(piece: &Piece) -> bool {
    piece.physical.record.location.kind != MemLocation::DEVICE
}

fn copy(to: &Found, from: &Found, len: u64) -> Result {
    match (to, from) {
        (Found::Device(to), Found::Device(from)) => copy_pieces(to, from, len),
        (Found::Device(to), Found::Host(from)) => {
            let mut at = 0;
            for piece in to {
                piece
                    .physical
                    .write(piece.offset, from.part(at, piece.len).bytes())?;
                at += piece.len;
            }
            Ok(())
        }
        (Found::Host(to), Found::Device(from)) => {
            let mut at = 0;
            for piece in from {
                piece
                    .physical
                    .read(piece.offset, to.part(at, piece.len).bytes_mut())?;
                at += piece.len;
            }
            Ok(())
        }
        (Found::Host(to), Found::Host(from)) => {
            let from = from.bytes().to_vec();
            let mut to = *to;
            to.bytes_mut().copy_from_slice(&from);
            Ok(())
        }
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
