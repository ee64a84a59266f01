//! File descriptors that are not what they are said to be.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::net::SocketType;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use vmm_ipc::{ErrorKind, Exporter, ImportOptions};

use super::raw::{OFFER, borrowed, frame, handles, hello, import_from};
use super::{allocator, expect_filled, filled};
use crate::{Case, Context, Failure, cases};

pub const CASES: &[Case] = cases![
    what_cannot_be_a_handle_is_refused_by_name,
    the_same_handle_twice_is_the_same_memory_twice_and_nothing_worse,
    what_does_not_fit_the_limit_of_open_files_never_stays_open,
    handles_on_their_way_to_a_peer_that_is_gone_are_closed,
];

/// Each kind of file descriptor that is no handle, and what is said of it.
fn strangers(on_emulator: bool) -> Result<Vec<(OwnedFd, &'static str)>, Failure> {
    let (reader, writer) = std::io::pipe()?;
    let (socket, _) = UnixStream::pair()?;
    let memory = rustix::fs::memfd_create("plain", rustix::fs::MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&memory, 2 << 20)?;
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?;
    let mut all = vec![
        (reader.into(), "a pipe"),
        (writer.into(), "a pipe"),
        (socket.into(), "a socket"),
        (memory, "a file"),
        (event, "without a file type"),
        (File::open("/proc/self/exe")?.into(), "a file"),
        (File::open("/")?.into(), "a directory"),
        (File::open("/dev/null")?.into(), "/dev/null"),
        (File::open("/dev/zero")?.into(), "/dev/null"),
    ];
    if !on_emulator {
        // The control device itself, which every process with a driver has open: only the driver can
        // tell that no memory is behind it.
        let mut options = File::options();
        let control = options.read(true).write(true).open("/dev/nvidiactl")?;
        all.push((control.into(), "a descriptor that it did not export"));
    }
    Ok(all)
}

fn what_cannot_be_a_handle_is_refused_by_name(context: &Context) -> Result<(), Failure> {
    let buffer = filled(&allocator(context)?, 3, 1)?;
    let export = Exporter::new(&context.device()?)?.export(&buffer)?;
    for (stranger, name) in strangers(context.driver()?.is_emulator())? {
        context
            .leaves_nothing(|| {
                let (bytes, mut fds) = export.to_parts()?;
                fds[1] = stranger.try_clone()?;
                let result = import_from(context, SocketType::SEQPACKET, |raw| {
                    raw.send(&hello(), &[]);
                    raw.send(&frame(OFFER, 0, &bytes), &[]);
                    raw.send(&handles(&bytes, 0, 3), &borrowed(&fds));
                    Some(raw)
                })?;
                let error = result.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::NotAHandle, "{error}");
                let text = error.to_string();
                assert!(text.contains("chunk 2 of 3"), "{text}");
                assert!(text.contains(name), "{text}");
                println!("{text}");
                Ok(())
            })
            .map_err(|failure| Failure::new(format!("{name}: {failure}")))?;
    }
    Ok(())
}

fn the_same_handle_twice_is_the_same_memory_twice_and_nothing_worse(
    context: &Context,
) -> Result<(), Failure> {
    let buffer = filled(&allocator(context)?, 3, 1)?;
    let export = Exporter::new(&context.device()?)?.export(&buffer)?;
    context.leaves_nothing(|| {
        let (bytes, mut fds) = export.to_parts()?;
        fds[2] = fds[0].try_clone()?;
        let imported = ImportOptions::read_write().import_parts(context.driver()?, &bytes, fds)?;
        let twice = imported.buffer();
        let granularity = twice.granularity();
        expect_filled(twice, 2, 1)?;
        twice.write(2 * granularity, &[7; 8])?;
        twice.synchronize()?;
        let mut first = [0; 8];
        twice.read(0, &mut first)?;
        assert_eq!(first, [7; 8]);
        // As before, for the second time.
        super::fill(&buffer, 1)
    })
}

fn what_does_not_fit_the_limit_of_open_files_never_stays_open(
    context: &Context,
) -> Result<(), Failure> {
    let buffer = filled(&allocator(context)?, 10, 1)?;
    let (bytes, fds) = Exporter::new(&context.device()?)?
        .export(&buffer)?
        .into_parts();
    let run = || {
        import_from(context, SocketType::SEQPACKET, |raw| {
            raw.send(&hello(), &[]);
            raw.send(&frame(OFFER, 0, &bytes), &[]);
            raw.send(&handles(&bytes, 0, 10), &borrowed(&fds));
            Some(raw)
        })
    };
    drop(run()??);
    let before = context.snapshot()?;
    for left in [0, 1, 2, 5, 9] {
        let limit = getrlimit(Resource::Nofile);
        let lower = Rlimit {
            current: Some(256),
            maximum: limit.maximum,
        };
        let (ours, theirs) = super::raw::sockets(SocketType::SEQPACKET)?;
        let raw = super::raw::Raw(theirs);
        raw.send(&hello(), &[]);
        raw.send(&frame(OFFER, 0, &bytes), &[]);
        raw.send(&handles(&bytes, 0, 10), &borrowed(&fds));
        setrlimit(Resource::Nofile, lower)?;
        let mut taken: Vec<File> = Vec::new();
        while let Ok(file) = File::open("/dev/null") {
            taken.push(file);
        }
        taken.truncate(taken.len() - left);
        let result = vmm_ipc::Channel::from_fd(ours, vmm_ipc::PeerPolicy::SameUser).and_then(
            |mut channel| {
                ImportOptions::read_only().receive(context.driver().unwrap(), &mut channel)
            },
        );
        setrlimit(Resource::Nofile, limit)?;
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FdLimit, "{left} left: {error}");
        assert!(error.to_string().contains("ulimit -n"), "{error}");
        drop((taken, raw));
        context.assert_as(&before)?;
    }
    Ok(())
}

fn handles_on_their_way_to_a_peer_that_is_gone_are_closed(
    context: &Context,
) -> Result<(), Failure> {
    let allocator = allocator(context)?;
    let exporter = Exporter::new(&context.device()?)?;
    context.leaves_nothing(|| {
        let buffer = filled(&allocator, 100, 1)?;
        let export = exporter.export(&buffer)?;
        let (ours, theirs) = super::raw::sockets(SocketType::SEQPACKET)?;
        let raw = super::raw::Raw(ours);
        raw.send(
            &handles(&export.descriptor().encode(), 0, 100),
            &export.fds().collect::<Vec<_>>(),
        );
        drop(export);
        drop(buffer);
        // The memory is now held by nothing but the message.
        drop((raw, theirs));
        Ok(())
    })
}
