//! What must be finished before memory is unmapped. The driver does not wait; this crate does.
//!
//! An owner that goes leaves behind what its work was ordered on; whoever unmaps waits for it. So an
//! owner that is not the last one goes without waiting.

use std::sync::{Mutex, PoisonError};

use crate::device::Device;
use crate::error::{Error, ErrorKind};
use crate::stream::{self, Stream};

/// One thing to wait for.
#[derive(Clone, Debug)]
pub(crate) enum After {
    /// All work of this stream.
    Stream(Stream),
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

    fn wait(&self) -> Result<(), Error> {
        match self {
            After::Stream(stream) => stream.synchronize(),
            After::Default(device) => stream::synchronize_default(device),
        }
    }
}

/// What the owners that went have left behind for one range of addresses: each thing once.
#[derive(Debug, Default)]
pub(crate) struct Order(Mutex<Pending>);

#[derive(Debug, Default)]
struct Pending {
    /// Counts the notes, so that what is noted again during a wait is not taken for waited.
    clock: u64,
    list: Vec<(After, u64)>,
}

impl Order {
    pub(crate) fn note(&self, after: After) {
        let mut pending = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pending.clock += 1;
        let now = pending.clock;
        match pending.list.iter_mut().find(|(known, _)| known.is(&after)) {
            Some((_, noted)) => *noted = now,
            None => pending.list.push((after, now)),
        }
    }

    /// Wait for all that is noted. An entry stays in the list until it has been waited for, since
    /// another thread may be about to unmap what the same work uses.
    pub(crate) fn wait(&self) -> Vec<Error> {
        let list = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .list
            .clone();
        let mut failed = Vec::new();
        for (after, noted) in list {
            if let Err(error) = after.wait() {
                let later = error.kind() == ErrorKind::Capturing;
                failed.push(error.advise("the memory is released without waiting"));
                if later {
                    // Whoever unmaps more of the range after the capture can still wait.
                    continue;
                }
            }
            let mut pending = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            pending
                .list
                .retain(|(known, at)| !(known.is(&after) && *at == noted));
        }
        failed
    }
}
