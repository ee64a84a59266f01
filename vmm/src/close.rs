//! Letting go of memory, in order.

use std::sync::Arc;

use crate::capture::Relaxed;
use crate::chain::{self, Link};
use crate::driver::Driver;
use crate::error::Error;
use crate::mapping::{self, Place};
use crate::reservation::{Claim, Reservation};

/// Let go of `tail`: what nobody else reaches is waited for and unmapped, its memory released, and the
/// address ranges freed that nothing else is in.
pub(crate) fn release(
    driver: &Driver,
    tail: Option<Arc<Link>>,
    room: Option<Reservation>,
) -> Vec<Error> {
    let mappings = chain::into_mappings(tail);
    // In a forked child the boxes do nothing by themselves.
    if !driver.in_own_process() {
        return Vec::new();
    }
    // Most drops are of buffers that others continue or that had no memory: nothing goes, and no driver
    // call is made, unless a range was kept to grow into that nobody else has.
    if mappings.is_empty() {
        let freed = room.map(Reservation::close);
        return freed.and_then(Result::err).into_iter().collect();
    }
    let _relaxed = Relaxed::enter(driver);
    let unfinished = chain::wait(&mappings).into_iter();
    let mut failed: Vec<Error> = unfinished
        .map(|error| error.advise("the memory is released without waiting"))
        .collect();
    let places = mapping::unmap_all(driver, mappings, &mut failed);
    let ranges = release_places(places, &mut failed);
    for range in ranges.into_iter().chain(room) {
        failed.extend(range.close().err());
    }
    failed
}

/// Give back places where nothing is mapped, and free the ranges that nothing else is in.
pub(crate) fn free(claims: impl Iterator<Item = Claim>, room: Option<Reservation>) -> Vec<Error> {
    let mut ranges = Vec::new();
    for claim in claims {
        keep_range(&mut ranges, &claim);
    }
    let ranges = ranges.into_iter().chain(room);
    ranges.filter_map(|range| range.close().err()).collect()
}

/// Release memory and places; the ranges are returned for whoever frees them last.
fn release_places(places: Vec<Place>, failed: &mut Vec<Error>) -> Vec<Reservation> {
    let mut ranges = Vec::new();
    for Place {
        allocation, claim, ..
    } in places
    {
        keep_range(&mut ranges, &claim);
        drop(claim);
        failed.extend(allocation.let_go().err());
    }
    ranges
}

/// Remember the range that a claim lies in, once for neighbours.
fn keep_range(ranges: &mut Vec<Reservation>, claim: &Claim) {
    let range = claim.reservation();
    if !ranges.last().is_some_and(|last| last.is(range)) {
        ranges.push(range.clone());
    }
}
