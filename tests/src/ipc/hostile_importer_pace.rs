//! Importers that are late, end too soon, do not read, or answer before they can know.

use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::net::{SocketType, sockopt};
use vmm_ipc::{Channel, ErrorKind, Exporter, PeerPolicy};

use super::hostile_importer::{KINDS, LONG, Sharing, Subject, WAYS, combinations};
use super::raw::{HANDLES, Raw, hello, sockets};
use super::{allocator, filled};
use crate::{Case, Context, Failure, cases};

pub const CASES: &[Case] = cases![
    silence_and_a_byte_now_and_then_end_the_exporter_at_the_deadline,
    a_hangup_at_every_byte_of_the_answer_ends_the_exporter_at_once: timeout(120),
    an_answer_cut_at_every_byte_is_no_answer: timeout(120),
    a_peer_that_does_not_read_while_there_is_no_room_ends_the_exporter_at_the_deadline,
    an_acceptance_that_comes_too_soon_does_not_keep_the_rest_from_being_sent,
];

/// For peers that do not answer.
const SHORT: Duration = Duration::from_millis(200);

fn silence_and_a_byte_now_and_then_end_the_exporter_at_the_deadline(
    context: &Context,
) -> Result<(), Failure> {
    let sharing = &Sharing::new(context)?;
    type Script = (fn(&Raw), &'static [SocketType]);
    let scripts: [Script; 4] = [
        (|_| {}, &KINDS),
        (|raw| raw.send(&hello(), &[]), &KINDS),
        (
            |raw| {
                raw.send(&hello(), &[]);
                if let Some(subject) = Subject::heard(raw) {
                    raw.send(&subject.accepted()[..39], &[]);
                }
            },
            // A packet that is cut is no silence.
            &KINDS[1..],
        ),
        (
            |raw| {
                let answer = |subject: Subject| [hello(), subject.accepted()].concat();
                let answer = Subject::heard(raw).map(answer).unwrap_or_default();
                for byte in answer.chunks(1).take(8) {
                    raw.send(byte, &[]);
                    sleep(SHORT / 4);
                }
            },
            &KINDS[1..],
        ),
    ];
    for way in WAYS {
        for (script, kinds) in scripts {
            for &kind in kinds {
                context.leaves_nothing(|| {
                    let (result, took, channel) = sharing.send_to(way, kind, SHORT, |raw| {
                        script(&raw);
                        Some(raw)
                    })?;
                    let error = result.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
                    assert!(error.is_retryable() && channel.is_broken(), "{error}");
                    assert!((SHORT..10 * SHORT).contains(&took), "{took:?}");
                    sharing.serve(context)
                })?;
            }
        }
    }
    Ok(())
}

fn a_hangup_at_every_byte_of_the_answer_ends_the_exporter_at_once(
    context: &Context,
) -> Result<(), Failure> {
    let sharing = &Sharing::new(context)?;
    for way in WAYS {
        let run = |kind: SocketType, pieces: usize, end: usize| {
            sharing.send_to(way, kind, LONG, |raw| {
                let subject = Subject::heard(&raw)?;
                let answer = [hello(), subject.accepted()];
                match kind {
                    SocketType::STREAM => raw.send(&answer.concat()[..end], &[]),
                    _ => answer[..pieces].iter().for_each(|part| raw.send(part, &[])),
                }
                drop(raw);
                None
            })
        };
        drop(run(SocketType::STREAM, 0, 3)?);
        let before = context.snapshot()?;
        let stream = (0..72).map(|end| (SocketType::STREAM, 0, end));
        let packets = (0..2).map(|pieces| (SocketType::SEQPACKET, pieces, 0));
        for (kind, pieces, end) in stream.chain(packets) {
            let (result, took, channel) = run(kind, pieces, end)?;
            let error = result.unwrap_err();
            let place = format!("{way:?} over {kind:?} after {pieces} packets, {end} bytes");
            assert_eq!(error.kind(), ErrorKind::Hangup, "{place}: {error}");
            assert!(channel.is_broken(), "{place}");
            assert!(took < LONG / 2, "{place}: {took:?}");
            drop(channel);
            context.assert_as(&before)?;
        }
        context.leaves_nothing(|| sharing.serve(context))?;
    }
    Ok(())
}

fn an_answer_cut_at_every_byte_is_no_answer(context: &Context) -> Result<(), Failure> {
    let sharing = &Sharing::new(context)?;
    for way in WAYS {
        let run = |which: usize, end: usize| {
            sharing.send_to(way, SocketType::SEQPACKET, LONG, |raw| {
                let subject = Subject::heard(&raw)?;
                let packets = [hello(), subject.accepted()];
                packets[..which]
                    .iter()
                    .for_each(|packet| raw.send(packet, &[]));
                raw.send(&packets[which][..end], &[]);
                Some(raw)
            })
        };
        drop(run(0, 3)?);
        let before = context.snapshot()?;
        for (which, length) in [32, 40].into_iter().enumerate() {
            for end in 1..length {
                let (result, _, channel) = run(which, end)?;
                let error = result.unwrap_err();
                let place = format!("{way:?}, packet {which} cut at {end}");
                assert_eq!(error.kind(), ErrorKind::Protocol, "{place}: {error}");
                assert!(channel.is_broken(), "{place}");
                drop(channel);
                context.assert_as(&before)?;
            }
        }
        context.leaves_nothing(|| sharing.serve(context))?;
    }
    Ok(())
}

/// More than fits the smallest buffer, and an offer that does.
const MANY: usize = 400;

fn with_little_room(kind: SocketType) -> Result<(Channel, Raw), Failure> {
    let (ours, theirs) = sockets(kind)?;
    sockopt::set_socket_send_buffer_size(&ours, 1)?;
    Ok((Channel::from_fd(ours, PeerPolicy::SameUser)?, Raw(theirs)))
}

fn a_peer_that_does_not_read_while_there_is_no_room_ends_the_exporter_at_the_deadline(
    context: &Context,
) -> Result<(), Failure> {
    let allocator = allocator(context)?;
    let first = filled(&allocator, 1, 1)?;
    let exporter = Exporter::new(&context.device()?)?;
    let mut export = exporter.export(&first)?;
    let buffer = first.grow(MANY * allocator.granularity())?;
    export.grow(&buffer)?;
    let sharing = Sharing {
        exporter,
        buffer,
        export,
    };
    for (way, kind) in combinations() {
        context.leaves_nothing(|| {
            let (mut channel, raw) = with_little_room(kind)?;
            channel.set_timeout(SHORT);
            let begin = Instant::now();
            let error = sharing.send(way, &mut channel).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
            // It did not come so far as to wait for the answer.
            assert!(error.to_string().contains("sending to the peer"), "{error}");
            assert!(begin.elapsed() < 10 * SHORT);
            assert!(channel.is_broken());
            // What was on its way is closed with the socket that it was on its way to.
            drop((channel, raw));
            Ok(())
        })?;
    }
    Ok(())
}

/// Who says so has the handles nevertheless, and has to know itself what it does with them.
fn an_acceptance_that_comes_too_soon_does_not_keep_the_rest_from_being_sent(
    context: &Context,
) -> Result<(), Failure> {
    let buffer = filled(&allocator(context)?, MANY, 1)?;
    let export = Exporter::new(&context.device()?)?.export(&buffer)?;
    for kind in KINDS {
        context.leaves_nothing(|| {
            let (mut channel, raw) = with_little_room(kind)?;
            channel.set_timeout(LONG);
            let messages = std::thread::scope(|scope| {
                let peer = scope.spawn(move || {
                    raw.send(&hello(), &[]);
                    let subject = Subject::heard(&raw)?;
                    raw.send(&subject.accepted(), &[]);
                    // The exporter cannot have sent them all by now.
                    let mut messages = 0;
                    while let Some((kind, _)) = raw.receive() {
                        assert_eq!(kind, HANDLES);
                        messages += 1;
                    }
                    Some(messages)
                });
                let sent = export.send(&mut channel);
                drop(channel);
                let heard = peer.join();
                sent?;
                heard.map_err(|_| Failure::new("the hostile peer panicked"))
            })?;
            assert_eq!(messages, Some(MANY.div_ceil(128)));
            Ok(())
        })?;
    }
    Ok(())
}
