//! Passing on what came from another process.

use vmm_ipc::{Channel, ErrorKind, Exporter, ImportOptions, PeerPolicy};

use super::{allocator, channel_to, expect_filled, fill, filled};
use crate::{Case, Context, Failure, Link, cases};

pub const CASES: &[Case] = cases![
    a_buffer_goes_from_the_first_to_the_last_of_three_with_the_first_gone,
    without_kept_handles_passing_on_is_refused_early_with_what_to_do,
    kept_handles_are_counted_and_closed_with_their_owner,
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
