//! Graph capture: the captures under way, and the mode of each thread.

use crate::code::{Code, Result};
use crate::stream::Point;
use crate::thread::Thread;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;

/// `CUstreamCaptureMode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Global,
    ThreadLocal,
    Relaxed,
}

/// `CUstreamCaptureStatus`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    None = 0,
    Active = 1,
    Invalidated = 2,
}

#[derive(Debug)]
pub(crate) struct Capture {
    pub mode: Mode,
    pub thread: Thread,
    pub origin: u64,
    pub invalidated: bool,
    /// How far every stream is that belongs to it, or did before it was destroyed.
    pub points: BTreeMap<u64, Point>,
}

impl Capture {
    pub fn point(&mut self, stream: u64) -> &mut Point {
        self.points.entry(stream).or_default()
    }

    /// Whether all work comes before the point where the origin is now.
    pub fn is_joined(&self) -> bool {
        let end = self.points.get(&self.origin);
        self.points.iter().all(|(stream, point)| {
            let work = point.get(stream).copied().unwrap_or(0);
            work <= end.and_then(|end| end.get(stream)).copied().unwrap_or(0)
        })
    }
}

/// The captures under way, by id.
#[derive(Debug, Default)]
pub(crate) struct Captures {
    pub all: BTreeMap<u64, Capture>,
    pub begun: u64,
    pub ended: u64,
    /// The graphs that were not destroyed.
    pub graphs: BTreeSet<u64>,
}

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::Global) };
}

impl Mode {
    pub fn from_c(mode: c_int) -> Result<Self> {
        match mode {
            0 => Ok(Self::Global),
            1 => Ok(Self::ThreadLocal),
            2 => Ok(Self::Relaxed),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    pub fn to_c(self) -> c_int {
        match self {
            Self::Global => 0,
            Self::ThreadLocal => 1,
            Self::Relaxed => 2,
        }
    }
}

/// `cuThreadExchangeStreamCaptureMode`.
pub(crate) fn exchange_mode(mode: Mode) -> Mode {
    MODE.replace(mode)
}

/// The mode of the calling thread.
pub(crate) fn mode() -> Mode {
    MODE.get()
}
