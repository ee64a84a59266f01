//! Random operations against a plain model of reservations, allocations, mappings and access: the
//! driver and the model agree on every answer and on all bytes.
//!
//! On the emulator a granule is a page of the host, so that bytes are cheap to compare. On a real
//! driver it is the driver's own, one unit of the model stands for as many bytes as make that equal,
//! and what could harm the process is left out: handles and addresses that are the driver's again,
//! and mappings past the end of their reservation, which it does not refuse.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};
use vmm_sys::*;

use crate::{Case, Context, Failure, cases};

pub const CASES: &[Case] =
    cases![random_sequences_agree_with_a_plain_model: misuses() timeout(300)];

/// Units in a granule.
const PAGE: u64 = 4096;
const MEMORY_PAGES: u64 = 24;

const OK: CUresult = CUresult::CUDA_SUCCESS;
const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// Numbers choose among what is alive, or once was, when the operation comes.
#[derive(Debug, Clone)]
enum Op {
    Create {
        pages: u64,
    },
    Release {
        allocation: usize,
    },
    Retain {
        place: Place,
    },
    Reserve {
        pages: u64,
    },
    Free {
        reservation: usize,
        skew: u64,
    },
    Map {
        allocation: usize,
        place: Place,
        pages: Option<u64>,
        offset: u64,
    },
    Unmap {
        place: Place,
        pages: u64,
    },
    Access {
        place: Place,
        pages: u64,
        flags: u32,
    },
    Fill {
        place: Place,
        shift: u64,
        len: u64,
        value: u8,
    },
    Read {
        place: Place,
        shift: u64,
        len: u64,
    },
    Copy {
        to: Place,
        from: Place,
        len: u64,
    },
}

/// A page of a reservation, or just beyond.
#[derive(Debug, Clone, Copy)]
struct Place {
    reservation: usize,
    page: u64,
}

fn op() -> impl Strategy<Value = Op> {
    let place =
        || (0..4_usize, 0..7_u64).prop_map(|(reservation, page)| Place { reservation, page });
    prop_oneof![
        3 => (0..5_u64).prop_map(|pages| Op::Create { pages }),
        1 => (0..5_usize).prop_map(|allocation| Op::Release { allocation }),
        1 => place().prop_map(|place| Op::Retain { place }),
        2 => (0..8_u64).prop_map(|pages| Op::Reserve { pages }),
        1 => (0..4_usize, prop_oneof![3 => Just(0_u64), 1 => 1..3_u64]).prop_map(|(reservation, skew)| Op::Free { reservation, skew }),
        6 => (0..5_usize, place(), prop::option::weighted(0.1, 0..5_u64), prop_oneof![9 => Just(0_u64), 1 => Just(1_u64)])
            .prop_map(|(allocation, place, pages, offset)| Op::Map { allocation, place, pages, offset }),
        2 => (place(), 0..7_u64).prop_map(|(place, pages)| Op::Unmap { place, pages }),
        5 => (place(), 0..7_u64, prop_oneof![1 => Just(0_u32), 2 => Just(1), 6 => Just(3), 1 => Just(2)])
            .prop_map(|(place, pages, flags)| Op::Access { place, pages, flags }),
        4 => (place(), 0..PAGE, 0..3 * PAGE, any::<u8>()).prop_map(|(place, shift, len, value)| Op::Fill { place, shift, len, value }),
        3 => (place(), 0..PAGE, 0..3 * PAGE).prop_map(|(place, shift, len)| Op::Read { place, shift, len }),
        2 => (place(), place(), 0..3 * PAGE).prop_map(|(to, from, len)| Op::Copy { to, from, len }),
    ]
}

/// Addresses and lengths are in bytes; what an allocation holds is one byte for each unit.
struct Model {
    /// Bytes in a granule, and in a unit.
    page: u64,
    unit: u64,
    real: bool,
    allocations: Vec<Allocation>,
    /// Every address that a reservation ever had, with its pages and whether it still is one.
    reservations: Vec<(u64, u64, bool)>,
    /// Mapped pages.
    pages: BTreeMap<u64, Page>,
}

struct Allocation {
    handle: u64,
    bytes: Vec<u8>,
    references: u64,
}

#[derive(Clone, Copy)]
struct Page {
    allocation: usize,
    index: u64,
    access: u32,
}

impl Model {
    fn is_alive(&self, allocation: usize) -> bool {
        self.allocations[allocation].references > 0
            || self
                .pages
                .values()
                .any(|page| page.allocation == allocation)
    }

    fn used(&self) -> u64 {
        (0..self.allocations.len())
            .filter(|&allocation| self.is_alive(allocation))
            .map(|allocation| self.allocations[allocation].bytes.len() as u64 / PAGE)
            .sum()
    }

    fn size(&self, allocation: usize) -> u64 {
        self.allocations[allocation].bytes.len() as u64 / PAGE
    }

    /// The reservation that holds a page, as its first page address and its end.
    fn reservation(&self, address: u64) -> Option<(u64, u64)> {
        let alive = self.reservations.iter().filter(|reservation| reservation.2);
        alive
            .map(|&(start, pages, _)| (start, start + pages * self.page))
            .find(|(start, end)| (*start..*end).contains(&address))
    }

    fn address(&self, place: Place) -> Option<u64> {
        let (start, _, alive) = *self
            .reservations
            .get(place.reservation % self.reservations.len().max(1))?;
        // What is free may be the driver's own by now.
        if self.real && !alive {
            return None;
        }
        Some(start + place.page * self.page)
    }

    /// Whether the range begins and ends where mappings do, or in nothing.
    fn cuts_none(&self, address: u64, pages: u64) -> bool {
        let starts = self.pages.get(&address).is_none_or(|page| page.index == 0);
        let ends = self
            .pages
            .get(&(address + (pages - 1) * self.page))
            .is_none_or(|page| page.index + 1 == self.size(page.allocation));
        starts && ends
    }

    /// Whether an operation on these bytes is left out: on a real driver what lies outside of the
    /// reservations may be the driver's own, and unmapping it is no error.
    fn leaves_out(&self, address: u64, len: u64) -> bool {
        let first = address - address % self.page;
        let pages = (address + len - first).div_ceil(self.page);
        self.real
            && self
                .all(first, pages)
                .any(|page| self.reservation(page).is_none())
    }

    /// Whether access can be given to the range: a real driver does not mind a hole between mappings.
    fn covers(&self, address: u64, pages: u64) -> bool {
        let mapped = |at: u64| self.pages.contains_key(&at);
        match self.real {
            true => mapped(address) && mapped(address + (pages - 1) * self.page),
            false => self.all(address, pages).all(mapped),
        }
    }

    fn all(&self, address: u64, pages: u64) -> impl Iterator<Item = u64> + use<> {
        let size = self.page;
        (0..pages).map(move |page| address + page * size)
    }

    /// The units of a range as allocation and offset, where the access allows it.
    fn bytes(&self, address: u64, len: u64, access: u32) -> Option<Vec<(usize, usize)>> {
        (0..len)
            .map(|unit| {
                let at = address + unit * self.unit;
                let within = at % self.page;
                let page = self.pages.get(&(at - within))?;
                let offset = (page.index * self.page + within) / self.unit;
                (page.access >= access).then_some((page.allocation, offset as usize))
            })
            .collect()
    }
}

struct Tested<'a> {
    driver: &'a Driver,
    page: u64,
    real: bool,
}

macro_rules! call {
    ($driver:expr, $name:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: pointers to locals; a wrong address or handle is answered with an error.
        match unsafe { $driver.$name($($argument),*) } {
            Ok(()) => OK,
            Err(error) => error.code().unwrap_or(CUresult::CUDA_ERROR_NOT_FOUND),
        }
    };
}

impl Tested<'_> {
    fn run(&self, ops: &[Op]) -> Result<(), TestCaseError> {
        let mut model = Model {
            page: self.page,
            unit: self.page / PAGE,
            real: self.real,
            allocations: Vec::new(),
            reservations: Vec::new(),
            pages: BTreeMap::new(),
        };
        let before = (!self.real).then(crate::emulated::live);
        let result = ops.iter().try_for_each(|op| self.step(&mut model, op));
        self.clean(&model);
        result?;
        if let Some(before) = before {
            prop_assert_eq!(crate::emulated::live(), before, "something was left behind");
        }
        Ok(())
    }

    fn step(&self, model: &mut Model, op: &Op) -> Result<(), TestCaseError> {
        let driver = self.driver;
        let (page, unit) = (self.page, model.unit);
        let allocations = model.allocations.len();
        let chosen = |index: usize| index % allocations.max(1);
        match *op {
            Op::Create { pages } => {
                let prop = CUmemAllocationProp {
                    type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
                    location: CUmemLocation::new(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, 0),
                    ..Default::default()
                };
                let mut handle = 0;
                let answer = call!(
                    driver,
                    cuMemCreate(&mut handle, (pages * page) as usize, &prop, 0)
                );
                let expected = match pages {
                    0 => INVALID,
                    pages if !model.real && model.used() + pages > MEMORY_PAGES => {
                        CUresult::CUDA_ERROR_OUT_OF_MEMORY
                    }
                    _ => OK,
                };
                prop_assert_eq!(answer, expected);
                if answer == OK {
                    let bytes = vec![0; (pages * PAGE) as usize];
                    model.allocations.push(Allocation {
                        handle,
                        bytes,
                        references: 1,
                    });
                }
            }
            Op::Release { allocation } => {
                let Some(allocation) = model.allocations.get_mut(chosen(allocation)) else {
                    return Ok(());
                };
                if self.real && allocation.references == 0 {
                    return Ok(());
                }
                let answer = call!(driver, cuMemRelease(allocation.handle));
                prop_assert_eq!(
                    answer,
                    if allocation.references > 0 {
                        OK
                    } else {
                        INVALID
                    }
                );
                allocation.references = allocation.references.saturating_sub(1);
            }
            Op::Retain { place } => {
                let Some(address) = model.address(place) else {
                    return Ok(());
                };
                let mut handle = 0;
                let answer = call!(
                    driver,
                    cuMemRetainAllocationHandle(&mut handle, address as *mut _)
                );
                match model.pages.get(&address) {
                    Some(page) => {
                        prop_assert_eq!(answer, OK);
                        prop_assert_eq!(handle, model.allocations[page.allocation].handle);
                        model.allocations[page.allocation].references += 1;
                    }
                    None => prop_assert_eq!(answer, INVALID),
                }
            }
            Op::Reserve { pages } => {
                let mut address = 0;
                let answer = call!(
                    driver,
                    cuMemAddressReserve(&mut address, (pages * page) as usize, 0, 0, 0)
                );
                prop_assert_eq!(answer, if pages == 0 { INVALID } else { OK });
                if answer == OK {
                    let end = address + pages * page;
                    let free = model.reservations.iter().all(|&(start, pages, alive)| {
                        !alive || end <= start || start + pages * page <= address
                    });
                    prop_assert!(free, "a reservation lies in another");
                    model.reservations.push((address, pages, true));
                }
            }
            Op::Free { reservation, skew } => {
                if model.reservations.is_empty() {
                    return Ok(());
                }
                let (address, pages, _) =
                    model.reservations[reservation % model.reservations.len()];
                let pages = pages + skew;
                let answer = call!(driver, cuMemAddressFree(address, (pages * page) as usize));
                let exact = model
                    .reservations
                    .iter()
                    .position(|&known| known == (address, pages, true));
                let empty = model
                    .pages
                    .range(address..address + pages * page)
                    .next()
                    .is_none();
                match exact.filter(|_| empty) {
                    Some(index) => {
                        prop_assert_eq!(answer, OK);
                        model.reservations[index].2 = false;
                    }
                    None => prop_assert_eq!(answer, INVALID),
                }
            }
            Op::Map {
                allocation,
                place,
                pages,
                offset,
            } => {
                let index = chosen(allocation);
                let (Some(address), true) = (model.address(place), index < model.allocations.len())
                else {
                    return Ok(());
                };
                let size = model.size(index);
                let pages = pages.unwrap_or(size);
                let handle = model.allocations[index].handle;
                let inside = model
                    .reservation(address)
                    .is_some_and(|(_, end)| address + pages * page <= end);
                if self.real && (model.allocations[index].references == 0 || !inside) {
                    return Ok(());
                }
                let answer = call!(
                    driver,
                    cuMemMap(
                        address,
                        (pages * page) as usize,
                        (offset * page) as usize,
                        handle,
                        0
                    )
                );
                let fits = model
                    .reservation(address)
                    .is_some_and(|(_, end)| address + pages * page <= end)
                    && model
                        .all(address, pages)
                        .all(|page| !model.pages.contains_key(&page));
                let expected = if pages == 0 || model.allocations[index].references == 0 {
                    INVALID
                } else if offset != 0 || pages != size {
                    CUresult::CUDA_ERROR_NOT_SUPPORTED
                } else if fits {
                    OK
                } else {
                    INVALID
                };
                prop_assert_eq!(answer, expected);
                if answer == OK {
                    for (at, page) in model.all(address, pages).zip(0..) {
                        model.pages.insert(
                            at,
                            Page {
                                allocation: index,
                                index: page,
                                access: 0,
                            },
                        );
                    }
                }
            }
            Op::Unmap { place, pages } => {
                let Some(address) = model.address(place) else {
                    return Ok(());
                };
                if model.leaves_out(address, pages * page) {
                    return Ok(());
                }
                let answer = call!(driver, cuMemUnmap(address, (pages * page) as usize));
                let fine = pages > 0
                    && model
                        .all(address, pages)
                        .all(|page| model.reservation(page).is_some())
                    && model.cuts_none(address, pages);
                prop_assert_eq!(answer, if fine { OK } else { INVALID });
                if fine {
                    for page in model.all(address, pages) {
                        model.pages.remove(&page);
                    }
                }
            }
            Op::Access {
                place,
                pages,
                flags,
            } => {
                let Some(address) = model.address(place) else {
                    return Ok(());
                };
                if model.leaves_out(address, pages * page) {
                    return Ok(());
                }
                let desc = CUmemAccessDesc {
                    location: CUmemLocation::new(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, 0),
                    flags: CUmemAccess_flags(flags),
                };
                let answer = call!(
                    driver,
                    cuMemSetAccess(address, (pages * page) as usize, &desc, 1)
                );
                let fine = pages > 0
                    && flags != 2
                    && model.covers(address, pages)
                    && model.cuts_none(address, pages);
                prop_assert_eq!(answer, if fine { OK } else { INVALID });
                if fine {
                    for page in model.all(address, pages) {
                        if let Some(page) = model.pages.get_mut(&page) {
                            page.access = flags;
                        }
                    }
                }
            }
            Op::Fill {
                place,
                shift,
                len,
                value,
            } => {
                let Some(address) = model.address(place) else {
                    return Ok(());
                };
                if model.leaves_out(address + shift * unit, len * unit) {
                    return Ok(());
                }
                let answer = call!(
                    driver,
                    cuMemsetD8(address + shift * unit, value, (len * unit) as usize)
                );
                let bytes = model.bytes(address + shift * unit, len, 3);
                prop_assert_eq!(answer, if bytes.is_some() { OK } else { INVALID });
                for (allocation, at) in bytes.into_iter().flatten() {
                    model.allocations[allocation].bytes[at] = value;
                }
            }
            Op::Read { place, shift, len } => {
                let Some(address) = model.address(place) else {
                    return Ok(());
                };
                if model.leaves_out(address + shift * unit, len * unit) {
                    return Ok(());
                }
                let mut back = vec![0_u8; (len * unit) as usize];
                let answer = call!(
                    driver,
                    cuMemcpyDtoH(
                        back.as_mut_ptr().cast(),
                        address + shift * unit,
                        (len * unit) as usize
                    )
                );
                let bytes = model.bytes(address + shift * unit, len, 1);
                prop_assert_eq!(answer, if bytes.is_some() { OK } else { INVALID });
                if let Some(bytes) = bytes {
                    let same =
                        back.chunks(unit as usize)
                            .zip(bytes)
                            .all(|(unit, (allocation, at))| {
                                let expected = model.allocations[allocation].bytes[at];
                                unit.iter().all(|&byte| byte == expected)
                            });
                    prop_assert!(same, "bytes differ");
                }
            }
            Op::Copy { to, from, len } => {
                let (Some(to), Some(from)) = (model.address(to), model.address(from)) else {
                    return Ok(());
                };
                if model.leaves_out(to, len * unit) || model.leaves_out(from, len * unit) {
                    return Ok(());
                }
                let (target, source) = (model.bytes(to, len, 3), model.bytes(from, len, 1));
                // What a copy onto itself leaves is not defined.
                if let (Some(target), Some(source)) = (&target, &source)
                    && target.iter().any(|byte| source.contains(byte))
                {
                    return Ok(());
                }
                let answer = call!(driver, cuMemcpyDtoD(to, from, (len * unit) as usize));
                prop_assert_eq!(
                    answer,
                    if target.is_some() && source.is_some() {
                        OK
                    } else {
                        INVALID
                    }
                );
                for ((to, to_at), (from, from_at)) in target
                    .into_iter()
                    .flatten()
                    .zip(source.into_iter().flatten())
                {
                    model.allocations[to].bytes[to_at] = model.allocations[from].bytes[from_at];
                }
            }
        }
        Ok(())
    }

    /// Undoes whatever the model says is there.
    fn clean(&self, model: &Model) {
        for &(address, pages, alive) in &model.reservations {
            if alive {
                call!(
                    self.driver,
                    cuMemUnmap(address, (pages * self.page) as usize)
                );
                call!(
                    self.driver,
                    cuMemAddressFree(address, (pages * self.page) as usize)
                );
            }
        }
        for allocation in &model.allocations {
            for _ in 0..allocation.references {
                call!(self.driver, cuMemRelease(allocation.handle));
            }
        }
    }
}

/// Ten thousand sequences on the emulator, two hundred on a real driver.
fn random_sequences_agree_with_a_plain_model(context: &Context) -> Result<(), Failure> {
    let real = *context.choice() != crate::driver::Choice::Emulator;
    if !real {
        vmm_emulator::Config::new()
            .granularity(PAGE)
            .memory(MEMORY_PAGES * PAGE)
            .install()?;
    }
    let device = context.device()?;
    // Makes the primary context that the copies run in.
    device.memory_info()?;
    let driver = context.driver()?.sys();
    let mut primary = std::ptr::null_mut();
    assert_eq!(call!(driver, cuDevicePrimaryCtxRetain(&mut primary, 0)), OK);
    assert_eq!(call!(driver, cuCtxSetCurrent(primary)), OK);
    let page = vmm::Allocator::builder(&device).build()?.granularity() as u64;
    let tested = Tested { driver, page, real };
    let config = ProptestConfig {
        cases: if real { 200 } else { 10_000 },
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let sequences = prop::collection::vec(op(), 1..40);
    let result = TestRunner::new(config).run(&sequences, |ops| tested.run(&ops));
    assert_eq!(call!(driver, cuCtxSetCurrent(std::ptr::null_mut())), OK);
    assert_eq!(call!(driver, cuDevicePrimaryCtxRelease(0)), OK);
    result.map_err(|error| Failure::new(error.to_string()))
}
