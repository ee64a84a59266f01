//! Address space: one reserved range, freed once with its exact pair, and who maps where in it.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::capture::Relaxed;
use crate::driver::Driver;
use crate::error::{Attempt, Error, ErrorKind, Result};
use crate::free_list::FreeList;
use crate::order::{After, Order};
use crate::raw::{self, AddressPair};

use vmm_sys::CUresult;

/// A reserved range of addresses. Freed when the last mapping and buffer in it are gone.
#[derive(Clone)]
pub(crate) struct Reservation(Arc<Range>);

struct Range {
    driver: Driver,
    pair: AddressPair,
    free: Mutex<FreeList>,
    /// Shared with the ranges beside, since what runs in one buffer can touch all of them.
    order: Arc<Order>,
}

/// The exclusive right to map at one place of a reservation; goes back when it is dropped.
///
/// Everything that is ever mapped goes through a claim, so two mappings cannot overlap and none can
/// reach past the end of its reservation.
pub(crate) struct Claim {
    reservation: Reservation,
    offset: usize,
    size: usize,
}

impl Reservation {
    /// Reserve `size` bytes, a multiple of the granularity. `hint` is where they would be welcome;
    /// the driver decides.
    pub(crate) fn new(driver: &Driver, size: usize, alignment: usize, hint: u64) -> Result<Self> {
        Self::with_order(driver, size, alignment, hint, Arc::default())
    }

    /// Reserve `size` bytes behind this range, if the driver happens to put them there. What is
    /// mapped in both is waited for together.
    pub(crate) fn beside(&self, size: usize, alignment: usize) -> Result<Self> {
        let order = Arc::clone(&self.0.order);
        Self::with_order(&self.0.driver, size, alignment, self.end(), order)
    }

    /// Reserve `size` bytes for what is mapped here to be mapped again: what was noted so far is noted
    /// there, too.
    pub(crate) fn elsewhere(&self, size: usize, alignment: usize) -> Result<Self> {
        let order = Arc::new(Order::clone(&self.0.order));
        Self::with_order(&self.0.driver, size, alignment, 0, order)
    }

    fn with_order(
        driver: &Driver,
        size: usize,
        alignment: usize,
        hint: u64,
        order: Arc<Order>,
    ) -> Result<Self> {
        let pair = raw::reserve(driver.sys(), size, alignment, hint).map_err(|error| {
            let exhausted = error.code() == Some(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
            let at = match alignment > size {
                true => format!(" at a multiple of {alignment} bytes"),
                false => String::new(),
            };
            let error = Error::driver(
                format!("reserving {size} bytes of address space{at}"),
                error,
            );
            match (exhausted, alignment > size) {
                (true, true) => error.because(
                    ErrorKind::OutOfAddressSpace,
                    "the process has no free range so aligned: ask for a smaller alignment",
                ),
                (true, false) => error.because(
                    ErrorKind::OutOfAddressSpace,
                    "the process has no free range of that size: reserve less capacity",
                ),
                _ => error,
            }
        })?;
        let free = Mutex::new(FreeList::new(pair.size));
        Ok(Reservation(Arc::new(Range {
            driver: driver.clone(),
            pair,
            free,
            order,
        })))
    }

    pub(crate) fn base(&self) -> u64 {
        self.0.pair.base
    }

    pub(crate) fn size(&self) -> usize {
        self.0.pair.size
    }

    /// One past the last address.
    pub(crate) fn end(&self) -> u64 {
        self.base() + self.size() as u64
    }

    /// Claim the `size` bytes at `address`, if all of them are inside and free.
    pub(crate) fn claim(&self, address: u64, size: usize) -> Option<Claim> {
        let offset = usize::try_from(address.checked_sub(self.base())?).ok()?;
        let taken = self
            .0
            .free
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take(offset, size);
        taken.then(|| Claim {
            reservation: self.clone(),
            offset,
            size,
        })
    }

    /// Have whoever unmaps memory in this range wait for `after` first.
    pub(crate) fn note(&self, after: After) {
        self.0.order.note(after);
    }

    /// Whether `after` was noted and not waited for yet.
    pub(crate) fn has(&self, after: &After) -> bool {
        self.0.order.has(after)
    }

    /// Wait for all that was noted. Failures are returned.
    pub(crate) fn wait(&self) -> Vec<Error> {
        self.0.order.wait()
    }

    pub(crate) fn is(&self, other: &Reservation) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether both wait for the same work.
    pub(crate) fn waits_with(&self, other: &Reservation) -> bool {
        Arc::ptr_eq(&self.0.order, &other.0.order)
    }

    /// Free the range, if nothing else holds it.
    pub(crate) fn close(self) -> Result<()> {
        match Arc::into_inner(self.0) {
            Some(mut range) => range.release(),
            None => Ok(()),
        }
    }
}

impl Claim {
    pub(crate) fn address(&self) -> u64 {
        self.reservation.base() + self.offset as u64
    }

    pub(crate) fn reservation(&self) -> &Reservation {
        &self.reservation
    }

    /// Give up the first `size` bytes of this claim to a claim of their own.
    pub(crate) fn split(&mut self, size: usize) -> Claim {
        let size = size.min(self.size);
        let first = Claim {
            reservation: self.reservation.clone(),
            offset: self.offset,
            size,
        };
        self.offset += size;
        self.size -= size;
        first
    }

    /// Keep the place taken for ever: something is still mapped there that could not be unmapped.
    pub(crate) fn leak(self) {
        std::mem::forget(self);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let range = &self.reservation.0;
        // In a forked child the list may be locked by a thread that is not there.
        if self.size > 0 && range.driver.in_own_process() {
            range
                .free
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .give(self.offset, self.size);
        }
    }
}

impl Range {
    fn release(&mut self) -> Result<()> {
        let size = std::mem::take(&mut self.pair.size);
        if size == 0 || !self.driver.in_own_process() {
            return Ok(());
        }
        let pair = AddressPair {
            base: self.pair.base,
            size,
        };
        let _relaxed = Relaxed::enter(&self.driver);
        raw::free(self.driver.sys(), &pair)
            .attempt(|| format!("freeing {size} bytes of address space at {:#x}", pair.base))
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        if let Err(error) = self.release() {
            self.driver.report(error);
        }
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reservation({:#x} + {})", self.base(), self.size())
    }
}
