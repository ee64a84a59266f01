//! Near the limit of open files: what is needed and left is said, and nothing is out of step.

use std::os::fd::AsFd;

use rustix::net::SocketType;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use vmm::sys::CUresult;
use vmm_ipc::wire::{BufferId, Message, Reason, Update};
use vmm_ipc::{Channel, ErrorKind, Export, Exporter, ImportOptions, PeerPolicy};

use super::raw::sockets;
use super::{allocator, expect_filled, filled};
use crate::emulated::{self, Calls};
use crate::{Case, Context, Failure, cases};

pub const CASES: &[Case] = cases![
    near_the_limit_of_open_files_it_says_how_many_are_needed_and_left,
    room_is_counted_to_the_last_and_what_is_open_above_the_limit_takes_none,
    the_drivers_refusal_at_the_limit_of_open_files_is_no_lack_of_memory: emulator_only(),
    an_importer_near_the_limit_refuses_and_the_channel_goes_on,
    a_message_whose_descriptors_do_not_fit_is_an_error_and_the_next_one_comes,
    descriptors_that_are_open_already_need_no_more_room,
];

/// Runs `work` where only `left` more files can be opened.
fn with_files_left<T>(left: usize, work: impl FnOnce() -> T) -> T {
    let limit = getrlimit(Resource::Nofile);
    let lower = Rlimit {
        current: Some(256),
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, lower).expect("lowering the limit of open files");
    // The limit is on numbers, of which there are some left between those that are taken.
    let mut taken = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        taken.push(file);
    }
    assert!(taken.len() > left);
    taken.truncate(taken.len() - left);
    let result = work();
    setrlimit(Resource::Nofile, limit).expect("raising it again");
    result
}

fn near_the_limit_of_open_files_it_says_how_many_are_needed_and_left(
    context: &Context,
) -> Result<(), Failure> {
    let buffer = filled(&allocator(context)?, 40, 1)?;
    let exporter = Exporter::new(&context.device()?)?;
    drop(exporter.export(&buffer)?);
    let before = context.snapshot()?;
    let error = with_files_left(20, || exporter.export(&buffer)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FdLimit, "{error}");
    let text = error.to_string();
    assert!(text.contains("takes 40 file descriptors"), "{text}");
    assert!(text.contains("20 of the process's"), "{text}");
    assert!(text.contains("ulimit -n"), "{text}");
    context.assert_as(&before)?;
    // The same for duplicates, and for handles that an importer is to keep.
    let export = exporter.export(&buffer)?;
    let before = context.snapshot()?;
    let error = with_files_left(20, || export.to_parts()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FdLimit, "{error}");
    context.assert_as(&before)
}

fn room_is_counted_to_the_last_and_what_is_open_above_the_limit_takes_none(
    context: &Context,
) -> Result<(), Failure> {
    let buffer = filled(&allocator(context)?, 40, 1)?;
    let (bytes, fds) = Exporter::new(&context.device()?)?
        .export(&buffer)?
        .into_parts();
    // A driver can have descriptors above the limit for a buffer, as the emulator does.
    drop(buffer);
    let export = Export::from_parts(&bytes, fds)?;
    let before = context.snapshot()?;
    let file = std::fs::File::open("/dev/null")?;
    let mut above = Vec::new();
    for more in [0, 300] {
        for _ in 0..more {
            above.push(rustix::io::fcntl_dupfd_cloexec(&file, 256)?);
        }
        drop(with_files_left(40, || export.to_parts())?);
        let error = with_files_left(39, || export.to_parts()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FdLimit, "{error}");
        let text = error.to_string();
        assert!(text.contains("39 of the process's 256"), "{text}");
    }
    drop((above, file));
    context.assert_as(&before)
}

fn the_drivers_refusal_at_the_limit_of_open_files_is_no_lack_of_memory(
    context: &Context,
) -> Result<(), Failure> {
    let buffer = filled(&allocator(context)?, 3, 1)?;
    let exporter = Exporter::new(&context.device()?)?;
    let before = context.snapshot()?;
    let code = CUresult::CUDA_ERROR_OPERATING_SYSTEM;
    let failing = emulated::fail(Calls::Of("cuMemExportToShareableHandle"), 2, code);
    let error = exporter.export(&buffer).unwrap_err();
    assert_eq!(failing.fired(), 1);
    assert_eq!(error.kind(), ErrorKind::FdLimit, "{error}");
    let text = error.to_string();
    assert!(
        text.contains("chunk 2 of 3") && text.contains("ulimit -n"),
        "{text}"
    );
    assert!(!text.contains("OUT_OF_MEMORY"), "{text}");
    context.assert_as(&before)?;
    drop(failing);
    // By the limit itself, which is too near to have been looked for ahead.
    let error = with_files_left(1, || exporter.export(&buffer)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FdLimit, "{error}");
    let text = error.to_string();
    assert!(text.contains("2 more are needed"), "{text}");
    assert!(text.contains("0 of the process's 256"), "{text}");
    context.assert_as(&before)
}

/// The importer is refused ahead, and then cannot even hold what it has to let go of.
fn an_importer_near_the_limit_refuses_and_the_channel_goes_on(
    context: &Context,
) -> Result<(), Failure> {
    let buffer = filled(&allocator(context)?, 60, 1)?;
    let export = Exporter::new(&context.device()?)?.export(&buffer)?;
    let (mut ours, mut theirs) = Channel::pair()?;
    let driver = context.driver()?;
    for keep in [false, true] {
        let before = context.snapshot()?;
        std::thread::scope(|scope| {
            let (sender, receiver) = std::sync::mpsc::channel();
            let (ours, export) = (&mut ours, &export);
            let exporting = scope.spawn(move || {
                let _ = receiver.recv();
                export.send(ours)
            });
            let options = ImportOptions::read_only().keep_handles(keep);
            let error = with_files_left(20, || {
                let _ = sender.send(());
                options.receive(driver, &mut theirs).unwrap_err()
            });
            assert_eq!(error.kind(), ErrorKind::FdLimit, "{error}");
            assert!(error.to_string().contains("takes 60 file"), "{error}");
            let error = exporting.join().unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
            let refusal = error.refusal().unwrap();
            assert_eq!(refusal.reason, Reason::Resources);
            assert!(refusal.text.ends_with("are left"), "{error}");
            assert!(error.to_string().ends_with("to spare"), "{error}");
            assert!(error.is_retryable());
        });
        assert!(!ours.is_broken() && !theirs.is_broken());
        context.assert_as(&before)?;
    }
    let imported = std::thread::scope(|scope| {
        let exporting = scope.spawn(|| export.send(&mut ours));
        let imported = ImportOptions::read_only().receive(driver, &mut theirs);
        exporting.join().unwrap().and(imported)
    })?;
    expect_filled(imported.buffer(), 60, 1)
}

fn a_message_whose_descriptors_do_not_fit_is_an_error_and_the_next_one_comes(
    context: &Context,
) -> Result<(), Failure> {
    let file = std::fs::File::open("/dev/null")?;
    let handles = |count| Message::Handles {
        id: BufferId([1; 16]),
        first: 0,
        count,
    };
    for kind in [SocketType::SEQPACKET, SocketType::STREAM] {
        let (ours, theirs) = sockets(kind)?;
        let mut ours = Channel::from_fd(ours, PeerPolicy::SameUser)?;
        let mut theirs = Channel::from_fd(theirs, PeerPolicy::SameUser)?;
        let before = context.open_fds();
        ours.send(&handles(30), &[file.as_fd(); 30])?;
        ours.send(&handles(3), &[file.as_fd(); 3])?;
        with_files_left(10, || {
            let error = theirs.receive().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::FdLimit, "{error}");
            assert!(error.is_retryable() && !theirs.is_broken());
            assert_eq!(theirs.receive().unwrap().fds.len(), 3);
        });
        assert_eq!(context.open_fds(), before);
    }
    Ok(())
}

fn descriptors_that_are_open_already_need_no_more_room(context: &Context) -> Result<(), Failure> {
    let granularity = allocator(context)?.granularity();
    let buffer = filled(&allocator(context)?, 1, 1)?;
    let mut export = Exporter::new(&context.device()?)?.export(&buffer)?;
    let (bytes, fds) = export.to_parts()?;
    let options = ImportOptions::read_only().keep_handles(true);
    let mut imported = options.import_parts(context.driver()?, &bytes, fds)?;
    export.grow(&buffer.grow(41 * granularity)?)?;
    let (bytes, fds) = export.update_to_parts(1)?;
    let update = Update::decode(&bytes)?;
    with_files_left(20, || imported.extend(&update, fds))?;
    assert_eq!(imported.open_fds(), 41);
    let error = with_files_left(20, || export.update_to_parts(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FdLimit, "{error}");
    Ok(())
}
