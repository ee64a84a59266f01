//! Physical memory at an address: mapped whole, unmapped once.

use crate::access::AccessSet;
use crate::allocation::Allocation;
use crate::driver::Driver;
use crate::error::{Error, ErrorKind, Result};
use crate::raw;
use crate::reservation::{Claim, Reservation};

use vmm_sys::CUresult;

/// One allocation mapped at one place of one reservation. Holds both.
pub(crate) struct Mapping {
    /// `None` once it is unmapped.
    place: Option<Place>,
}

/// Memory, and where it is to be, is, or was mapped.
pub(crate) struct Place {
    pub(crate) allocation: Allocation,
    pub(crate) claim: Claim,
    pub(crate) access: AccessSet,
}

/// Why mapping failed, and the places, free again. A place is missing where what was mapped there
/// could not be unmapped (which was reported).
pub(crate) struct Undone {
    pub(crate) error: Error,
    pub(crate) claims: Vec<Claim>,
}

impl Place {
    /// Cut `claim` into places for these chunks, one after the other.
    pub(crate) fn cut(
        mut claim: Claim,
        chunks: impl IntoIterator<Item = (Allocation, AccessSet)>,
    ) -> Vec<Place> {
        let place = |(allocation, access): (Allocation, AccessSet)| {
            let claim = claim.split(allocation.size());
            Place {
                allocation,
                claim,
                access,
            }
        };
        chunks.into_iter().map(place).collect()
    }
}

impl Mapping {
    /// Map memory at places that lie one after the other. All or nothing.
    ///
    /// Access is granted in as few calls as possible: one for each run of chunks with one access.
    pub(crate) fn run(
        driver: &Driver,
        places: Vec<Place>,
    ) -> std::result::Result<Vec<Mapping>, Undone> {
        let count = places.len();
        let mut mapped = Vec::with_capacity(count);
        let mut places = places.into_iter();
        while let Some(place) = places.next() {
            let size = place.allocation.size();
            if let Err(error) = place.allocation.map_at(place.claim.address()) {
                let what = format!(
                    "mapping chunk {} of {count}: {size} bytes",
                    mapped.len() + 1
                );
                let error = explain_map(Error::driver(what, error), size, &place.allocation);
                let rest = std::iter::once(place)
                    .chain(places)
                    .map(|place| place.claim);
                return Err(undo(driver, mapped, rest, error));
            }
            mapped.push(Mapping { place: Some(place) });
        }
        match grant(driver, &mapped) {
            Ok(()) => Ok(mapped),
            Err(error) => Err(undo(driver, mapped, std::iter::empty(), error)),
        }
    }

    pub(crate) fn address(&self) -> u64 {
        self.place.as_ref().map_or(0, |place| place.claim.address())
    }

    pub(crate) fn size(&self) -> usize {
        self.allocation().map_or(0, Allocation::size)
    }

    pub(crate) fn end(&self) -> u64 {
        self.address() + self.size() as u64
    }

    pub(crate) fn allocation(&self) -> Option<&Allocation> {
        self.place.as_ref().map(|place| &place.allocation)
    }

    pub(crate) fn access(&self) -> Option<&AccessSet> {
        self.place.as_ref().map(|place| &place.access)
    }

    pub(crate) fn reservation(&self) -> Option<&Reservation> {
        self.place.as_ref().map(|place| place.claim.reservation())
    }

    /// Unmap, and give back the memory and the place. In a forked child nothing happens.
    fn unmap(&mut self) -> Result<Option<Place>> {
        let Some(place) = self.place.take() else {
            return Ok(None);
        };
        let (address, size) = (place.claim.address(), place.allocation.size());
        let driver = place.allocation.driver();
        if !driver.in_own_process() {
            return Ok(None);
        }
        if let Err(error) = raw::unmap(driver.sys(), address, size) {
            place.claim.leak();
            let what = format!("unmapping {size} bytes at {address:#x}");
            return Err(Error::driver(what, error)
                .advise("its memory and addresses stay in use until the process ends"));
        }
        Ok(Some(place))
    }
}

/// Unmap neighbours in one call. `mappings` are in address order, without a gap. Where the driver
/// refuses, nothing has changed.
pub(crate) fn unmap_together(
    driver: &Driver,
    mut mappings: Vec<Mapping>,
) -> std::result::Result<Vec<Place>, (Error, Vec<Mapping>)> {
    let (Some(first), Some(last)) = (mappings.first(), mappings.last()) else {
        return Ok(Vec::new());
    };
    let (address, size) = (first.address(), (last.end() - first.address()) as usize);
    match raw::unmap(driver.sys(), address, size) {
        Ok(()) => Ok(mappings
            .iter_mut()
            .filter_map(|mapping| mapping.place.take())
            .collect()),
        Err(error) => {
            let what = format!("unmapping {size} bytes at {address:#x}");
            Err((Error::driver(what, error), mappings))
        }
    }
}

/// Unmap neighbours in one call, or one by one where that fails, so that as much as possible goes.
pub(crate) fn unmap_all(
    driver: &Driver,
    mappings: Vec<Mapping>,
    failed: &mut Vec<Error>,
) -> Vec<Place> {
    let mut rest = match unmap_together(driver, mappings) {
        Ok(places) => return places,
        Err((_, mappings)) => mappings,
    };
    let mut places = Vec::with_capacity(rest.len());
    for mapping in &mut rest {
        match mapping.unmap() {
            Ok(place) => places.extend(place),
            Err(error) => failed.push(error),
        }
    }
    places
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let Some(place) = &self.place else { return };
        let driver = place.allocation.driver().clone();
        if let Err(error) = self.unmap() {
            driver.report(error);
        }
    }
}

fn grant(driver: &Driver, mapped: &[Mapping]) -> Result<()> {
    let alike = |a: &Mapping, b: &Mapping| match (a.access(), b.access()) {
        (Some(a), Some(b)) => a.is(b),
        _ => false,
    };
    for run in mapped.chunk_by(alike) {
        let (Some(first), Some(last)) = (run.first(), run.last()) else {
            continue;
        };
        let Some(access) = first
            .access()
            .filter(|access| !access.descriptors().is_empty())
        else {
            continue;
        };
        let size = (last.end() - first.address()) as usize;
        raw::set_access(driver.sys(), first.address(), size, access.descriptors()).map_err(
            |error| {
                Error::driver(
                    format!("granting {} access to {size} bytes", access.owner()),
                    error,
                )
            },
        )?;
    }
    Ok(())
}

fn undo(
    driver: &Driver,
    mapped: Vec<Mapping>,
    rest: impl Iterator<Item = Claim>,
    error: Error,
) -> Undone {
    let mut failed = Vec::new();
    let places = unmap_all(driver, mapped, &mut failed);
    for error in failed {
        driver.report(error);
    }
    Undone {
        error,
        claims: places
            .into_iter()
            .map(|place| place.claim)
            .chain(rest)
            .collect(),
    }
}

fn explain_map(error: Error, size: usize, allocation: &Allocation) -> Error {
    match error.code() {
        Some(CUresult::CUDA_ERROR_NOT_SUPPORTED | CUresult::CUDA_ERROR_INVALID_VALUE)
            if allocation.is_imported() =>
        {
            error.because(
                ErrorKind::InvalidArgument,
                format!("the imported memory is not {size} bytes long, as was stated"),
            )
        }
        _ => error,
    }
}
