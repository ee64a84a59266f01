//! Everything that can be read, compared at the end of a sequence.

use std::os::fd::OwnedFd;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use vmm_sys::*;

use super::bytes::same;
use super::state::{HOST, Model, READ, WRITE};
use super::{INVALID, OK, PAGE, Tested, call, location};

impl Tested<'_> {
    /// Every byte of every page of every reservation, as each user is allowed to read it, and then
    /// every byte of all memory that is alive, mapped or not.
    pub fn compare(&self, model: &Model) -> Result<(), TestCaseError> {
        for &(start, pages, alive) in &model.reservations {
            if alive {
                model
                    .all(start, pages)
                    .try_for_each(|address| self.compare_page(model, address))?;
            }
        }
        (0..model.memories.len()).try_for_each(|memory| self.compare_memory(model, memory))
    }

    fn compare_page(&self, model: &Model, address: u64) -> Result<(), TestCaseError> {
        let page = model.pages.get(&address);
        for user in 0..self.contexts.len() {
            self.become_device(user);
            let mut flags = 0;
            let at = location(user);
            let answer = call!(self.driver, cuMemGetAccess(&mut flags, &at, address));
            match page {
                Some(page) => prop_assert_eq!(
                    (answer, flags),
                    (OK, u64::from(page.access[user])),
                    "access of device {}",
                    user
                ),
                None => prop_assert_eq!(answer, INVALID),
            }
            // A real driver has the processor touch memory of the host, which ends the process where
            // it may not.
            let unsafe_place = model.real && model.touches_host(address, 1);
            let both = [user, HOST];
            let allowed = |user| model.runs(user, address, PAGE, READ).is_some();
            if unsafe_place && !both.into_iter().all(allowed) {
                continue;
            }
            let readable = model.runs_by_host(user, address, PAGE, READ);
            let expected = readable.map(|runs| model.bytes(&runs));
            // It would show in what is read.
            if !unsafe_place && model.runs(user, address, PAGE, WRITE).is_none() {
                let other = !expected.as_ref().map_or(0, |bytes| bytes[0]);
                prop_assert_eq!(self.fill(address, PAGE, other), INVALID);
            }
            self.read(address, PAGE, expected.as_deref())?;
        }
        if let Some(runs) = model.runs(HOST, address, PAGE, READ) {
            let mut read = vec![0; self.page as usize];
            let from: *const u8 = std::ptr::with_exposed_provenance(address as usize);
            // SAFETY: the page is mapped, the processor may read it, and nothing writes to it now.
            unsafe { read.as_mut_ptr().copy_from_nonoverlapping(from, read.len()) };
            same(&read, &model.bytes(&runs), model.unit as usize)?;
        }
        Ok(())
    }

    /// Maps memory anew to see all of it: what an operation spilled may lie where no mapping is or
    /// no access allows a look. Memory that can be exported comes by an import, which the driver
    /// answers only where what it keeps about the memory is whole.
    fn compare_memory(&self, model: &Model, memory: usize) -> Result<(), TestCaseError> {
        let mut known = model
            .handles
            .iter()
            .filter(|handle| handle.memory == memory);
        let mut exports = model.exports.iter().filter(|export| export.1 == memory);
        let exported;
        let fd: Option<&OwnedFd> = match (
            exports.next(),
            known.clone().find(|handle| {
                handle.references > 0 && !handle.imported && model.memories[memory].shareable
            }),
        ) {
            (Some((fd, _)), _) => Some(fd),
            (None, Some(handle)) => {
                let Ok(fd) = self.export(handle.value) else {
                    return Err(TestCaseError::fail("memory cannot be exported"));
                };
                exported = fd;
                Some(&exported)
            }
            (None, None) => None,
        };
        let mapped = model
            .pages
            .iter()
            .find(|(_, page)| model.memory(page) == memory);
        let (handle, owned) = if let Some(fd) = fd {
            match self.import(fd) {
                Ok(handle) => (handle, true),
                Err(_) => return Err(TestCaseError::fail("memory cannot be imported")),
            }
        } else if let Some(handle) = known.find(|handle| handle.references > 0) {
            (handle.value, false)
        } else if let Some((&address, _)) = mapped {
            let at = std::ptr::without_provenance_mut(address as usize);
            let mut handle = 0;
            let answer = call!(self.driver, cuMemRetainAllocationHandle(&mut handle, at));
            prop_assert_eq!(answer, OK);
            (handle, true)
        } else {
            return Ok(());
        };
        let result = self.compare_through(model, memory, handle);
        if owned {
            prop_assert_eq!(call!(self.driver, cuMemRelease(handle)), OK);
        }
        result
    }

    fn compare_through(
        &self,
        model: &Model,
        memory: usize,
        handle: u64,
    ) -> Result<(), TestCaseError> {
        let user = match model.memories[memory].at {
            HOST => 0,
            device => device,
        };
        self.become_device(user);
        let pages = model.size(memory);
        let size = (pages * self.page) as usize;
        let mut address = 0;
        let reserved = call!(
            self.driver,
            cuMemAddressReserve(&mut address, size, 0, 0, 0)
        );
        prop_assert_eq!(reserved, OK);
        let mapped = call!(self.driver, cuMemMap(address, size, 0, handle, 0));
        let given = self.give_access(user, address, pages, READ);
        let result = match (mapped, given) {
            (OK, OK) => self.read(address, pages * PAGE, Some(&model.memories[memory].bytes)),
            other => Err(TestCaseError::fail(format!(
                "memory cannot be mapped: {other:?}"
            ))),
        };
        call!(self.driver, cuMemUnmap(address, size));
        let freed = call!(self.driver, cuMemAddressFree(address, size));
        result?;
        prop_assert_eq!(freed, OK);
        Ok(())
    }
}
