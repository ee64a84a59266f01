//! Operations on bytes.

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use vmm_sys::*;

use super::ops::{Op, Stretch};
use super::state::{HOST, Model, READ, Run, User, WRITE};
use super::{INVALID, OK, PAGE, Tested, call};

/// Bytes behind what a read was asked for.
const GUARD: usize = 64;

impl Tested<'_> {
    pub fn move_bytes(&self, model: &mut Model, op: &Op) -> Result<(), TestCaseError> {
        match *op {
            Op::Fill { by, to, value } => {
                let by = self.become_device(by);
                let Some(address) = place(model, by, to, WRITE) else {
                    return Ok(());
                };
                let runs = model.runs(by, address, to.len, WRITE);
                // A fill from device memory on into host memory is refused, the other way round not.
                let fine = |runs: &Vec<Run>| !runs.iter().skip(1).any(|run| model.is_host(run));
                let runs = runs.filter(fine);
                let answer = self.fill(address, to.len, value);
                self.agree(
                    "cuMemsetD8",
                    answer,
                    if runs.is_some() { OK } else { INVALID },
                )?;
                model.set(&runs.unwrap_or_default(), &vec![value; to.len as usize]);
            }
            Op::Write { by, to, seed } => {
                let by = self.become_device(by);
                let Some(address) = place(model, by, to, WRITE) else {
                    return Ok(());
                };
                let runs = model.runs_by_host(by, address, to.len, WRITE);
                let runs = runs.filter(|runs| are_alike(model, runs));
                let bytes: Vec<u8> = (0..to.len).map(|at| pattern(seed, at)).collect();
                let unit = model.unit as usize;
                let wide: Vec<u8> = bytes.iter().flat_map(|&byte| vec![byte; unit]).collect();
                let answer = call!(
                    self.driver,
                    cuMemcpyHtoD(address, wide.as_ptr().cast(), wide.len())
                );
                self.agree(
                    "cuMemcpyHtoD",
                    answer,
                    if runs.is_some() { OK } else { INVALID },
                )?;
                if let Some(runs) = runs {
                    model.set(&runs, &bytes);
                }
            }
            Op::Read { by, from } => {
                let by = self.become_device(by);
                let Some(address) = place(model, by, from, READ) else {
                    return Ok(());
                };
                let runs = model.runs_by_host(by, address, from.len, READ);
                let runs = runs.filter(|runs| are_alike(model, runs));
                let expected = runs.map(|runs| model.bytes(&runs));
                let answer = if expected.is_some() { OK } else { INVALID };
                self.agree("cuMemcpyDtoH", answer, answer)?;
                return self.read(address, from.len, expected.as_deref());
            }
            Op::Copy {
                by,
                to,
                from,
                shift,
            } => {
                let by = self.become_device(by);
                let source = Stretch {
                    place: from,
                    shift,
                    len: to.len,
                };
                let (Some(to_address), Some(from_address)) =
                    (place(model, by, to, WRITE), place(model, by, source, READ))
                else {
                    return Ok(());
                };
                let target = model.runs(by, to_address, to.len, WRITE);
                let both = target.zip(model.runs(by, from_address, to.len, READ));
                // What a copy onto itself leaves is not defined.
                if both.as_ref().is_some_and(|(to, from)| overlap(to, from)) {
                    return Ok(());
                }
                let size = (to.len * model.unit) as usize;
                let answer = call!(self.driver, cuMemcpyDtoD(to_address, from_address, size));
                self.agree(
                    "cuMemcpyDtoD",
                    answer,
                    if both.is_some() { OK } else { INVALID },
                )?;
                if let Some((target, source)) = both {
                    let bytes = model.bytes(&source);
                    model.set(&target, &bytes);
                }
            }
            _ => {}
        }
        // The processor may be what reads host memory next.
        prop_assert_eq!(call!(self.driver, cuCtxSynchronize()), OK);
        Ok(())
    }

    pub fn fill(&self, address: u64, units: u64, value: u8) -> CUresult {
        let unit = self.page / PAGE;
        let size = (units * unit) as usize;
        call!(self.driver, cuMemsetD8(address, value, size))
    }

    /// Reads as many units and compares them, where there is something to expect, and what lies
    /// behind them in the program's own memory.
    pub fn read(
        &self,
        address: u64,
        units: u64,
        expected: Option<&[u8]>,
    ) -> Result<(), TestCaseError> {
        let unit = (self.page / PAGE) as usize;
        let size = units as usize * unit;
        let mut buffer = self.buffer.borrow_mut();
        // What is not read is unlike what is expected, and what is not to be read stays.
        let stale = !expected
            .and_then(|expected| expected.first().copied())
            .unwrap_or(0);
        buffer.clear();
        buffer.resize(size + GUARD, stale);
        let to = buffer.as_mut_ptr().cast();
        let answer = call!(self.driver, cuMemcpyDtoH(to, address, size));
        let allowed = expected.is_some();
        prop_assert_eq!(answer, if allowed { OK } else { INVALID });
        let (read, guard) = buffer.split_at(size);
        prop_assert!(
            guard.iter().all(|&byte| byte == stale),
            "a read wrote behind its end"
        );
        if let Some(expected) = expected {
            same(read, expected, unit)?;
        }
        Ok(())
    }
}

/// Where a stretch lies; `None` where the operation is left out.
fn place(model: &Model, by: User, stretch: Stretch, needed: u32) -> Option<u64> {
    let address = model.address_for(by, stretch.place, needed)? + stretch.shift * model.unit;
    let left_out = model.leaves_out(address, stretch.len * model.unit)
        || model.real && harms(model, by, address, stretch.len, needed);
    (!left_out).then_some(address)
}

/// Whether a real driver may end the process: it has the processor touch memory of the host, which has
/// to be allowed to, and go on with what lies behind.
fn harms(model: &Model, by: User, address: u64, units: u64, needed: u32) -> bool {
    if !model.touches_host(address, units * model.unit) {
        return false;
    }
    let runs = |user| model.runs(user, address, units, needed);
    match (runs(by), runs(HOST)) {
        (Some(runs), Some(_)) => runs.len() > 1,
        _ => true,
    }
}

/// Whether all is host memory, or none: otherwise a copy from or to the program's memory is refused.
fn are_alike(model: &Model, runs: &[Run]) -> bool {
    let mut hosts = runs.iter().map(|run| model.is_host(run));
    let first = hosts.next();
    hosts.all(|host| Some(host) == first)
}

fn overlap(some: &[Run], others: &[Run]) -> bool {
    some.iter().any(|one| {
        others.iter().any(|other| {
            one.memory == other.memory
                && one.units.start < other.units.end
                && other.units.start < one.units.end
        })
    })
}

/// Differs between neighbours and between pages.
fn pattern(seed: u8, at: u64) -> u8 {
    seed.wrapping_add((at.wrapping_mul(167) + (at >> 8).wrapping_mul(59)) as u8)
}

pub fn same(read: &[u8], expected: &[u8], unit: usize) -> Result<(), TestCaseError> {
    let differs = read
        .chunks(unit)
        .zip(expected)
        .position(|(read, &expected)| read.iter().any(|&byte| byte != expected));
    if let Some(at) = differs {
        let (read, expected) = (&read[at * unit..][..unit], expected[at]);
        prop_assert!(false, "unit {at} is {:x?}, not {expected:#x}", &read[..1]);
    }
    Ok(())
}
