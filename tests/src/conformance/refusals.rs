//! What is not as it should be is refused, in words, and nothing is left behind.

use std::os::fd::OwnedFd;

use vmm_ipc::{ErrorKind, Exporter, ImportOptions, wire};

use super::{channel, three_chunks};
use crate::vmm::write_pattern;
use crate::{Case, Context, Failure, cases};

pub const CASES: &[Case] = cases![
    a_stated_chunk_size_that_is_wrong_is_refused,
    an_fd_that_is_not_the_drivers_is_refused,
    too_few_and_too_many_fds_are_refused,
    bytes_that_are_no_descriptor_are_refused,
    a_private_buffer_is_not_exported,
    a_peer_that_hangs_up_ends_the_wait,
    a_silent_peer_ends_the_wait_by_the_deadline,
];

/// The parts of an exported buffer of three chunks.
fn parts(context: &Context) -> Result<(Vec<u8>, Vec<OwnedFd>), Failure> {
    let buffer = three_chunks(context)?;
    write_pattern(&buffer, 1)?;
    Ok(Exporter::new(&context.device()?)?
        .export(&buffer)?
        .into_parts())
}

#[track_caller]
fn import(context: &Context, bytes: &[u8], fds: Vec<OwnedFd>) -> Result<vmm_ipc::Error, Failure> {
    match ImportOptions::read_write().import_parts(context.driver()?, bytes, fds) {
        Ok(_) => Err(Failure::new("it was imported")),
        Err(error) => Ok(error),
    }
}

fn a_stated_chunk_size_that_is_wrong_is_refused(context: &Context) -> Result<(), Failure> {
    context.leaves_nothing(|| {
        // The chunks are 1, 2 and 3 granules: in another order each size is one that exists.
        let (bytes, mut fds) = parts(context)?;
        fds.swap(1, 2);
        let error = import(context, &bytes, fds)?;
        assert_eq!(error.kind(), ErrorKind::NotAHandle, "{error}");
        let (bytes, mut fds) = parts(context)?;
        fds.rotate_left(1);
        let error = import(context, &bytes, fds)?;
        assert_eq!(error.kind(), ErrorKind::NotAHandle, "{error}");
        Ok(())
    })
}

fn an_fd_that_is_not_the_drivers_is_refused(context: &Context) -> Result<(), Failure> {
    let others: &[fn() -> Result<OwnedFd, Failure>] = &[
        || Ok(std::fs::File::open("/dev/null")?.into()),
        || Ok(std::fs::File::open("/proc/self/exe")?.into()),
        || Ok(std::io::pipe()?.0.into()),
        || Ok(std::os::unix::net::UnixStream::pair()?.0.into()),
        || {
            Ok(rustix::fs::memfd_create(
                "plain",
                rustix::fs::MemfdFlags::CLOEXEC,
            )?)
        },
    ];
    context.leaves_nothing(|| {
        for other in others {
            for place in 0..3 {
                let (bytes, mut fds) = parts(context)?;
                if let Some(fd) = fds.get_mut(place) {
                    *fd = other()?;
                }
                let error = import(context, &bytes, fds)?;
                assert_eq!(error.kind(), ErrorKind::NotAHandle, "{error}");
                let chunk = format!("chunk {}", place + 1);
                assert!(error.to_string().contains(&chunk), "which chunk? {error}");
            }
        }
        Ok(())
    })
}

fn too_few_and_too_many_fds_are_refused(context: &Context) -> Result<(), Failure> {
    context.leaves_nothing(|| {
        let (bytes, mut fds) = parts(context)?;
        fds.pop();
        let error = import(context, &bytes, fds)?;
        assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
        let (bytes, mut fds) = parts(context)?;
        fds.push(std::fs::File::open("/dev/null")?.into());
        let error = import(context, &bytes, fds)?;
        assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
        let (bytes, _) = parts(context)?;
        import(context, &bytes, vec![])?;
        Ok(())
    })
}

fn bytes_that_are_no_descriptor_are_refused(context: &Context) -> Result<(), Failure> {
    context.leaves_nothing(|| {
        let (bytes, _) = parts(context)?;
        wire::Descriptor::decode(&bytes)?;
        for cut in 0..bytes.len() {
            import(context, &bytes[..cut], vec![])?;
        }
        let (_, fds) = parts(context)?;
        import(context, &[bytes.clone(), vec![0]].concat(), fds)?;
        for at in 0..bytes.len() {
            // One value has one encoding, so what still decodes says something else.
            let mut changed = bytes.clone();
            changed[at] ^= 0xff;
            if let Ok(descriptor) = wire::Descriptor::decode(&changed) {
                assert_eq!(descriptor.encode(), changed);
            }
        }
        Ok(())
    })
}

fn a_private_buffer_is_not_exported(context: &Context) -> Result<(), Failure> {
    context.leaves_nothing(|| {
        let device = context.device()?;
        let private = ::vmm::Allocator::builder(&device).build()?.allocate(1)?;
        let error = match Exporter::new(&device)?.export(&private) {
            Ok(_) => return Err(Failure::new("it was exported")),
            Err(error) => error,
        };
        assert_eq!(error.kind(), ErrorKind::NotShareable, "{error}");
        Ok(())
    })
}

fn a_peer_that_hangs_up_ends_the_wait(context: &Context) -> Result<(), Failure> {
    context.leaves_nothing(|| {
        let mut peer = context.peer("share-importer")?;
        let mut channel = channel(peer.take_data()?)?;
        peer.kill()?;
        let driver = context.driver()?;
        let error = match ImportOptions::read_write().receive(driver, &mut channel) {
            Ok(_) => return Err(Failure::new("something was imported")),
            Err(error) => error,
        };
        assert_eq!(error.kind(), ErrorKind::Hangup, "{error}");
        Ok(())
    })
}

fn a_silent_peer_ends_the_wait_by_the_deadline(context: &Context) -> Result<(), Failure> {
    context.leaves_nothing(|| {
        let (silent, own) = std::os::unix::net::UnixStream::pair()?;
        let mut channel = channel(own.into())?;
        channel.set_timeout(std::time::Duration::from_millis(100));
        let error = match ImportOptions::read_write().receive(context.driver()?, &mut channel) {
            Ok(_) => return Err(Failure::new("something was imported")),
            Err(error) => error,
        };
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        drop(silent);
        Ok(())
    })
}
