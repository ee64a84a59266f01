//! The channel without a driver: long messages, full buffers, deadlines, and what ends it.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use vmm_ipc::wire::{BufferId, Descriptor, MAX_FDS, Message, Reason};
use vmm_ipc::{Channel, ErrorKind, Export, Limits, Listener, PeerPolicy};

const SOON: Duration = Duration::from_millis(150);

fn offer(chunks: u32) -> Message {
    let total = 88 + chunks * 8;
    let mapped = u64::from(chunks) << 21;
    let mut bytes = Vec::new();
    bytes.extend(b"VMMD");
    bytes.extend([1, 0, 0, 0]);
    bytes.extend(total.to_le_bytes());
    bytes.extend(chunks.to_le_bytes());
    bytes.extend([7; 40]);
    bytes.extend([1, 1, 0, 0, 0, 0, 0, 0]);
    for value in [1 << 21, mapped, mapped] {
        bytes.extend(u64::to_le_bytes(value));
    }
    bytes.extend((0..chunks).flat_map(|_| (1_u64 << 21).to_le_bytes()));
    Message::Offer(Descriptor::decode(&bytes).unwrap())
}

/// The same with the handles inside.
fn fabric_offer(chunks: u32) -> Message {
    let Message::Offer(descriptor) = offer(chunks) else {
        unreachable!()
    };
    let mut bytes = descriptor.encode();
    bytes[57] = 8;
    bytes.extend((0..chunks).flat_map(|_| [9; 64]));
    let total = bytes.len() as u32;
    bytes[8..12].copy_from_slice(&total.to_le_bytes());
    Message::Offer(Descriptor::decode(&bytes).unwrap())
}

fn sockets(kind: SocketType) -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap()
}

fn channels(kind: SocketType) -> (Channel, Channel) {
    let (a, b) = sockets(kind);
    for socket in [&a, &b] {
        // As small as it gets: a long message fills it many times over.
        rustix::net::sockopt::set_socket_send_buffer_size(socket, 1).unwrap();
    }
    let channel = |fd| Channel::from_fd(fd, PeerPolicy::SameUser);
    (channel(a).unwrap(), channel(b).unwrap())
}

#[test]
fn messages_of_any_length_pass_through_small_buffers() {
    // One packet has to fit the buffer; a stream is cut wherever it is full.
    for (kind, lengths) in [
        (SocketType::STREAM, &[1, 4000, 5000, 60_000][..]),
        (SocketType::SEQPACKET, &[1, 200][..]),
    ] {
        let (mut a, mut b) = channels(kind);
        for &length in lengths {
            let message = offer(length);
            let expected = message.clone();
            let sending = std::thread::spawn(move || {
                a.send(&message, &[]).unwrap();
                a
            });
            assert_eq!(b.receive().unwrap().message, expected);
            a = sending.join().unwrap();
        }
    }
}

#[test]
fn long_messages_pass_in_packets_of_usual_buffers() {
    let (mut a, mut b) = Channel::pair().unwrap();
    let message = offer(60_000);
    let expected = message.clone();
    let sending = std::thread::spawn(move || a.send(&message, &[]).map(|()| a));
    assert_eq!(b.receive().unwrap().message, expected);
    sending.join().unwrap().unwrap();
}

#[test]
fn as_many_descriptors_as_the_kernel_takes_come_with_one_message_and_no_more() {
    let file = std::fs::File::open("/dev/null").unwrap();
    for kind in [SocketType::SEQPACKET, SocketType::STREAM] {
        let (a, b) = sockets(kind);
        let mut a = Channel::from_fd(a, PeerPolicy::SameUser).unwrap();
        let mut b = Channel::from_fd(b, PeerPolicy::SameUser).unwrap();
        let handles = |count: usize| Message::Handles {
            id: BufferId([1; 16]),
            first: 0,
            count: count as u32,
        };
        a.send(&handles(MAX_FDS), &[file.as_fd(); MAX_FDS]).unwrap();
        let received = b.receive().unwrap();
        assert_eq!(received.fds.len(), MAX_FDS);
        for fd in received.fds {
            let flags = rustix::io::fcntl_getfd(&fd).unwrap();
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        }
        let error = a
            .send(&handles(MAX_FDS + 1), &[file.as_fd(); MAX_FDS + 1])
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
}

#[test]
fn every_wait_ends_at_its_deadline() {
    let (mut a, mut b) = channels(SocketType::STREAM);
    a.set_timeout(SOON);
    b.set_timeout(SOON);
    let begin = Instant::now();
    let error = b.receive().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    // Nobody reads what is more than the buffer holds.
    let error = a.send(&offer(60_000), &[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert!(error.is_retryable());
    let error = Listener::new().unwrap().accept(SOON).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    let took = begin.elapsed();
    assert!((3 * SOON..30 * SOON).contains(&took), "{took:?}");
}

#[test]
fn a_hangup_ends_every_wait_at_once() {
    for kind in [SocketType::SEQPACKET, SocketType::STREAM] {
        let (a, mut b) = channels(kind);
        let waiting = std::thread::spawn(move || (b.receive().unwrap_err(), b));
        std::thread::sleep(Duration::from_millis(20));
        let begin = Instant::now();
        drop(a);
        let (error, mut b) = waiting.join().unwrap();
        assert_eq!(error.kind(), ErrorKind::Hangup, "{error}");
        let error = b.send(&offer(10), &[]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Hangup, "{error}");
        assert!(b.is_broken());
        assert!(begin.elapsed() < Duration::from_secs(2));
    }
    // Also the wait for room.
    let (mut a, b) = channels(SocketType::STREAM);
    let waiting = std::thread::spawn(move || a.send(&offer(60_000), &[]).unwrap_err());
    std::thread::sleep(Duration::from_millis(20));
    drop(b);
    assert_eq!(waiting.join().unwrap().kind(), ErrorKind::Hangup);
}

#[test]
fn the_length_of_messages_is_bounded_by_what_the_receiver_set() {
    let (mut a, mut b) = Channel::pair().unwrap();
    b.set_limits(Limits::new().chunks(100));
    a.send(&offer(100), &[]).unwrap();
    b.receive().unwrap();
    a.send(&offer(3000), &[]).unwrap();
    let error = b.receive().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
}

#[test]
fn an_exporter_hears_that_its_offer_is_longer_than_the_importer_takes() {
    let file = std::fs::File::open("/dev/null").unwrap();
    let fds = |count: u32| {
        let one = |_| file.as_fd().try_clone_to_owned().unwrap();
        (0..count).map(one).collect::<Vec<_>>()
    };
    for kind in [SocketType::STREAM, SocketType::SEQPACKET] {
        // In one frame with handles behind it, in one that is all, and in many frames.
        for (offered, fds) in [
            (offer(300), fds(300)),
            (fabric_offer(40), Vec::new()),
            (fabric_offer(5000), Vec::new()),
        ] {
            let Message::Offer(descriptor) = &offered else {
                unreachable!()
            };
            let export = Export::from_parts(&descriptor.encode(), fds).unwrap();
            let (a, b) = sockets(kind);
            let channel = |fd| Channel::from_fd(fd, PeerPolicy::SameUser).unwrap();
            let (mut a, mut b) = (channel(a), channel(b));
            b.set_limits(Limits::new().chunks(20));
            let sending = std::thread::spawn(move || (export.send(&mut a).unwrap_err(), a));
            let here = b.receive().unwrap_err();
            assert_eq!(here.kind(), ErrorKind::Limit, "{here}");
            let (there, mut a) = sending.join().unwrap();
            assert_eq!(there.kind(), ErrorKind::Refused, "{there}");
            assert_eq!(there.refusal().unwrap().reason, Reason::TooLong);
            assert!(!there.is_retryable());
            // Whether the importer was quicker to hang up or not.
            assert!(a.is_broken() && b.is_broken());
            assert_eq!(a.receive().unwrap_err().kind(), ErrorKind::Hangup);
        }
    }
}

#[test]
fn a_peer_that_stays_keeps_neither_side_from_ending_at_once() {
    let patience = Duration::from_secs(20);
    for kind in [SocketType::STREAM, SocketType::SEQPACKET] {
        // An importer that no longer reads, in the middle of an offer.
        let (a, peer) = sockets(kind);
        let mut channel = Channel::from_fd(a, PeerPolicy::SameUser).unwrap();
        channel.set_timeout(patience);
        let Message::Offer(descriptor) = fabric_offer(60_000) else {
            unreachable!()
        };
        let export = Export::from_parts(&descriptor.encode(), Vec::new()).unwrap();
        let begin = Instant::now();
        let sending = std::thread::spawn(move || (export.send(&mut channel).unwrap_err(), channel));
        // So much of it has come that the rest waits for room.
        let mut place = [0; 100];
        rustix::net::recv(&peer, &mut place, rustix::net::RecvFlags::PEEK).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        rustix::net::shutdown(&peer, rustix::net::Shutdown::Read).unwrap();
        // What the queue has still can be read; with the room comes word that there is no reader.
        let mut rest = vec![0; 1 << 16];
        let flags = rustix::net::RecvFlags::DONTWAIT;
        while rustix::net::recv(&peer, &mut rest[..], flags).is_ok_and(|(count, _)| count > 0) {}
        let (error, channel) = sending.join().unwrap();
        assert_eq!(error.kind(), ErrorKind::Hangup, "{error}");
        assert!(channel.is_broken());
        assert!(begin.elapsed() < patience / 2, "{:?}", begin.elapsed());
    }
    // An exporter that sends the header of an offer that is too long, and nothing more.
    let (a, peer) = sockets(SocketType::STREAM);
    let mut channel = Channel::from_fd(a, PeerPolicy::SameUser).unwrap();
    channel.set_timeout(patience);
    channel.set_limits(Limits::new().chunks(20));
    let hello = b"\x01\0\0\0\x10\0\0\0\x10\0\0\0\0\0\0\0VMM-IPC\0\x01\0\0\0\0\0\0\0";
    let header = b"\x02\0\0\0\0\x80\0\0\0\0\x01\0\0\0\0\0";
    rustix::io::write(&peer, &[&hello[..], header].concat()).unwrap();
    let begin = Instant::now();
    let error = channel.receive().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
    assert!(begin.elapsed() < patience / 2, "{:?}", begin.elapsed());
}

#[test]
fn only_unix_sockets_that_keep_a_connection_are_taken() {
    let (datagrams, _other) = sockets(SocketType::DGRAM);
    let network = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let connected = std::net::TcpStream::connect(network.local_addr().unwrap()).unwrap();
    let file = std::fs::File::open("/dev/null").unwrap();
    for (fd, word) in [
        (datagrams, "SEQPACKET and STREAM"),
        (connected.into(), "Unix sockets"),
        (file.into(), "socket"),
    ] {
        let error = Channel::from_fd(fd, PeerPolicy::SameUser).unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[test]
fn signals_do_not_end_a_wait() {
    unsafe extern "C" {
        fn signal(number: i32, handler: extern "C" fn(i32)) -> usize;
    }
    extern "C" fn nothing(_: i32) {}
    let usr1 = rustix::process::Signal::USR1;
    // SAFETY: the handler does nothing, so it may interrupt anything.
    unsafe { signal(usr1.as_raw(), nothing) };
    let (mut a, mut b) = channels(SocketType::STREAM);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                rustix::process::kill_process(rustix::process::getpid(), usr1).unwrap();
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        let receiving = scope.spawn(|| b.receive().map(|received| received.message));
        std::thread::sleep(SOON);
        let sent = a.send(&offer(20_000), &[]);
        let received = receiving.join();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        sent.unwrap();
        assert_eq!(received.unwrap().unwrap(), offer(20_000));
    });
}

#[test]
fn what_the_kernel_would_send_along_is_not_taken() {
    let (a, b) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    // As a service manager does with the sockets that it passes on.
    rustix::net::sockopt::set_socket_passcred(&a, true).unwrap();
    let mut server = Channel::from_fd(a, PeerPolicy::SameUser).unwrap();
    let mut client = Channel::from_fd(b, PeerPolicy::SameUser).unwrap();
    let file = std::fs::File::open("/dev/null").unwrap();
    let handles = Message::Handles {
        id: BufferId([7; 16]),
        first: 0,
        count: 253,
    };
    client.send(&handles, &vec![file.as_fd(); 253]).unwrap();
    assert_eq!(server.receive().unwrap().fds.len(), 253);
}

#[test]
fn a_socket_without_a_peer_is_refused_as_that() {
    let alone = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    let error = Channel::from_fd(alone, PeerPolicy::Anyone).unwrap_err();
    assert!(error.to_string().contains("not connected"), "{error}");
    let error = Channel::connect("/dev/null").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
}

#[test]
fn a_wait_for_what_has_not_begun_can_be_repeated() {
    for kind in [SocketType::SEQPACKET, SocketType::STREAM] {
        let (mut a, mut b) = channels(kind);
        b.set_timeout(SOON);
        for _ in 0..2 {
            let error = b.receive().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Timeout);
            assert!(error.to_string().contains("try again"), "{error}");
            assert!(!b.is_broken());
        }
        a.send(&offer(1), &[]).unwrap();
        assert_eq!(b.receive().unwrap().message, offer(1));
    }
}

#[test]
fn what_cannot_go_on_breaks_the_channel_and_both_sides_hear_of_it() {
    let (a, b) = sockets(SocketType::STREAM);
    let mut b = Channel::from_fd(b, PeerPolicy::SameUser).unwrap();
    b.set_timeout(SOON);
    let mut theirs = Channel::from_fd(a.try_clone().unwrap(), PeerPolicy::SameUser).unwrap();
    // No header of a frame.
    rustix::io::write(&a, &[0xff; 16]).unwrap();
    let error = b.receive().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
    assert!(b.is_broken());
    let error = b.send(&offer(1), &[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Hangup, "{error}");
    assert!(error.to_string().contains("broken off"), "{error}");
    assert_eq!(b.receive().unwrap_err().kind(), ErrorKind::Hangup);
    // The hello that was sent before is still there; then it is over, at once.
    let begin = Instant::now();
    assert_eq!(theirs.receive().unwrap_err().kind(), ErrorKind::Hangup);
    assert!(begin.elapsed() < Duration::from_secs(2));

    // A message that could be sent in part only.
    let (mut a, _b) = channels(SocketType::STREAM);
    a.set_timeout(SOON);
    let error = a.send(&offer(60_000), &[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.to_string().contains("new channel"), "{error}");
    assert!(a.is_broken());
}

#[test]
fn one_of_a_pair_becomes_a_channel_elsewhere() {
    let (mut ours, theirs) = Channel::pair().unwrap();
    let inherited = theirs.into_fd().unwrap();
    // A peer that waits for a greeting before it says anything has it already.
    let mut waiting = [rustix::event::PollFd::new(
        &inherited,
        rustix::event::PollFlags::IN,
    )];
    let now = rustix::event::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    assert_eq!(rustix::event::poll(&mut waiting, Some(&now)), Ok(1));
    let mut theirs = Channel::from_fd(inherited, PeerPolicy::SameUser).unwrap();
    for length in [1, 2] {
        ours.send(&offer(length), &[]).unwrap();
        assert_eq!(theirs.receive().unwrap().message, offer(length));
        theirs.send(&offer(length), &[]).unwrap();
        assert_eq!(ours.receive().unwrap().message, offer(length));
    }
    // What one says that goes is heard by the other, though it can no longer say hello, and though
    // the one has not read what the other had said.
    for answers in [false, true] {
        let (mut gone, mut left) = Channel::pair().unwrap();
        gone.send(&offer(3), &[]).unwrap();
        if answers {
            left.send(&offer(1), &[]).unwrap();
        }
        drop(gone);
        assert_eq!(left.receive().unwrap().message, offer(3), "{answers}");
        assert_eq!(left.receive().unwrap_err().kind(), ErrorKind::Hangup);
    }
    // What was said belongs to this value, and cannot be said again.
    let error = ours.into_fd().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert_eq!(theirs.receive().unwrap_err().kind(), ErrorKind::Hangup);
}
