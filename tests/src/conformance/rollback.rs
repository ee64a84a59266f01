//! Exporting, importing, extending and relaying that fail at any driver call leave everything as
//! it was. Every operation in [`OPERATIONS`] is run once for each driver call that it makes, with
//! that call failing; a new one is covered by adding it to the list.

use std::any::Any;

use vmm::Buffer;
use vmm::sys::CUresult;
use vmm_ipc::{Export, Exporter, ImportOptions};

use super::{shareable, three_chunks};
use crate::emulated::{self, Calls};
use crate::vmm::{expect_pattern, write_pattern};
use crate::{Case, Context, Failure, cases};

pub const CASES: &[Case] = cases![
    a_failure_of_any_driver_call_leaves_everything_as_it_was: emulator_only() timeout(120),
];

/// What the operations work on.
struct Fixture {
    driver: vmm::Driver,
    device: vmm::Device,
    exporter: Exporter,
    /// A buffer with room, before and after it grew.
    short: Buffer,
    long: Buffer,
    export: Export,
}

/// What an operation returns, to be kept until it has been counted.
type Made = Box<dyn Any>;

struct Operation {
    name: &'static str,
    run: fn(&Fixture) -> Result<Made, vmm_ipc::Error>,
}

const OPERATIONS: &[Operation] = &[
    Operation {
        name: "set up exporting",
        run: |on| made(Exporter::new(&on.device)),
    },
    Operation {
        name: "export",
        run: |on| made(on.exporter.export(&on.long)),
    },
    Operation {
        name: "import",
        run: |on| {
            let (bytes, fds) = on.export.to_parts()?;
            made(ImportOptions::read_write().import_parts(&on.driver, &bytes, fds))
        },
    },
    Operation {
        name: "import read-only and keep the handles",
        run: |on| {
            let (bytes, fds) = on.export.to_parts()?;
            let options = ImportOptions::read_only().keep_handles(true);
            made(options.import_parts(&on.driver, &bytes, fds))
        },
    },
    Operation {
        name: "export what was grown",
        run: |on| {
            let mut export = on.exporter.export(&on.short)?;
            export.grow(&on.long)?;
            made(Ok(export))
        },
    },
    Operation {
        name: "extend",
        run: |on| {
            let mut export = on.exporter.export(&on.short)?;
            let (bytes, fds) = export.to_parts()?;
            let mut imported = ImportOptions::read_write().import_parts(&on.driver, &bytes, fds)?;
            let had = imported.descriptor().sizes().len();
            let update = export.grow(&on.long)?.clone();
            let (_, fds) = export.to_parts()?;
            imported.extend(&update, fds.into_iter().skip(had).collect())?;
            made(Ok(imported))
        },
    },
    Operation {
        name: "relay",
        run: |on| {
            let (bytes, fds) = on.export.to_parts()?;
            let options = ImportOptions::read_write().keep_handles(true);
            let imported = options.import_parts(&on.driver, &bytes, fds)?;
            let (bytes, fds) = imported.export()?.into_parts();
            let relayed = ImportOptions::read_write().import_parts(&on.driver, &bytes, fds)?;
            made(Ok((imported, relayed)))
        },
    },
];

fn made<T: 'static>(result: Result<T, vmm_ipc::Error>) -> Result<Made, vmm_ipc::Error> {
    result.map(|value| Box::new(value) as Made)
}

impl Fixture {
    fn new(context: &Context) -> Result<Fixture, Failure> {
        let device = context.device()?;
        let exporter = Exporter::new(&device)?;
        let (allocator, granularity) = shareable(context)?;
        let short = allocator.allocate_with_capacity(granularity, 8 * granularity)?;
        let long = short.grow(4 * granularity)?;
        write_pattern(&long, 1)?;
        let export = exporter.export(&three_chunks(context)?)?;
        let driver = context.driver()?.clone();
        Ok(Fixture {
            driver,
            device,
            exporter,
            short,
            long,
            export,
        })
    }
}

fn a_failure_of_any_driver_call_leaves_everything_as_it_was(
    context: &Context,
) -> Result<(), Failure> {
    let fixture = Fixture::new(context)?;
    let layouts = (fixture.short.layout(), fixture.long.layout());
    for operation in OPERATIONS {
        // Without a failure: what is set up once for good is set up now.
        drop((operation.run)(&fixture)?);
        let before = context.snapshot()?;
        let mut calls = 0;
        loop {
            let failing = emulated::fail(
                Calls::AnyHere,
                calls + 1,
                CUresult::CUDA_ERROR_OUT_OF_MEMORY,
            );
            let result = (operation.run)(&fixture);
            let fired = failing.fired() > 0;
            drop(failing);
            let at = format!("{}, call {}", operation.name, calls + 1);
            if !fired {
                result.map_err(|error| Failure::new(format!("{at}: {error}")))?;
                break;
            }
            drop(result);
            context
                .assert_as(&before)
                .map_err(|failure| Failure::new(format!("{at}: {failure}")))?;
            assert_eq!(
                (fixture.short.layout(), fixture.long.layout()),
                layouts,
                "{at}"
            );
            expect_pattern(&fixture.long, fixture.long.len(), 1)?;
            calls += 1;
        }
        assert!(calls > 0, "{} makes no driver call", operation.name);
        println!("{}: {calls} driver calls, each failed once", operation.name);
    }
    Ok(())
}
