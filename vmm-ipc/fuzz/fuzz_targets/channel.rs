//! Any packets with any number of file descriptors, to a channel that imports what it gets: an error
//! in time, and no file descriptor more than before.
//!
//! The input is a first byte (odd: a stream) and packets of two bytes of length, one of how many file
//! descriptors, and the bytes.
#![no_main]

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sendmsg, socketpair,
};
use vmm::Driver;
use vmm_ipc::{Channel, ImportOptions, PeerPolicy};

fuzz_target!(|input: &[u8]| {
    let Some((&first, mut rest)) = input.split_first() else {
        return;
    };
    let fixture = fixture();
    let before = open_fds();
    let kind = if first & 1 == 0 {
        SocketType::SEQPACKET
    } else {
        SocketType::STREAM
    };
    let Ok((ours, theirs)) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)
    else {
        return;
    };
    while let Some((&[low, high, fds], after)) = rest.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes([low, high])).min(after.len());
        let (bytes, after) = after.split_at(length);
        send(&theirs, bytes, &fixture.fds, usize::from(fds).min(253));
        rest = after;
    }
    // Hung up, so that nothing is waited for.
    drop(theirs);
    if let Ok(mut channel) = Channel::from_fd(ours, PeerPolicy::SameUser) {
        channel.set_timeout(Duration::from_secs(2));
        while ImportOptions::read_only()
            .receive(&fixture.driver, &mut channel)
            .is_ok()
        {}
    }
    assert_eq!(open_fds(), before);
});

fn send(socket: &OwnedFd, bytes: &[u8], fds: &[OwnedFd], count: usize) {
    let fds: Vec<BorrowedFd<'_>> = fds.iter().cycle().take(count).map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&fds));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let _ = sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags);
}

struct Fixture {
    driver: Driver,
    /// A handle of the emulator, and things that are none.
    fds: Vec<OwnedFd>,
}

fn fixture() -> &'static Fixture {
    static FIXTURE: OnceLock<Fixture> = OnceLock::new();
    FIXTURE.get_or_init(|| {
        let driver = Driver::new(vmm_emulator::driver().expect("the emulator")).expect("a driver");
        let device = driver.device(0).expect("a device");
        let allocator = vmm::Allocator::builder(&device)
            .handle_types(vmm::HandleTypes::POSIX_FD)
            .build()
            .expect("an allocator");
        let memory = allocator.allocate_unmapped(2 << 20).expect("memory");
        let handle = memory.export_posix_fd().expect("a handle");
        let (reader, _) = std::io::pipe().expect("a pipe");
        let file = std::fs::File::open("/dev/null").expect("a device");
        let again = handle.try_clone().expect("a duplicate");
        Fixture {
            driver,
            fds: vec![handle, reader.into(), again, file.into()],
        }
    })
}

fn open_fds() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}
