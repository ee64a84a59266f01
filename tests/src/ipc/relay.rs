//! Passing on what came from another process.

use vmm_ipc::wire::Update;
use vmm_ipc::{Channel, ErrorKind, Exporter, ImportOptions, PeerPolicy};

use super::{allocator, channel_to, expect_filled, fill, filled};
use crate::{Case, Context, Failure, Link, cases};

pub const CASES: &[Case] = cases![
    a_buffer_goes_from_the_first_to_the_last_of_three_with_the_first_gone,
    without_kept_handles_passing_on_is_refused_early_with_what_to_do,
    kept_handles_are_counted_and_closed_with_their_owner,
    what_a_buffer_grows_by_is_passed_on_without_the_rest,
];

/// Makes a buffer, shares it, and waits for its end.
pub fn first_of_three(context: &Context, mut link: Link) -> Result<(), Failure> {
    let buffer = filled(&allocator(context)?, 70, 1)?;
    let mut channel = Channel::from_fd(link.take_data()?, PeerPolicy::SameUser)?;
    let export = Exporter::new(&context.device()?)?.share(&buffer, &mut channel)?;
    link.step("shared")?;
    let grown = buffer.grow(buffer.len() + buffer.granularity())?;
    fill(&grown, 1)?;
    let mut export = export;
    export.grow(&grown)?;
    export.send_updates(&mut channel, 0)?;
    link.step("grown")
}

/// Takes a buffer, checks and changes it.
pub fn last_of_three(context: &Context, mut link: Link) -> Result<(), Failure> {
    let mut channel = Channel::from_fd(link.take_data()?, PeerPolicy::SameUser)?;
    let imported = ImportOptions::read_write().receive(context.driver()?, &mut channel)?;
    expect_filled(imported.buffer(), 71, 1)?;
    assert_eq!(imported.generation(), 1);
    fill(imported.buffer(), 2)?;
    imported.buffer().synchronize()?;
    link.step("changed")
}

fn a_buffer_goes_from_the_first_to_the_last_of_three_with_the_first_gone(
    context: &Context,
) -> Result<(), Failure> {
    let mut first = context.peer("ipc::first of three")?;
    let mut channel = channel_to(&mut first)?;
    let options = ImportOptions::read_write().keep_handles(true);
    let mut imported = options.receive(context.driver()?, &mut channel)?;
    assert_eq!(imported.open_fds(), 70);
    first.expect("shared")?;
    first.tell("go")?;
    imported.receive_update(&mut channel)?;
    assert_eq!(imported.open_fds(), 71);
    first.expect("grown")?;
    first.kill()?;
    expect_filled(imported.buffer(), 71, 1)?;

    let mut last = context.peer("ipc::last of three")?;
    let mut channel = channel_to(&mut last)?;
    imported.export()?.send(&mut channel)?;
    last.expect("changed")?;
    expect_filled(imported.buffer(), 71, 2)?;
    last.tell("go")?;
    last.finish()
}

fn without_kept_handles_passing_on_is_refused_early_with_what_to_do(
    context: &Context,
) -> Result<(), Failure> {
    let buffer = filled(&allocator(context)?, 3, 1)?;
    let exporter = Exporter::new(&context.device()?)?;
    let (bytes, fds) = exporter.export(&buffer)?.into_parts();
    let imported = ImportOptions::read_only().import_parts(context.driver()?, &bytes, fds)?;
    let before = context.snapshot()?;
    for error in [
        imported.export().unwrap_err(),
        exporter.export(imported.buffer()).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::NotShareable, "{error}");
        assert!(error.to_string().contains("keep_handles"), "{error}");
    }
    context.assert_as(&before)
}

fn kept_handles_are_counted_and_closed_with_their_owner(context: &Context) -> Result<(), Failure> {
    let buffer = filled(&allocator(context)?, 3, 1)?;
    let export = Exporter::new(&context.device()?)?.export(&buffer)?;
    context.leaves_nothing(|| {
        let (bytes, fds) = export.to_parts()?;
        let options = ImportOptions::read_only().keep_handles(true);
        let before = context.open_fds();
        let imported = options.import_parts(context.driver()?, &bytes, fds)?;
        assert_eq!(imported.open_fds(), 3);
        let again = imported.export()?;
        assert_eq!(again.fds().len(), 3);
        assert!(context.open_fds() >= before + 3);
        // What is passed on is independent of what it was made from.
        drop(imported);
        let (bytes, fds) = again.into_parts();
        let imported = ImportOptions::read_only().import_parts(context.driver()?, &bytes, fds)?;
        expect_filled(imported.buffer(), 3, 1)
    })
}

fn what_a_buffer_grows_by_is_passed_on_without_the_rest(context: &Context) -> Result<(), Failure> {
    let allocator = allocator(context)?;
    let granularity = allocator.granularity();
    let buffer = allocator.allocate_with_capacity(2 * granularity, 16 * granularity)?;
    let exporter = Exporter::new(&context.device()?)?;
    let driver = context.driver()?;
    let work = || {
        let mut export = exporter.export(&buffer)?;
        let (bytes, fds) = export.to_parts()?;
        let options = ImportOptions::read_write().keep_handles(true);
        let mut between = options.import_parts(driver, &bytes, fds)?;
        let mut relay = between.export()?;
        let (bytes, fds) = relay.to_parts()?;
        let mut last = ImportOptions::read_write().import_parts(driver, &bytes, fds)?;
        let address = last.buffer().address();
        assert_eq!(between.export_growth(&mut relay)?, 0);
        let (mut grown, mut sent) = (buffer.alias(), 0);
        for more in [1, 3, 2] {
            grown = grown.grow(grown.len() + more * granularity)?;
            fill(&grown, 1)?;
            export.grow(&grown)?;
            let (bytes, fds) = export.update_to_parts(export.generation())?;
            between.extend(&Update::decode(&bytes)?, fds)?;
            // The second time it follows two at once.
            if more == 1 {
                continue;
            }
            assert!(between.export_growth(&mut relay)? > 0);
            assert_eq!(relay.descriptor(), between.descriptor());
            assert_eq!(relay.fds().len(), grown.chunk_count());
            for update in relay.updates_since(sent).to_vec() {
                let (bytes, fds) = relay.update_to_parts(update.generation())?;
                assert_eq!(fds.len(), update.sizes().len());
                last.extend(&Update::decode(&bytes)?, fds)?;
            }
            sent = relay.generation();
            assert_eq!(last.buffer().len(), grown.len());
            expect_filled(last.buffer(), grown.chunk_count(), 1)?;
        }
        assert_eq!(sent, 3);
        assert_eq!(last.buffer().address(), address);
        Ok(())
    };
    work()?;
    context.leaves_nothing(work)?;
    // One that was not imported takes in its own buffer's growth alone.
    let mut export = exporter.export(&buffer)?;
    let (bytes, fds) = export.to_parts()?;
    let options = ImportOptions::read_only().keep_handles(true);
    let imported = options.import_parts(driver, &bytes, fds)?;
    let error = imported.export_growth(&mut export).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    let error = imported.export()?.grow(imported.buffer()).unwrap_err();
    assert!(error.to_string().contains("export_growth"), "{error}");
    // Nor does an imported buffer grow by itself.
    let buffer = imported.buffer();
    let error = buffer.grow(buffer.len() + granularity).unwrap_err();
    assert_eq!(error.kind(), vmm::ErrorKind::InvalidArgument, "{error}");
    assert!(error.to_string().contains("receive_update"), "{error}");
    Ok(())
}
