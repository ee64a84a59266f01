//! Any packets with any number of file descriptors, to a channel that is used in each way: an error in
//! time, and nothing open or alive that was not before.
//!
//! The input is a first byte and packets of two bytes of length, one of how many file descriptors, and
//! the bytes. The lowest bit of the first byte chooses packets or a stream, the next two what is done.
#![no_main]

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketFlags,
    SocketType, sendmsg, shutdown, socketpair,
};
use vmm::Driver;
use vmm_emulator::{Emulator, Snapshot};
use vmm_ipc::wire::{Message, Reason, Refusal};
use vmm_ipc::{Channel, Export, ImportOptions, PeerPolicy, decline_offer, decline_update};

fuzz_target!(|input: &[u8]| {
    let Some((&first, mut rest)) = input.split_first() else {
        return;
    };
    let fixture = fixture();
    let before = live();
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
    // Nothing more comes, so that nothing is waited for; what is sent there finds room.
    let _ = shutdown(&theirs, Shutdown::Write);
    if let Ok(mut channel) = Channel::from_fd(ours, PeerPolicy::SameUser) {
        channel.set_timeout(Duration::from_secs(2));
        match first >> 1 & 3 {
            0 => import(fixture, &mut channel),
            1 => while fixture.export.send(&mut channel).is_ok() {},
            2 => while matches!(channel.try_receive(), Ok(Some(_))) {},
            _ => decline(&mut channel),
        }
    }
    drop(theirs);
    assert_eq!(live(), before);
});

fn import(fixture: &Fixture, channel: &mut Channel) {
    while let Ok(mut imported) = ImportOptions::read_only().receive(&fixture.driver, channel) {
        while imported.receive_update(channel).is_ok() {}
    }
}

fn decline(channel: &mut Channel) {
    let no = || Refusal::new(Reason::Other, "no");
    while let Ok(received) = channel.receive() {
        let result = match received.message {
            Message::Offer(offer) => decline_offer(channel, &offer, no()),
            Message::Update(update) => decline_update(channel, &update, no()),
            _ => Ok(()),
        };
        // What was broken off stays so.
        assert_eq!(result.is_err(), channel.is_broken());
    }
}

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
    /// Of two chunks, with an id that answers can name.
    export: Export,
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
        let shared = vec![handle.try_clone().expect("one"), handle.try_clone().expect("two")];
        Fixture {
            driver,
            export: Export::from_parts(&descriptor(), shared).expect("an export"),
            fds: vec![handle, reader.into(), again, file.into()],
        }
    })
}

/// Two chunks of 2 MiB of the buffer `07070707...`.
fn descriptor() -> Vec<u8> {
    let mut bytes = b"VMMD\x01\0\0\0".to_vec();
    bytes.extend([104_u32, 2].map(u32::to_le_bytes).concat());
    bytes.extend([7; 16]);
    bytes.extend([0; 8]);
    bytes.extend([7; 16]);
    bytes.extend([1, 1, 0, 0, 0, 0, 0, 0]);
    let numbers: [u64; 5] = [2 << 20, 4 << 20, 4 << 20, 2 << 20, 2 << 20];
    bytes.extend(numbers.map(u64::to_le_bytes).concat());
    bytes
}

fn live() -> (usize, Snapshot) {
    let fds = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    (fds, Emulator::current().snapshot())
}
