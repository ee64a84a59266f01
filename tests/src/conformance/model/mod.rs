//! Random operations against a plain model of reservations, memory, handles, mappings and access:
//! the driver and the model agree on every answer and, after every sequence, on all bytes.
//!
//! On the emulator a granule is a page of the host, so that bytes are cheap to compare, and there
//! are two devices, of which the first alone may use the memory of the other. On a real driver a
//! granule is the driver's own, one unit of the model stands for as many bytes as make that equal,
//! there is one device, and what could harm the process is left out: handles and addresses that are
//! the driver's again, mappings past the end of their reservation, which it does not refuse, and
//! copies across a border of host memory or that the processor is not allowed to make there, which
//! crash it. So is access across a hole, which it answers with success and does not give behind the hole.

mod bytes;
mod compare;
mod ops;
mod state;
mod step;

use std::cell::RefCell;
use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};
use vmm_sys::*;

use self::ops::{Op, sequence};
use self::state::{DEVICES, HOST, Model, User};
use crate::{Case, Context, Failure, cases};

pub const CASES: &[Case] =
    cases![random_sequences_agree_with_a_plain_model: misuses() timeout(300)];

/// Units in a granule.
const PAGE: u64 = 4096;
/// Of each device.
const MEMORY_PAGES: u64 = 16;

const OK: CUresult = CUresult::CUDA_SUCCESS;
const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

struct Tested<'a> {
    driver: &'a Driver,
    page: u64,
    real: bool,
    /// The primary context of each device.
    contexts: Vec<CUcontext>,
    /// What reads write to.
    buffer: RefCell<Vec<u8>>,
    /// How often each call did something, and was refused.
    counts: RefCell<BTreeMap<&'static str, [u32; 2]>>,
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
use call;

fn location(user: User) -> CUmemLocation {
    match user {
        HOST => CUmemLocation::new(CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA, 0),
        device => CUmemLocation::new(
            CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            device as i32,
        ),
    }
}

impl Tested<'_> {
    fn run(&self, ops: &[Op]) -> Result<(), TestCaseError> {
        let mut model = Model::new(self.page, self.real, !self.driver.is_emulator());
        let before = (!self.real).then(crate::emulated::live);
        let result = ops
            .iter()
            .try_for_each(|op| self.step(&mut model, op))
            .and_then(|()| self.compare(&model));
        self.clean(&model);
        drop(model);
        result?;
        if let Some(before) = before {
            prop_assert_eq!(crate::emulated::live(), before, "something was left behind");
        }
        Ok(())
    }

    /// Whether the driver answers as the model.
    fn agree(
        &self,
        call: &'static str,
        answer: CUresult,
        expected: CUresult,
    ) -> Result<(), TestCaseError> {
        prop_assert_eq!(answer, expected, "{}", call);
        self.counts.borrow_mut().entry(call).or_default()[usize::from(answer != OK)] += 1;
        Ok(())
    }

    /// The device of a number, made the current one.
    fn become_device(&self, by: User) -> User {
        let device = by % self.contexts.len();
        call!(self.driver, cuCtxSetCurrent(self.contexts[device]));
        device
    }

    /// A number of users that this driver is tested with.
    fn user(&self, user: User) -> User {
        match user {
            HOST => HOST,
            device => device % self.contexts.len(),
        }
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
        for handle in &model.handles {
            for _ in 0..handle.references {
                call!(self.driver, cuMemRelease(handle.value));
            }
        }
    }
}

/// Ten thousand sequences on the emulator, two hundred on a real driver.
fn random_sequences_agree_with_a_plain_model(context: &Context) -> Result<(), Failure> {
    let real = *context.choice() != crate::driver::Choice::Emulator;
    if !real {
        // Where the host's pages are larger, as on some aarch64, a unit stands for more bytes there too.
        let page = PAGE.max(rustix::param::page_size() as u64);
        vmm_emulator::Config::new()
            .devices(DEVICES)
            .peers(vmm_emulator::Peers::Pairs(vec![(0, 1)]))
            .granularity(page)
            .memory(MEMORY_PAGES * page)
            .install()?;
    }
    let device = context.device()?;
    // Makes the primary context that the copies run in.
    device.memory_info()?;
    let driver = context.driver()?.sys();
    let devices = if real { 1 } else { DEVICES };
    let contexts = (0..devices as i32).map(|device| {
        let mut context = std::ptr::null_mut();
        assert_eq!(
            call!(driver, cuDevicePrimaryCtxRetain(&mut context, device)),
            OK
        );
        context
    });
    let page = vmm::Allocator::builder(&device).build()?.granularity() as u64;
    let tested = Tested {
        driver,
        page,
        real,
        contexts: contexts.collect(),
        buffer: RefCell::default(),
        counts: RefCell::default(),
    };
    let cases = if real { 200 } else { 10_000 };
    let config = ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let result = TestRunner::new(config).run(&sequence(), |ops| tested.run(&ops));
    assert_eq!(call!(driver, cuCtxSetCurrent(std::ptr::null_mut())), OK);
    for device in 0..devices as i32 {
        assert_eq!(call!(driver, cuDevicePrimaryCtxRelease(device)), OK);
    }
    result.map_err(|error| Failure::new(error.to_string()))?;
    // Agreement on nothing but refusals would be easy.
    let counts = tested.counts.take();
    match counts.values().all(|&[done, _]| done > cases / 10) {
        true => Ok(()),
        false => Err(Failure::new(format!(
            "too few calls did anything to tell much (done, refused): {counts:?}"
        ))),
    }
}
