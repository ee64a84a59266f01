//! Sharing that fails at any driver call leaves both sides as they were.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use vmm::sys::CUresult;
use vmm::{Buffer, Driver, HandleTypes};
use vmm_ipc::wire::Update;
use vmm_ipc::{Capacity, Channel, Error, Export, Exporter, ImportOptions};

use super::{allocator_of, expect_filled, fill};
use crate::emulated::{self, Calls};
use crate::{Case, Context, Failure, cases};

pub const CASES: &[Case] = cases![
    a_failure_of_any_driver_call_leaves_both_sides_as_they_were: emulator_only() timeout(120),
    a_failure_of_any_driver_call_with_fabric_handles_leaves_both_sides_as_they_were: emulator_only() timeout(120),
    a_failure_of_any_driver_call_is_heard_at_the_other_end_of_a_channel: emulator_only() timeout(120),
    an_importer_that_fails_tells_the_exporter_and_the_channel_goes_on: emulator_only(),
    an_exporter_that_fails_in_the_middle_tells_the_importer: emulator_only(),
];

/// What the operations work on.
struct Fixture {
    driver: Driver,
    device: vmm::Device,
    exporter: Exporter,
    /// Three chunks with room for more, and the same with two more.
    buffer: Buffer,
    grown: Buffer,
    export: Export,
    update: (Update, Vec<OwnedFd>),
}

type Made = Box<dyn Any>;

struct Operation {
    name: &'static str,
    run: fn(&Fixture) -> Result<Made, Error>,
}

fn made(result: Result<impl Any, Error>) -> Result<Made, Error> {
    result.map(|value| Box::new(value) as Made)
}

const OPERATIONS: &[Operation] = &[
    Operation {
        name: "export",
        run: |on| made(on.exporter.export(&on.buffer)),
    },
    Operation {
        name: "export what has grown",
        run: |on| {
            let mut export = on.exporter.export(&on.buffer)?;
            let before = (export.generation(), export.fds().len());
            if let Err(error) = export.grow(&on.grown) {
                assert_eq!((export.generation(), export.fds().len()), before);
                return Err(error);
            }
            made(Ok(export))
        },
    },
    Operation {
        name: "import",
        run: |on| {
            let (bytes, fds) = on.export.to_parts()?;
            made(ImportOptions::read_write().import_parts(&on.driver, &bytes, fds))
        },
    },
    Operation {
        name: "import to read, in just the room it takes",
        run: |on| {
            let (bytes, fds) = on.export.to_parts()?;
            let options = ImportOptions::read_only().capacity(Capacity::Exact);
            made(options.import_parts(&on.driver, &bytes, fds))
        },
    },
    Operation {
        name: "extend in place",
        run: |on| extend(on, Capacity::AsExported),
    },
    Operation {
        name: "extend and move",
        run: |on| extend(on, Capacity::Exact),
    },
    Operation {
        name: "relay",
        run: |on| {
            let (bytes, fds) = on.export.to_parts()?;
            let options = ImportOptions::read_only().keep_handles(true);
            let imported = options.import_parts(&on.driver, &bytes, fds)?;
            let (bytes, fds) = imported.export()?.into_parts();
            let again = ImportOptions::read_only().import_parts(&on.driver, &bytes, fds)?;
            made(Ok((imported, again)))
        },
    },
];

fn extend(on: &Fixture, capacity: Capacity) -> Result<Made, Error> {
    let (bytes, fds) = on.export.to_parts()?;
    let options = ImportOptions::read_write().capacity(capacity);
    let mut imported = options.import_parts(&on.driver, &bytes, fds)?;
    let before = (
        imported.buffer().layout().to_string(),
        imported.generation(),
    );
    let fds = on
        .update
        .1
        .iter()
        .map(|fd| fd.try_clone().unwrap())
        .collect();
    if let Err(error) = imported.extend(&on.update.0, fds) {
        let after = (
            imported.buffer().layout().to_string(),
            imported.generation(),
        );
        assert_eq!(before, after);
        return Err(error);
    }
    made(Ok(imported))
}

impl Fixture {
    fn new(context: &Context, types: HandleTypes) -> Result<Self, Failure> {
        let device = context.device()?;
        let allocator = allocator_of(context, types)?;
        let granularity = allocator.granularity();
        let buffer = allocator.allocate_with_capacity(3 * granularity, 8 * granularity)?;
        let grown = buffer.grow(5 * granularity)?;
        fill(&grown, 1)?;
        let exporter = match types == HandleTypes::FABRIC {
            true => Exporter::for_fabric(&device),
            false => Exporter::new(&device)?,
        };
        let mut export = exporter.export(&buffer)?;
        let (bytes, fds) = export.to_parts()?;
        let first = Export::from_parts(&bytes, fds)?;
        let update = export.grow(&grown)?.clone();
        let (_, fds) = export.update_to_parts(1)?;
        Ok(Fixture {
            driver: context.driver()?.clone(),
            device,
            exporter,
            buffer,
            grown,
            export: first,
            update: (update, fds),
        })
    }
}

fn a_failure_of_any_driver_call_leaves_both_sides_as_they_were(
    context: &Context,
) -> Result<(), Failure> {
    let fixture = Fixture::new(context, HandleTypes::POSIX_FD)?;
    fail_each(context, &fixture, OPERATIONS)?;
    let exporter = Operation {
        name: "make an exporter",
        run: |on| made(Exporter::new(&on.device)),
    };
    fail_each(context, &fixture, &[exporter])
}

fn a_failure_of_any_driver_call_with_fabric_handles_leaves_both_sides_as_they_were(
    context: &Context,
) -> Result<(), Failure> {
    vmm_emulator::Config::new()
        .fabric(vmm_emulator::Fabric::Available)
        .install()?;
    let fixture = Fixture::new(context, HandleTypes::FABRIC)?;
    fail_each(context, &fixture, OPERATIONS)
}

fn fail_each(
    context: &Context,
    fixture: &Fixture,
    operations: &[Operation],
) -> Result<(), Failure> {
    let told = Arc::new(AtomicUsize::new(0));
    let counter = told.clone();
    context.driver()?.on_release_error(move |_| {
        counter.fetch_add(1, Ordering::Relaxed);
    });
    for operation in operations {
        // Twice without a failure: what is set up once for good is set up now.
        drop((operation.run)(fixture)?);
        let mut before = context.snapshot()?;
        drop((operation.run)(fixture)?);
        context.assert_as(&before)?;
        let (mut calls, mut failures) = (0, 0);
        loop {
            let code = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
            let failing = emulated::fail(Calls::AnyHere, calls + 1, code);
            let result = (operation.run)(fixture);
            let fired = failing.fired() > 0;
            drop(failing);
            let at = format!("{}, call {}", operation.name, calls + 1);
            if !fired {
                result.map_err(|error| Failure::new(format!("{at}: {error}")))?;
                break;
            }
            failures += usize::from(result.is_err());
            let succeeded = result.is_ok();
            drop(result);
            let reported = told.swap(0, Ordering::Relaxed) > 0;
            if operation.name == "extend and move" && succeeded && reported {
                // It gives back what it has moved away from, and was refused just that. That cannot
                // be undone and is no failure of the operation: it was reported, and the rest holds.
                println!("{at}: reported");
                before = context.snapshot()?;
            }
            let left = context.assert_as(&before);
            left.map_err(|failure| Failure::new(format!("{at}: {failure}")))?;
            expect_filled(&fixture.grown, 5, 1)?;
            calls += 1;
        }
        println!(
            "{}: {calls} driver calls, {failures} failures",
            operation.name
        );
        assert!(failures > 0, "{}: nothing failed", operation.name);
    }
    Ok(())
}

/// Whichever call fails, of whichever side, both hear of it, and the next exchange works.
fn a_failure_of_any_driver_call_is_heard_at_the_other_end_of_a_channel(
    context: &Context,
) -> Result<(), Failure> {
    let fixture = Fixture::new(context, HandleTypes::POSIX_FD)?;
    let mut channels = Channel::pair()?;
    // An exporter that fails before it has offered anything says nothing.
    channels.1.set_timeout(Duration::from_secs(2));
    let share = |channel: &mut Channel| fixture.exporter.share(&fixture.buffer, channel);
    let (shared, imported) = exchange(context, &mut channels, share)?;
    drop((shared?, imported?));
    let before = context.snapshot()?;
    let (mut calls, mut heard) = (0, 0);
    loop {
        let code = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
        let failing = emulated::fail(Calls::Any, calls + 1, code);
        let (shared, imported) = exchange(context, &mut channels, share)?;
        let fired = failing.fired() > 0;
        drop(failing);
        let at = format!("call {}", calls + 1);
        assert_eq!(shared.is_ok(), imported.is_ok(), "{at}");
        heard += usize::from(shared.is_err());
        drop((shared, imported));
        if !fired {
            break;
        }
        calls += 1;
        let left = context.assert_as(&before);
        left.map_err(|failure| Failure::new(format!("{at}: {failure}")))?;
        assert!(!channels.0.is_broken() && !channels.1.is_broken(), "{at}");
        let (shared, imported) = exchange(context, &mut channels, share)?;
        expect_filled(imported?.buffer(), 3, 1)?;
        drop(shared?);
    }
    println!("{calls} driver calls, {heard} failures");
    assert!(heard > 5);
    context.assert_as(&before)
}

/// What came of an exchange on either side.
type Ends = (Result<Export, Error>, Result<vmm_ipc::Imported, Error>);

/// Both ends of an exchange, with the importer on a thread of its own.
fn exchange(
    context: &Context,
    channels: &mut (Channel, Channel),
    share: impl FnOnce(&mut Channel) -> Result<Export, Error>,
) -> Result<Ends, Failure> {
    let driver = context.driver()?;
    let (ours, theirs) = channels;
    std::thread::scope(|scope| {
        let importing = scope.spawn(|| ImportOptions::read_write().receive(driver, theirs));
        let shared = share(ours);
        let imported = importing.join();
        Ok((
            shared,
            imported.map_err(|_| Failure::new("the importer panicked"))?,
        ))
    })
}

fn an_importer_that_fails_tells_the_exporter_and_the_channel_goes_on(
    context: &Context,
) -> Result<(), Failure> {
    let fixture = Fixture::new(context, HandleTypes::POSIX_FD)?;
    let mut channels = Channel::pair()?;
    let share = |channel: &mut Channel| fixture.exporter.share(&fixture.buffer, channel);
    let (shared, imported) = exchange(context, &mut channels, share)?;
    drop((shared?, imported?));
    let before = context.snapshot()?;
    for (function, nth) in [
        ("cuMemImportFromShareableHandle", 1),
        ("cuMemImportFromShareableHandle", 3),
        ("cuMemAddressReserve", 1),
        ("cuMemMap", 2),
        ("cuMemSetAccess", 1),
    ] {
        let code = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
        let failing = emulated::fail(Calls::Of(function), nth, code);
        let (shared, imported) = exchange(context, &mut channels, share)?;
        assert_eq!(failing.fired(), 1, "{function}");
        drop(failing);
        let (here, there) = (imported.unwrap_err(), shared.unwrap_err());
        assert_eq!(here.kind(), vmm_ipc::ErrorKind::Memory, "{here}");
        assert_eq!(there.kind(), vmm_ipc::ErrorKind::Refused, "{there}");
        assert!(there.is_retryable(), "{there:?}");
        let refusal = there.refusal().unwrap();
        assert!(refusal.text.contains(function), "{}", refusal.text);
        // What to do about it there is no matter of the exporter's.
        assert!(!refusal.text.contains("; "), "{}", refusal.text);
        context.assert_as(&before)?;
        let (shared, imported) = exchange(context, &mut channels, share)?;
        expect_filled(imported?.buffer(), 3, 1)?;
        shared?.retire();
        context.assert_as(&before)?;
    }
    Ok(())
}

fn an_exporter_that_fails_in_the_middle_tells_the_importer(
    context: &Context,
) -> Result<(), Failure> {
    let fixture = Fixture::new(context, HandleTypes::POSIX_FD)?;
    let mut channels = Channel::pair()?;
    let share = |channel: &mut Channel| fixture.exporter.share(&fixture.buffer, channel);
    let (shared, imported) = exchange(context, &mut channels, share)?;
    drop((shared?, imported?));
    let before = context.snapshot()?;
    let code = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
    let failing = emulated::fail(Calls::Of("cuMemExportToShareableHandle"), 2, code);
    let (shared, imported) = exchange(context, &mut channels, share)?;
    drop(failing);
    let (here, there) = (shared.unwrap_err(), imported.unwrap_err());
    assert_eq!(here.kind(), vmm_ipc::ErrorKind::Memory, "{here}");
    assert!(there.to_string().contains("gave up"), "{there}");
    context.assert_as(&before)?;
    // Both are in step still.
    let (shared, imported) = exchange(context, &mut channels, share)?;
    drop((shared?, imported?));
    context.assert_as(&before)
}
