//! Exchanges that fail halfway: the channel says so at both ends, and nothing is taken for what it
//! is not.

use std::time::{Duration, Instant};

use vmm::{Allocator, HandleTypes, Location};
use vmm_ipc::wire::{Descriptor, Message, Reason, Refusal};
use vmm_ipc::{
    Channel, ErrorKind, Export, Exporter, ImportOptions, Limits, decline_offer, decline_update,
};

use super::{allocator, expect_filled, filled};
use crate::{Case, Context, Failure, cases};

pub const CASES: &[Case] = cases![
    an_answer_that_comes_too_late_is_taken_for_no_other,
    an_importer_that_loses_patience_tells_the_exporter_at_once,
    a_farewell_is_an_answer_of_its_own_and_the_channel_goes_on,
    an_offer_and_an_update_can_be_declined_and_the_channel_goes_on,
    a_refusal_says_what_happened_there_and_what_to_do_here,
    what_comes_out_of_place_breaks_the_channel_for_both,
    a_callback_that_panics_breaks_the_channel_for_both,
    memory_that_lies_elsewhere_than_stated_is_refused,
];

const SOON: Duration = Duration::from_millis(150);

fn kind<T>(result: vmm_ipc::Result<T>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

fn an_answer_that_comes_too_late_is_taken_for_no_other(context: &Context) -> Result<(), Failure> {
    let buffer = filled(&allocator(context)?, 3, 1)?;
    let exporter = Exporter::new(&context.device()?)?;
    let export = exporter.export(&buffer)?;
    let (mut ours, mut theirs) = Channel::pair()?;
    ours.set_timeout(SOON);
    let work = || {
        assert_eq!(kind(export.send(&mut ours)), Some(ErrorKind::Timeout));
        assert!(ours.is_broken());
        assert_eq!(kind(export.send(&mut ours)), Some(ErrorKind::Hangup));
        // Everything was sent and can be mapped; but nobody would hear of it.
        let late = ImportOptions::read_only().receive(context.driver()?, &mut theirs);
        assert_eq!(kind(late), Some(ErrorKind::Hangup));
        assert!(theirs.is_broken());
        (ours, theirs) = Channel::pair()?;
        ours.set_timeout(SOON);
        Ok(())
    };
    context.leaves_nothing(work)
}

fn an_importer_that_loses_patience_tells_the_exporter_at_once(
    context: &Context,
) -> Result<(), Failure> {
    let buffer = filled(&allocator(context)?, 3, 1)?;
    let export = Exporter::new(&context.device()?)?.export(&buffer)?;
    let (bytes, _fds) = export.into_parts();
    let (mut ours, mut theirs) = Channel::pair()?;
    ours.set_timeout(100 * SOON);
    // The offer alone.
    ours.send(&Message::Offer(Descriptor::decode(&bytes)?), &[])?;
    let options = ImportOptions::read_only().limits(Limits::new().time(SOON));
    let impatient = options.receive(context.driver()?, &mut theirs);
    assert_eq!(kind(impatient), Some(ErrorKind::Timeout));
    assert!(theirs.is_broken());
    let begin = Instant::now();
    assert_eq!(kind(ours.receive()), Some(ErrorKind::Hangup));
    assert!(begin.elapsed() < 20 * SOON);
    Ok(())
}

fn a_farewell_is_an_answer_of_its_own_and_the_channel_goes_on(
    context: &Context,
) -> Result<(), Failure> {
    let buffer = filled(&allocator(context)?, 2, 1)?;
    let exporter = Exporter::new(&context.device()?)?;
    let (mut ours, mut theirs) = Channel::pair()?;
    std::thread::scope(|scope| {
        let importer = scope.spawn(move || -> Result<(), Failure> {
            let receive = |channel: &mut Channel| {
                ImportOptions::read_only()
                    .receive(context.driver()?, channel)
                    .map_err(Failure::from)
            };
            let mut first = receive(&mut theirs)?;
            assert_eq!(
                kind(first.receive_update(&mut theirs)),
                Some(ErrorKind::Retired)
            );
            expect_filled(first.buffer(), 2, 1)?;
            let second = receive(&mut theirs)?;
            expect_filled(second.buffer(), 2, 1)?;
            let none = ImportOptions::read_only().receive(context.driver()?, &mut theirs);
            let error = none.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Retired);
            assert_eq!(error.buffer(), Some(second.id()));
            assert!(!theirs.is_broken());
            Ok(())
        });
        for _ in 0..2 {
            let export = exporter.share(&buffer, &mut ours)?;
            export.send_retirement(&mut ours)?;
        }
        importer
            .join()
            .unwrap_or_else(|_| Err(Failure::new("the importer panicked")))
    })
}

fn an_offer_and_an_update_can_be_declined_and_the_channel_goes_on(
    context: &Context,
) -> Result<(), Failure> {
    let allocator = allocator(context)?;
    let granule = allocator.granularity();
    let buffer = filled(&allocator, 130, 1)?;
    let exporter = Exporter::new(&context.device()?)?;
    let (mut ours, mut theirs) = Channel::pair()?;
    let mut export = exporter.export(&buffer)?;
    export.grow(&buffer.grow(131 * granule)?)?;
    // Longer than a message may be.
    let no = || Refusal {
        reason: Reason::Other,
        text: "not now ".repeat(1000),
    };
    let work = || {
        std::thread::scope(|scope| {
            let theirs = &mut theirs;
            let importer = scope.spawn(move || -> Result<(), Failure> {
                let Message::Offer(offer) = theirs.receive()?.message else {
                    return Err(Failure::new("an offer was to come"));
                };
                decline_offer(theirs, &offer, no())?;
                let imported = ImportOptions::read_only().receive(context.driver()?, theirs)?;
                expect_filled(imported.buffer(), 130, 1)?;
                let Message::Update(update) = theirs.receive()?.message else {
                    return Err(Failure::new("an update was to come"));
                };
                decline_update(theirs, &update, no())?;
                Ok(())
            });
            for result in [
                export.send(&mut ours),
                export.send(&mut ours),
                export.send_updates(&mut ours, 0).map(drop),
            ]
            .into_iter()
            .enumerate()
            {
                match result {
                    (1, result) => result?,
                    (_, result) => {
                        let error = result.unwrap_err();
                        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
                        assert!(error.to_string().contains("not now"), "{error}");
                    }
                }
            }
            importer
                .join()
                .unwrap_or_else(|_| Err(Failure::new("the importer panicked")))
        })?;
        assert!(!ours.is_broken() && !theirs.is_broken());
        Ok(())
    };
    context.leaves_nothing(work)
}

fn a_refusal_says_what_happened_there_and_what_to_do_here(
    context: &Context,
) -> Result<(), Failure> {
    let allocator = allocator(context)?;
    let granule = allocator.granularity();
    let buffer = filled(&allocator, 2, 1)?;
    let mut export = Exporter::new(&context.device()?)?.export(&buffer)?;
    let (mut bytes, fds) = export.to_parts()?;
    let mut first = ImportOptions::read_only().import_parts(context.driver()?, &bytes, fds)?;
    let grown = buffer.grow(3 * granule)?;
    export.grow(&grown)?;
    export.grow(&grown.grow(4 * granule)?)?;
    let (_, fds) = export.to_parts()?;
    bytes[40..56].fill(0xab);
    let hidden = Export::from_parts(&bytes, fds.into_iter().take(2).collect())?;

    let (mut ours, mut theirs) = Channel::pair()?;
    let mut check = |export: &Export,
                     import: &mut (dyn FnMut(&mut Channel) -> vmm_ipc::Result<()> + Send),
                     reason: Reason,
                     advice: &str| {
        let (there, here) = std::thread::scope(|scope| {
            let importer = scope.spawn(|| import(&mut theirs).unwrap_err());
            let there = match reason {
                // The first update is skipped.
                Reason::OutOfOrder => export.send_updates(&mut ours, 1).map(drop),
                _ => export.send(&mut ours),
            };
            (there.unwrap_err(), importer.join().unwrap())
        });
        let refusal = there.refusal().unwrap();
        assert_eq!(refusal.reason, reason, "{there}");
        assert!(there.to_string().contains(&refusal.text), "{there}");
        assert!(there.to_string().ends_with(advice), "{there}");
        for words in ["here", "this side", "this process", "; ", "ask"] {
            assert!(!refusal.text.contains(words), "{words}: {}", refusal.text);
        }
        // Its own reader hears what there is to do.
        assert!(here.to_string().contains("; "), "{here}");
        println!("{there}");
    };
    let driver = context.driver()?;
    let receive = |limits: Limits| {
        move |channel: &mut Channel| {
            let options = ImportOptions::read_only().limits(limits);
            options.receive(driver, channel).map(drop)
        }
    };
    let limits = Limits::new();
    for limits in [limits.bytes(1), limits.chunks(1), limits.capacity(1)] {
        let advice = "share less, or raise the importer's `Limits`";
        check(&export, &mut receive(limits), Reason::Limit, advice);
    }
    let advice = "see its CUDA_VISIBLE_DEVICES and its container";
    check(&hidden, &mut receive(limits), Reason::NoDevice, advice);
    let mut update = |channel: &mut Channel| first.receive_update(channel);
    let advice = "send the whole buffer, by `Export::send`";
    check(&export, &mut update, Reason::OutOfOrder, advice);
    Ok(())
}

fn what_comes_out_of_place_breaks_the_channel_for_both(context: &Context) -> Result<(), Failure> {
    let allocator = allocator(context)?;
    let granule = allocator.granularity();
    let buffer = filled(&allocator, 2, 1)?;
    let mut export = Exporter::new(&context.device()?)?.export(&buffer)?;
    let grown = buffer.grow(3 * granule)?;
    export.grow(&grown)?;
    let (mut ours, mut theirs) = Channel::pair()?;
    std::thread::scope(|scope| {
        let importer = scope.spawn(move || -> Result<(), Failure> {
            let result = ImportOptions::read_only().receive(context.driver()?, &mut theirs);
            assert_eq!(kind(result), Some(ErrorKind::Protocol));
            assert!(theirs.is_broken());
            Ok(())
        });
        let begin = Instant::now();
        let error = export.send_updates(&mut ours, 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Hangup, "{error}");
        assert!(begin.elapsed() < 20 * SOON);
        assert!(ours.is_broken());
        importer
            .join()
            .unwrap_or_else(|_| Err(Failure::new("the importer panicked")))
    })
}

fn a_callback_that_panics_breaks_the_channel_for_both(context: &Context) -> Result<(), Failure> {
    let buffer = filled(&allocator(context)?, 2, 1)?;
    let export = Exporter::new(&context.device()?)?.export(&buffer)?;
    let (mut ours, mut theirs) = Channel::pair()?;
    std::thread::scope(|scope| {
        let importer = scope.spawn(move || -> Result<(), Failure> {
            let driver = context.driver()?;
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let options = ImportOptions::read_only().progress(|_| panic!("on purpose"));
                options.receive(driver, &mut theirs).map(drop)
            }));
            assert!(caught.is_err());
            assert!(theirs.is_broken());
            Ok(())
        });
        let begin = Instant::now();
        assert_eq!(kind(export.send(&mut ours)), Some(ErrorKind::Hangup));
        assert!(begin.elapsed() < 20 * SOON);
        importer
            .join()
            .unwrap_or_else(|_| Err(Failure::new("the importer panicked")))
    })
}

/// What a descriptor says of the place is the sender's word; the driver knows.
fn memory_that_lies_elsewhere_than_stated_is_refused(context: &Context) -> Result<(), Failure> {
    let device = context.device()?;
    let node = device.properties()?.host_numa_id.unwrap_or(0);
    let on = |location| {
        let builder = Allocator::builder(&device).location(location);
        builder.handle_types(HandleTypes::POSIX_FD).build()
    };
    let (here, there) = (on(Location::Device)?, on(Location::HostNuma(node))?);
    let size = here.granularity().max(there.granularity());
    let exporter = Exporter::new(&device)?;
    for (stated, sent) in [(&here, &there), (&there, &here)] {
        let (bytes, _) = exporter.export(&stated.allocate(size)?)?.into_parts();
        let (_, fds) = exporter.export(&sent.allocate(size)?)?.into_parts();
        let error = ImportOptions::read_only()
            .import_parts(context.driver()?, &bytes, fds)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotAHandle, "{error}");
        assert!(error.to_string().contains("was stated"), "{error}");
        // Nor does a buffer of both leave this process.
        let mixed = stated.allocate(size)?.grow_with(sent, 2 * size)?;
        let error = exporter.export(&mixed).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotShareable, "{error}");
        let buffer = stated.allocate(size)?;
        let mut export = exporter.export(&buffer)?;
        let error = export.grow(&buffer.grow_with(sent, 2 * size)?).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotShareable, "{error}");
    }
    Ok(())
}
