//! Messages of which a part has come, and those that nobody receives any more.

use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sendmsg, socketpair,
};
use vmm_ipc::wire::{BufferId, Message};
use vmm_ipc::{Channel, ErrorKind, PeerPolicy};

const SOON: Duration = Duration::from_millis(20);
const ID: BufferId = BufferId([7; 16]);

fn sockets(kind: SocketType) -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap()
}

fn channel(socket: OwnedFd) -> Channel {
    let mut channel = Channel::from_fd(socket, PeerPolicy::SameUser).unwrap();
    channel.set_timeout(SOON);
    channel
}

fn send(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
    let flags = SendFlags::NOSIGNAL;
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags).unwrap();
}

/// A whole message in one frame.
fn frame(kind: u8, fds: u8, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_le_bytes();
    [&[kind, 0, fds, 0], &len[..], &len, &[0; 4], payload].concat()
}

fn hello() -> Vec<u8> {
    frame(1, 0, b"VMM-IPC\0\x01\0\0\0\0\0\0\0")
}

/// The message that one descriptor comes with.
fn one_handle() -> Vec<u8> {
    let payload = [&ID.0[..], &0_u32.to_le_bytes(), &1_u32.to_le_bytes()].concat();
    frame(4, 1, &payload)
}

fn is_closed(mut reader: std::io::PipeReader) -> bool {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let end = reader.read(&mut [0]);
        let _ = sender.send(end.unwrap());
    });
    receiver.recv_timeout(Duration::from_secs(5)) == Ok(0)
}

#[test]
fn a_message_that_comes_byte_by_byte_is_waited_for_by_many_calls() {
    let (theirs, ours) = sockets(SocketType::STREAM);
    let mut channel = channel(ours);
    let (mut reader, writer) = std::io::pipe().unwrap();
    for &byte in &hello() {
        assert!(channel.try_receive().unwrap().is_none());
        send(&theirs, &[byte], &[]);
    }
    assert!(
        channel.try_receive().unwrap().is_none(),
        "a greeting is no message"
    );
    for (index, &byte) in one_handle().iter().enumerate() {
        // One call that waits, among those that do not.
        if index == 20 {
            let error = channel.receive().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        }
        assert!(channel.try_receive().unwrap().is_none(), "{index}");
        assert!(!channel.is_broken());
        let fds = [writer.as_fd()];
        send(&theirs, &[byte], if index == 0 { &fds } else { &[] });
    }
    drop(writer);
    let received = channel.try_receive().unwrap().unwrap();
    let expected = Message::Handles {
        id: ID,
        first: 0,
        count: 1,
    };
    assert_eq!(received.message, expected);
    rustix::io::write(&received.fds[0], b"x").unwrap();
    drop(received);
    let mut all = Vec::new();
    reader.read_to_end(&mut all).unwrap();
    assert_eq!(all, b"x");
    // And the message after it.
    send(&theirs, &frame(7, 0, &ID.0), &[]);
    let received = channel.try_receive().unwrap().unwrap();
    assert_eq!(received.message, Message::Retired { id: ID });
    drop(theirs);
    assert_eq!(channel.try_receive().unwrap_err().kind(), ErrorKind::Hangup);
}

#[test]
fn trying_to_receive_does_not_wait() {
    for kind in [SocketType::SEQPACKET, SocketType::STREAM] {
        let (a, b) = sockets(kind);
        let (mut a, mut b) = (channel(a), channel(b));
        b.set_timeout(Duration::from_secs(60));
        let begin = Instant::now();
        for _ in 0..100 {
            assert!(b.try_receive().unwrap().is_none());
            // Also where this side spoke last.
            b.send(&Message::Retired { id: ID }, &[]).unwrap();
        }
        assert!(begin.elapsed() < Duration::from_secs(30));
        a.send(&Message::Retired { id: ID }, &[]).unwrap();
        b.send(&Message::Retired { id: ID }, &[]).unwrap();
        let message = b.try_receive().unwrap().map(|received| received.message);
        assert_eq!(message, Some(Message::Retired { id: ID }));
        assert!(b.try_receive().unwrap().is_none());
    }
}

#[test]
fn what_came_halfway_is_closed_with_the_channel() {
    let (theirs, ours) = sockets(SocketType::STREAM);
    let mut channel = channel(ours);
    let (reader, writer) = std::io::pipe().unwrap();
    send(&theirs, &hello(), &[]);
    send(&theirs, &one_handle()[..30], &[writer.as_fd()]);
    drop(writer);
    assert!(channel.try_receive().unwrap().is_none());
    drop(theirs);
    let error = channel.receive().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Hangup, "{error}");
    assert!(channel.is_broken());
    assert!(is_closed(reader), "the broken channel keeps it open");
}

#[test]
fn what_nobody_receives_any_more_is_closed_at_once() {
    for kind in [SocketType::SEQPACKET, SocketType::STREAM] {
        let (theirs, ours) = sockets(kind);
        let mut channel = channel(ours);
        let (reader, writer) = std::io::pipe().unwrap();
        send(&theirs, &hello(), &[]);
        // Not the protocol; then what looks like an end, and what is to be let go.
        send(&theirs, &[0xff; 64], &[]);
        if kind == SocketType::SEQPACKET {
            send(&theirs, &[], &[]);
        }
        for length in [1, 5000, 300] {
            send(&theirs, &vec![1; length], &[writer.as_fd(); 253]);
        }
        if kind == SocketType::SEQPACKET {
            send(&theirs, &[], &[writer.as_fd()]);
        }
        drop(writer);
        let error = channel.receive().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
        assert!(channel.is_broken());
        assert!(
            is_closed(reader),
            "{kind:?}: the broken channel keeps them open"
        );
    }
}

#[test]
fn what_a_peer_said_before_it_went_is_heard_by_who_comes_later() {
    for kind in [SocketType::SEQPACKET, SocketType::STREAM] {
        let (theirs, ours) = sockets(kind);
        channel(theirs)
            .send(&Message::Retired { id: ID }, &[])
            .unwrap();
        let mut late = channel(ours);
        assert_eq!(late.receive().unwrap().message, Message::Retired { id: ID });
        assert_eq!(late.receive().unwrap_err().kind(), ErrorKind::Hangup);
        assert!(late.is_broken());
        // It was used, so that another owner would miss what came.
        let error = late.into_fd().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
}

#[test]
fn a_stranger_cannot_keep_who_accepts_waiting_by_what_it_sent() {
    let mut listener = vmm_ipc::Listener::new().unwrap();
    let me = rustix::process::geteuid().as_raw();
    for (policy, is_stranger) in [
        (PeerPolicy::SameUser, false),
        (PeerPolicy::User(me.wrapping_add(1)), true),
    ] {
        listener.set_policy(policy);
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        let address = rustix::net::SocketAddrUnix::new(listener.path()).unwrap();
        rustix::net::connect(&socket, &address).unwrap();
        // Whoever closes it last waits for what nobody reads, unless the option is switched off.
        let network = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let slow = std::net::TcpStream::connect(network.local_addr().unwrap()).unwrap();
        let (_unread, _) = network.accept().unwrap();
        slow.set_nonblocking(true).unwrap();
        while std::io::Write::write(&mut &slow, &[0; 65536]).is_ok() {}
        slow.set_nonblocking(false).unwrap();
        let linger = Some(Duration::from_secs(20));
        rustix::net::sockopt::set_socket_linger(&slow, linger).unwrap();
        send(&socket, &[1], &[slow.as_fd()]);
        drop((slow, socket));
        let begin = Instant::now();
        let error = listener.accept(SOON).unwrap_err();
        let took = begin.elapsed();
        assert!(took < Duration::from_secs(10), "{took:?}: {error}");
        assert_eq!(error.kind() == ErrorKind::Peer, is_stranger, "{error}");
    }
}
