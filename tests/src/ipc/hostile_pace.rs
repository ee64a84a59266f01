//! Exporters that are late or end too soon, and peers that are somebody else.

use std::os::fd::OwnedFd;
use std::thread::sleep;
use std::time::Duration;

use rustix::net::SocketType;
use vmm_ipc::{Channel, ErrorKind, PeerPolicy};

use super::hostile::{OPENING, Offered};
use super::raw::{OFFER, Raw, borrowed, frame, handles, hello, import_from, sockets};
use crate::{Case, Context, Failure, cases};

pub const CASES: &[Case] = cases![
    silence_ends_at_the_deadline,
    a_writer_of_a_byte_now_and_then_ends_at_the_deadline,
    a_hangup_at_every_byte_of_a_stream_ends_the_exchange: timeout(120),
    a_packet_cut_at_every_byte_is_refused: timeout(120),
    another_user_hears_nothing,
    another_user_for_real_hears_nothing: as_root(),
];

fn silence_ends_at_the_deadline(context: &Context) -> Result<(), Failure> {
    let offered = &Offered::new(context)?;
    let steps: [fn(&Offered, &Raw); 4] = [
        |_, _| {},
        |_, raw| raw.send(&hello(), &[]),
        OPENING,
        |offered, raw| {
            OPENING(offered, raw);
            raw.send(
                &handles(&offered.descriptor, 0, 2),
                &borrowed(&offered.fds[..2]),
            );
        },
    ];
    for kind in [SocketType::SEQPACKET, SocketType::STREAM] {
        for step in steps {
            context.leaves_nothing(|| {
                let error = import_from(context, kind, |raw| {
                    step(offered, &raw);
                    Some(raw)
                })?
                .unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
                assert!(error.is_retryable());
                Ok(())
            })?;
        }
    }
    Ok(())
}

fn a_writer_of_a_byte_now_and_then_ends_at_the_deadline(context: &Context) -> Result<(), Failure> {
    let offered = &Offered::new(context)?;
    context.leaves_nothing(|| {
        let error = import_from(context, SocketType::STREAM, |raw| {
            for byte in [hello(), frame(OFFER, 0, &offered.descriptor)]
                .concat()
                .chunks(1)
                .take(8)
            {
                raw.send(byte, &[]);
                sleep(Duration::from_millis(100));
            }
            Some(raw)
        })?
        .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        Ok(())
    })
}

/// The whole of an exchange, and where in it the file descriptors go.
fn exchange(offered: &Offered) -> (Vec<u8>, usize) {
    let before = [hello(), frame(OFFER, 0, &offered.descriptor)].concat();
    let with_fds = before.len();
    (
        [before, handles(&offered.descriptor, 0, 3)].concat(),
        with_fds,
    )
}

fn a_hangup_at_every_byte_of_a_stream_ends_the_exchange(context: &Context) -> Result<(), Failure> {
    let offered = &Offered::new(context)?;
    let (bytes, with_fds) = exchange(offered);
    let run = |end: usize| {
        import_from(context, SocketType::STREAM, |raw| {
            raw.send(&bytes[..end.min(with_fds)], &[]);
            if end > with_fds {
                raw.send(&bytes[with_fds..end], &borrowed(&offered.fds));
            }
            drop(raw);
            None
        })
    };
    drop(run(3)?);
    let before = context.snapshot()?;
    for end in 0..bytes.len() {
        let error = run(end)?.unwrap_err();
        assert_eq!(
            error.kind(),
            ErrorKind::Hangup,
            "after {end} bytes: {error}"
        );
        context.assert_as(&before)?;
    }
    println!("hung up after each of {} bytes", bytes.len());
    Ok(())
}

fn a_packet_cut_at_every_byte_is_refused(context: &Context) -> Result<(), Failure> {
    let offered = &Offered::new(context)?;
    let packets = [
        hello(),
        frame(OFFER, 0, &offered.descriptor),
        handles(&offered.descriptor, 0, 3),
    ];
    let run = |which: usize, end: usize| {
        import_from(context, SocketType::SEQPACKET, |raw| {
            for packet in &packets[..which] {
                raw.send(packet, &[]);
            }
            let fds = borrowed(&offered.fds);
            raw.send(&packets[which][..end], if which == 2 { &fds } else { &[] });
            Some(raw)
        })
    };
    drop(run(0, 3)?);
    let before = context.snapshot()?;
    for (which, packet) in packets.iter().enumerate() {
        for end in 1..packet.len() {
            let error = run(which, end)?.unwrap_err();
            assert_eq!(
                error.kind(),
                ErrorKind::Protocol,
                "packet {which} cut at {end}: {error}"
            );
            context.assert_as(&before)?;
        }
    }
    Ok(())
}

fn another_user_hears_nothing(context: &Context) -> Result<(), Failure> {
    let before = context.snapshot()?;
    let (ours, theirs) = sockets(SocketType::SEQPACKET)?;
    let stranger = rustix::process::geteuid().as_raw() + 1;
    let error = Channel::from_fd(ours, PeerPolicy::User(stranger)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Peer, "{error}");
    assert!(error.to_string().contains("PeerPolicy"), "{error}");
    expect_nothing_said(&theirs)?;
    drop(theirs);
    context.assert_as(&before)?;
    // The kernel's word for who the peer is.
    let (a, b) = Channel::pair()?;
    for channel in [&a, &b] {
        assert_eq!(channel.peer().uid, rustix::process::geteuid().as_raw());
        assert_eq!(channel.peer().pid, std::process::id() as i32);
    }
    Ok(())
}

/// Whoever makes the socket is who is at its other end.
fn another_user_for_real_hears_nothing(context: &Context) -> Result<(), Failure> {
    let before = context.snapshot()?;
    let made = std::thread::spawn(|| {
        let nobody = rustix::process::Uid::from_raw(65_534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody)?;
        sockets(SocketType::SEQPACKET)
    });
    let (ours, theirs) = made.join().map_err(|_| Failure::new("no other user"))??;
    let error = Channel::from_fd(ours, PeerPolicy::SameUser).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Peer, "{error}");
    assert!(error.to_string().contains("user 65534"), "{error}");
    expect_nothing_said(&theirs)?;
    drop(theirs);
    context.assert_as(&before)
}

fn expect_nothing_said(theirs: &OwnedFd) -> Result<(), Failure> {
    let mut bytes = [0; 16];
    let (count, _) = rustix::net::recv(theirs, &mut bytes[..], rustix::net::RecvFlags::empty())?;
    match count {
        0 => Ok(()),
        _ => Err(Failure::new(
            "something was sent before the policy was looked at",
        )),
    }
}
