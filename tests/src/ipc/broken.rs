//! Exchanges that fail halfway: the channel says so at both ends, and nothing is taken for what it
//! is not.

use std::time::{Duration, Instant};

use vmm_ipc::wire::{Descriptor, Message};
use vmm_ipc::{Channel, ErrorKind, Exporter, ImportOptions, Limits};

use super::{allocator, expect_filled, filled};
use crate::{Case, Context, Failure, cases};

pub const CASES: &[Case] = cases![
    an_answer_that_comes_too_late_is_taken_for_no_other,
    an_importer_that_loses_patience_tells_the_exporter_at_once,
    a_farewell_is_an_answer_of_its_own_and_the_channel_goes_on,
    what_comes_out_of_place_breaks_the_channel_for_both,
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
            assert_eq!(kind(none), Some(ErrorKind::Retired));
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
