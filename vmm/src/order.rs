//! What must be finished before memory is unmapped. The driver does not wait; this crate does.
//!
//! An owner that goes leaves behind what its work was ordered on; whoever unmaps waits for it. So an
//! owner that is not the last one goes without waiting.

use std::sync::{Mutex, PoisonError};

use crate::device::Device;
use crate::error::{Error, ErrorKind};
use crate::stream::{self, Noted};

/// One thing to wait for.
#[derive(Clone, Debug)]
pub(crate) enum After {
    /// All work of this stream.
    Stream(Noted),
    /// The default stream of this device.
    Default(Device),
}

impl After {
    fn is(&self, other: &After) -> bool {
        match (self, other) {
            (After::Stream(a), After::Stream(b)) => a.is(b),
            (After::Default(a), After::Default(b)) => a == b,
            _ => false,
        }
    }

    fn keeps_more_than(&self, other: &After) -> bool {
        match (self, other) {
            (After::Stream(a), After::Stream(b)) => a.is_kept() && !b.is_kept(),
            _ => false,
        }
    }

    /// Whether nothing is left to wait for, now or later.
    fn is_over(&self) -> bool {
        match self {
            After::Stream(stream) => stream.is_over(),
            // It is one for each device.
            After::Default(_) => false,
        }
    }

    fn wait(&self) -> Result<(), Error> {
        match self {
            After::Stream(stream) => stream.wait(),
            After::Default(device) => stream::synchronize_default(device),
        }
    }
}

/// What the owners that went have left behind for one range of addresses: each thing once.
#[derive(Debug, Default)]
pub(crate) struct Order(Mutex<Pending>);

#[derive(Clone, Debug, Default)]
struct Pending {
    /// Counts the notes, so that what is noted again during a wait is not taken for waited.
    clock: u64,
    list: Vec<(After, u64)>,
    /// How long the list becomes before it is looked through for streams that are over.
    limit: usize,
}

/// Looking through fewer is not worth it.
const FEW: usize = 16;

impl Clone for Order {
    /// A list of its own with the same notes.
    fn clone(&self) -> Order {
        let pending = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Order(Mutex::new(pending.clone()))
    }
}

impl Order {
    pub(crate) fn note(&self, mut after: After) {
        let mut pending = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pending.clock += 1;
        let now = pending.clock;
        match pending.list.iter_mut().find(|(known, _)| known.is(&after)) {
            Some((known, noted)) => {
                *noted = now;
                // Of two values for one stream the one is kept that keeps the stream.
                if after.keeps_more_than(known) {
                    std::mem::swap(known, &mut after);
                }
            }
            None => pending.list.push((after.clone(), now)),
        }
        let many = pending.list.len() > pending.limit.max(FEW);
        // A stream that goes with `after` goes outside of the lock.
        drop(pending);
        if many {
            drop(after);
            self.prune();
        }
    }

    /// Whether `after` is to be waited for.
    pub(crate) fn has(&self, after: &After) -> bool {
        let pending = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pending.list.iter().any(|(known, _)| known.is(after))
    }

    /// Forget streams that nobody has any more and that have nothing left to do, so that a buffer
    /// which lives long does not collect them.
    fn prune(&self) {
        let list = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .list
            .clone();
        for (after, noted) in list {
            if after.is_over() {
                self.forget(&after, noted);
            }
        }
        let mut pending = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pending.limit = 2 * pending.list.len();
    }

    /// Wait for all that is noted. An entry stays in the list until it has been waited for, since
    /// another thread may be about to unmap what the same work uses. It also stays where the wait
    /// failed (in a capture, for example): whoever unmaps more of the range can wait then. Only a
    /// context that is broken for good runs nothing any more.
    pub(crate) fn wait(&self) -> Vec<Error> {
        let list = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .list
            .clone();
        let mut failed = Vec::new();
        for (after, noted) in list {
            let over = match after.wait() {
                Ok(()) => true,
                Err(error) => {
                    let broken = error.kind() == ErrorKind::ContextBroken;
                    failed.push(error);
                    broken
                }
            };
            if over {
                self.forget(&after, noted);
            }
        }
        failed
    }

    fn forget(&self, after: &After, noted: u64) {
        let mut pending = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = pending
            .list
            .iter()
            .position(|(known, at)| known.is(after) && *at == noted);
        let gone = found.map(|index| pending.list.swap_remove(index));
        drop(pending);
        drop(gone);
    }
}
