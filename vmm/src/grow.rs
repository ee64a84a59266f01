//! Longer and shorter buffers. No byte is copied, and what is mapped stays as it is.

use crate::access::AccessSet;
use crate::allocation::Allocation;
use crate::allocator::Allocator;
use crate::buffer::Buffer;
use crate::capture::Relaxed;
use crate::chain::{self, Link};
use crate::driver::Driver;
use crate::error::{Error, ErrorKind, Result};
use crate::location::HandleTypes;
use crate::mapping::{Mapping, Place};
use crate::reservation::{Claim, Reservation};
use crate::size;

impl Buffer {
    /// A buffer of `new_len` bytes that begins with the bytes of this one, by this buffer's
    /// allocator. This one stays valid, and both see the same bytes.
    ///
    /// It is tried in place first (spare capacity, then addresses that happen to be free behind),
    /// where the address stays the same; else the chunks are mapped again at a new address. Bytes
    /// are never copied, and the cost is that of the new chunk unless the buffer moves. A buffer
    /// that moves reserves twice its size, so that moves stay few.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] for a shorter length, or a buffer without an allocator (see
    /// [`Buffer::extend`] and [`Buffer::grow_with`]); else as [`Allocator::allocate`]. Nothing has
    /// changed then.
    #[doc(alias = "cuMemCreate")]
    pub fn grow(&self, new_len: usize) -> Result<Buffer> {
        match &self.kind.allocator {
            Some(allocator) => self.grow_with(&allocator.clone(), new_len),
            None => Err(Error::invalid(
                self.growing(new_len),
                "it was put together from given allocations and has no allocator",
            )
            .advise(
                "use `extend` with more allocations, or `grow_with` an allocator; one that was \
                 imported grows when its exporter's does (`Imported::receive_update` of vmm-ipc)",
            )),
        }
    }

    /// As [`Buffer::grow`], with the memory of another allocator: on another device, with other
    /// access. The access of what is mapped already stays as it is.
    ///
    /// # Errors
    ///
    /// As [`Buffer::grow`].
    pub fn grow_with(&self, allocator: &Allocator, new_len: usize) -> Result<Buffer> {
        let driver = self.kind.device.driver();
        driver.check()?;
        let attempt = || self.growing(new_len);
        driver.check_same(allocator.device().driver(), attempt)?;
        if new_len < self.len {
            let reason = "the new length is below the present one";
            return Err(Error::invalid(attempt(), reason).advise("use `shrink`"));
        }
        if new_len <= self.mapped {
            let mut longer = self.alias();
            longer.len = new_len;
            return Ok(longer);
        }
        let granularity = self.kind.granularity.max(allocator.granularity());
        let needed = size::round_up(new_len - self.mapped, granularity, attempt)?;
        size::round_up(self.mapped.saturating_add(needed), granularity, attempt)?;
        let room = self.capacity() - self.mapped;
        let step = allocator
            .chunk_policy()
            .step(self.mapped, needed, room, granularity);
        let _relaxed = Relaxed::enter(driver);
        // Addresses first: a length that none can have takes no memory from anyone.
        let (step, target) = match self.target(step) {
            Err(error) if error.kind() == ErrorKind::OutOfAddressSpace && needed < step => {
                (needed, self.target(needed)?)
            }
            target => (step, target?),
        };
        let chunks = allocator.chunks(step, needed)?;
        self.put(target, chunks, allocator.access(), new_len)
    }

    /// A buffer of `new_len` bytes that continues this one by given allocations, as an importer does
    /// when the exporter has grown. In place where there is room, as [`Buffer::grow`] does.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] where `new_len` is shorter or not covered; those of the driver
    /// calls. Nothing has changed then, except that the allocations are gone.
    pub fn extend(&self, allocations: Vec<Allocation>, new_len: usize) -> Result<Buffer> {
        let driver = self.kind.device.driver();
        driver.check()?;
        if new_len < self.len {
            return Err(Error::invalid(
                self.growing(new_len),
                "the new length is below the present one",
            ));
        }
        let _relaxed = Relaxed::enter(driver);
        let access = self.kind.access.clone();
        self.append(allocations, &access, new_len)
    }

    /// A buffer of the first `new_len` bytes. Chunks that lie wholly behind them are freed when the
    /// last buffer that has them goes; their addresses stay reserved up to [`Buffer::capacity`], and can be
    /// grown into again.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] for a longer length.
    pub fn shrink(&self, new_len: usize) -> Result<Buffer> {
        self.kind.device.driver().check()?;
        if new_len > self.len {
            let attempt = format!(
                "shrinking a buffer of {} bytes to {new_len} bytes",
                self.len
            );
            return Err(
                Error::invalid(attempt, "the new length is above the present one")
                    .advise("use `grow`"),
            );
        }
        let mut shorter = self.alias();
        let mut tail = shorter.tail.take();
        while let Some(link) = &tail {
            let offset = (link.mapping().address() - self.base) as usize;
            if offset < new_len {
                break;
            }
            // The range of the first chunk that goes: it begins right behind those that stay, or goes on there.
            shorter.room = link.mapping().reservation().cloned();
            shorter.mapped = offset;
            shorter.chunks -= 1;
            let prev = link.prev().cloned();
            tail = prev;
        }
        if tail.is_none() {
            // Nothing is left in which anything was done.
            shorter.earlier = None;
        }
        shorter.tail = tail;
        shorter.len = new_len;
        Ok(shorter)
    }

    /// Continue by chunks at the end: in place, beside, or moved. All or nothing.
    pub(crate) fn append(
        &self,
        allocations: Vec<Allocation>,
        access: &AccessSet,
        new_len: usize,
    ) -> Result<Buffer> {
        let attempt = || self.growing(new_len);
        let total = size::total(allocations.iter().map(Allocation::size), attempt)?;
        let mapped = self
            .mapped
            .checked_add(total)
            .filter(|&m| m <= isize::MAX as usize);
        let Some(mapped) = mapped else {
            return Err(Error::invalid(
                attempt(),
                "that is more than there are addresses",
            ));
        };
        if new_len > mapped {
            let reason = format!("the memory is only {mapped} bytes");
            return Err(Error::invalid(attempt(), reason));
        }
        if allocations.is_empty() {
            let mut same = self.alias();
            same.len = new_len;
            return Ok(same);
        }
        self.check_reach(&allocations, access, attempt)?;
        let target = self.target(total)?;
        self.put(target, allocations, access, new_len)
    }

    /// That the memory is of this driver, and that every device which is to have access can reach it,
    /// before anything is mapped.
    fn check_reach(
        &self,
        allocations: &[Allocation],
        access: &AccessSet,
        attempt: impl Fn() -> String,
    ) -> Result<()> {
        for alike in allocations.chunk_by(Allocation::lies_with) {
            let Some(chunk) = alike.first() else { continue };
            let holder = chunk.device();
            let driver = self.kind.device.driver();
            driver.check_same(holder.driver(), &attempt)?;
            if chunk.location().is_host() {
                continue;
            }
            for device in access.devices() {
                if !device.can_access(&holder)? {
                    let reason = device.cannot_reach(&holder);
                    return Err(Error::new(ErrorKind::NotSupported, attempt(), reason));
                }
            }
        }
        Ok(())
    }

    /// Where `bytes` more can be mapped: right behind, else somewhere else with all the rest.
    fn target(&self, bytes: usize) -> Result<Target> {
        if let Some(claim) = self.claim_behind(bytes)? {
            return Ok(Target::Behind(claim));
        }
        let claim = self.claim_elsewhere(self.mapped.saturating_add(bytes))?;
        Ok(Target::Elsewhere(claim))
    }

    /// Map chunks where there is room for them, or more. All or nothing.
    fn put(
        &self,
        target: Target,
        allocations: Vec<Allocation>,
        access: &AccessSet,
        new_len: usize,
    ) -> Result<Buffer> {
        let mut grown = self.alias();
        grown.len = new_len;
        grown.chunks += allocations.len();
        grown.mapped += allocations.iter().map(Allocation::size).sum::<usize>();
        grown.kind.handle_types = allocations
            .iter()
            .map(Allocation::handle_types)
            .fold(self.kind.handle_types, HandleTypes::intersection);
        grown.kind.add_users(access);
        grown.kind.is_plain &= allocations
            .iter()
            .all(|chunk| !chunk.location().is_host() && chunk.device() == self.kind.device);
        let driver = self.kind.device.driver();
        let mut last = access.clone();
        let chunks = allocations.into_iter().map(move |chunk| {
            // One value for chunks that lie alike, so that one call grants them together.
            last = last.at(chunk.location());
            (chunk, last.clone())
        });
        match target {
            Target::Behind(claim) => {
                grown.room = Some(claim.reservation().clone());
                let mappings = map(driver, claim, chunks)?;
                grown.tail = Link::append(grown.tail.take(), mappings);
            }
            Target::Elsewhere(claim) => {
                let mut all = self.contents();
                all.extend(chunks);
                grown.room = Some(claim.reservation().clone());
                grown.base = claim.address();
                let mappings = map(driver, claim, all)?;
                // The old place still has its owner, `self`; the new one is a list of its own.
                grown.tail = Link::append(None, mappings);
            }
        }
        Ok(grown)
    }

    /// The addresses right behind the mapped bytes, if they can be had.
    fn claim_behind(&self, bytes: usize) -> Result<Option<Claim>> {
        let Some(room) = &self.room else {
            return Ok(None);
        };
        let end = self.base + self.mapped as u64;
        if let Some(claim) = room.claim(end, bytes) {
            return Ok(Some(claim));
        }
        if room.end() != end || self.mapped == 0 {
            return Ok(None);
        }
        // Room for more than this step where it is free, since a reservation for each step would
        // cost more than the addresses.
        for size in [bytes.max(self.mapped), bytes] {
            let beside = room.beside(size, self.kind.granularity);
            match beside {
                Ok(beside) if beside.base() == end => return Ok(beside.claim(end, bytes)),
                // The driver put it elsewhere: those addresses are taken.
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::OutOfAddressSpace => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Addresses for the whole buffer at a new place, with room to grow into.
    fn claim_elsewhere(&self, bytes: usize) -> Result<Claim> {
        let ample = bytes.max(self.mapped.saturating_mul(2));
        let (driver, alignment) = (self.kind.device.driver(), self.kind.alignment);
        // What was done to the chunks at their old place is done to them at the new one.
        let reserve = |size| match self.reservation() {
            Some(old) => old.elsewhere(size, alignment),
            None => Reservation::new(driver, size, alignment, 0),
        };
        let room = match reserve(ample) {
            Err(error) if error.kind() == ErrorKind::OutOfAddressSpace && ample > bytes => {
                reserve(bytes)?
            }
            result => result?,
        };
        let base = room.base();
        // A new range has no other owner, so the claim cannot fail.
        room.claim(base, bytes)
            .ok_or_else(|| Error::invalid(self.growing(bytes), "the new range is not free"))
    }

    /// Every chunk with its access, in address order.
    fn contents(&self) -> Vec<(Allocation, AccessSet)> {
        let mut chunks: Vec<_> = chain::backwards(self.tail.as_ref())
            .filter_map(|link| {
                let mapping = link.mapping();
                Some((mapping.allocation()?.clone(), mapping.access()?.clone()))
            })
            .collect();
        chunks.reverse();
        chunks
    }

    fn growing(&self, new_len: usize) -> String {
        format!(
            "growing a buffer of {} bytes to {new_len} bytes on {}",
            self.len, self.kind.device
        )
    }
}

/// Addresses for what a buffer grows by.
enum Target {
    /// Right behind what is mapped.
    Behind(Claim),
    /// For the whole buffer, at another place.
    Elsewhere(Claim),
}

/// Map chunks one after the other from the start of `claim`. All or nothing.
fn map(
    driver: &Driver,
    claim: Claim,
    chunks: impl IntoIterator<Item = (Allocation, AccessSet)>,
) -> Result<Vec<Mapping>> {
    Mapping::run(driver, Place::cut(claim, chunks)).map_err(|undone| undone.error)
}
