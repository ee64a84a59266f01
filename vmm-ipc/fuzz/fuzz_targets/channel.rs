//! Any packets with any number of file descriptors, to a channel that is used in each way: an error in
//! time, and nothing open or alive that was not before.
//!
//! The input is a first byte and packets of two bytes of length, one of how many file descriptors, and
//! the bytes. The lowest bit of the first byte chooses packets or a stream, the next two what is done, the
//! fourth a channel that takes almost nothing, the fifth a peer that goes in the middle, the sixth an
//! offer that fills the socket, and the last two how much of what is sent the peer reads before it goes.
#![no_main]

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown,
    SocketFlags, SocketType, recv, sendmsg, shutdown, socketpair, sockopt,
};
use vmm::Driver;
use vmm_emulator::{Emulator, Snapshot};
use vmm_ipc::wire::{Message, Reason, Refusal};
use vmm_ipc::{
    Channel, ErrorKind, Export, ImportOptions, Limits, PeerPolicy, decline_offer, decline_update,
};

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
    let (narrow, goes, long) = (first & 8 != 0, first & 16 != 0, first & 32 != 0);
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
    if long {
        // Room for one frame and a little more.
        let _ = sockopt::set_socket_send_buffer_size(&ours, 1 << 15);
    }
    let mut stays = Some(theirs);
    std::thread::scope(|scope| {
        // An offer that fills the socket needs somebody who reads it, or goes.
        if goes || long {
            let theirs = stays.take();
            scope.spawn(move || read(theirs.as_ref(), if goes { first >> 6 } else { u8::MAX }));
        }
        if let Ok(mut channel) = Channel::from_fd(ours, PeerPolicy::SameUser) {
            channel.set_timeout(Duration::from_secs(2));
            let limits = match narrow {
                true => Limits::new().chunks(0),
                false => Limits::new(),
            };
            channel.set_limits(limits);
            let export = if long { &fixture.long } else { &fixture.export };
            match first >> 1 & 3 {
                0 => import(fixture, &mut channel, limits),
                1 => offer(export, &mut channel),
                2 => while matches!(channel.try_receive(), Ok(Some(_))) {},
                _ => decline(&mut channel, goes || long),
            }
        }
    });
    drop(stays);
    assert_eq!(live(), before);
});

/// Reads so many frames, or pieces of a stream, and as long as they come at once; then it is gone.
fn read(socket: Option<&OwnedFd>, frames: u8) {
    let mut place = vec![0; 1 << 16];
    for _ in 0..frames {
        let Some(socket) = socket else { return };
        let mut waiting = [PollFd::new(socket, PollFlags::IN)];
        let soon = Timespec {
            tv_sec: 0,
            tv_nsec: 200_000,
        };
        if !matches!(poll(&mut waiting, Some(&soon)), Ok(1)) {
            return;
        }
        if !matches!(
            recv(socket, &mut place[..], RecvFlags::DONTWAIT),
            Ok((1.., _))
        ) {
            return;
        }
    }
}

fn offer(export: &Export, channel: &mut Channel) {
    loop {
        let Err(error) = export.send(channel) else {
            continue;
        };
        match error.refusal().map(|refusal| refusal.reason) {
            None => {
                // Only what was not begun can be begun again.
                let in_step = error.kind() == ErrorKind::Timeout;
                assert!(in_step || channel.is_broken(), "{error}");
                return;
            }
            Some(reason) => {
                assert!(reason != Reason::TooLong || channel.is_broken(), "{error}");
                if channel.is_broken() {
                    return;
                }
            }
        }
    }
}

fn import(fixture: &Fixture, channel: &mut Channel, limits: Limits) {
    let options = || ImportOptions::read_only().limits(limits);
    while let Ok(mut imported) = options().receive(&fixture.driver, channel) {
        while imported.receive_update(channel).is_ok() {}
    }
}

fn decline(channel: &mut Channel, goes: bool) {
    let no = || Refusal::new(Reason::Other, "no");
    while let Ok(received) = channel.receive() {
        let result = match received.message {
            Message::Offer(offer) => decline_offer(channel, &offer, no()),
            Message::Update(update) => decline_update(channel, &update, no()),
            _ => Ok(()),
        };
        // What was broken off stays so.
        assert!(result.is_ok() || channel.is_broken());
        assert!(goes || result.is_err() || !channel.is_broken());
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
    /// Of so many chunks that its offer fills a socket, with the handles inside.
    long: Export,
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
        let shared = vec![
            handle.try_clone().expect("one"),
            handle.try_clone().expect("two"),
        ];
        Fixture {
            driver,
            export: Export::from_parts(&descriptor(), shared).expect("an export"),
            long: Export::from_parts(&long_descriptor(), Vec::new()).expect("a long export"),
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

/// Many chunks of 2 MiB of the same buffer, as fabric handles: four full frames.
fn long_descriptor() -> Vec<u8> {
    let mut bytes = descriptor();
    bytes.truncate(72);
    bytes[8..12].copy_from_slice(&(88 + 72 * CHUNKS).to_le_bytes());
    bytes[12..16].copy_from_slice(&CHUNKS.to_le_bytes());
    bytes[57] = 8;
    let all = u64::from(CHUNKS) << 21;
    bytes.extend([all, all].map(u64::to_le_bytes).concat());
    bytes.extend((0..CHUNKS).flat_map(|_| (2_u64 << 20).to_le_bytes()));
    bytes.extend(vec![9; 64 * CHUNKS as usize]);
    bytes
}

const CHUNKS: u32 = 1400;

fn live() -> (usize, Snapshot) {
    let fds = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    (fds, Emulator::current().snapshot())
}
