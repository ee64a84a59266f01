//! The list of mappings behind a buffer: never changed, only continued.
//!
//! Each chunk holds the one before it. So growing adds one link whatever the length, buffers that
//! grew from one another share what they have in common, and a chunk goes exactly when the last
//! buffer that reaches it goes.

use std::sync::Arc;

use crate::error::Error;
use crate::mapping::Mapping;
use crate::reservation::Reservation;

/// One mapped chunk and all chunks before it.
pub(crate) struct Link {
    prev: Option<Arc<Link>>,
    mapping: Mapping,
}

impl Link {
    /// Continue `tail` by mappings in address order.
    pub(crate) fn append(mut tail: Option<Arc<Link>>, mappings: Vec<Mapping>) -> Option<Arc<Link>> {
        for mapping in mappings {
            tail = Some(Arc::new(Link {
                prev: tail,
                mapping,
            }));
        }
        tail
    }

    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    pub(crate) fn prev(&self) -> Option<&Arc<Link>> {
        self.prev.as_ref()
    }
}

/// From the last chunk to the first.
pub(crate) fn backwards(tail: Option<&Arc<Link>>) -> impl Iterator<Item = &Arc<Link>> {
    std::iter::successors(tail, |link| link.prev())
}

/// Whether every chunk, and the memory in it, is held by this list alone.
pub(crate) fn is_unique(tail: Option<&Arc<Link>>) -> bool {
    backwards(tail).all(|link| {
        Arc::strong_count(link) == 1
            && link
                .mapping
                .allocation()
                .is_some_and(crate::allocation::Allocation::is_unique)
    })
}

/// Let go of a list, and have the mappings that nobody else reaches, in address order. Other owners
/// keep theirs.
pub(crate) fn into_mappings(tail: Option<Arc<Link>>) -> Vec<Mapping> {
    let mut mappings = Vec::new();
    let mut next = tail;
    while let Some(link) = next.and_then(Arc::into_inner) {
        mappings.push(link.mapping);
        next = link.prev;
    }
    mappings.reverse();
    mappings
}

/// Wait for what was noted for the ranges that these neighbours lie in, once for those that share it.
pub(crate) fn wait<'a>(mappings: impl IntoIterator<Item = &'a Mapping>) -> Vec<Error> {
    let mut failed = Vec::new();
    let mut waited: Option<&Reservation> = None;
    for reservation in mappings.into_iter().filter_map(Mapping::reservation) {
        if !waited.is_some_and(|before| before.waits_with(reservation)) {
            failed.extend(reservation.wait());
            waited = Some(reservation);
        }
    }
    failed
}
