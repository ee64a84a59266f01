//! Importers that mean no good, against each way to send: what they answer.

use std::time::{Duration, Instant};

use rustix::net::{Shutdown, SocketType, shutdown};
use vmm::Buffer;
use vmm_ipc::{Channel, Error, ErrorKind, Export, Exporter, ImportOptions, PeerPolicy};

use super::raw::{
    ACCEPTED, HANDLES, HELLO, OFFER, REFUSED, RETIRED, Raw, UPDATE, borrowed, frame, hello, sockets,
};
use super::{allocator, expect_filled, fill, filled};
use crate::{Case, Context, Failure, cases};

pub const CASES: &[Case] = cases![
    an_honest_answer_by_hand_is_the_end_of_each_way_to_send,
    answers_that_are_none_each_have_their_own_error: timeout(120),
    a_refusal_of_any_text_leaves_the_channel_in_step,
];

/// For peers that answer: nothing waits for so long.
pub(super) const LONG: Duration = Duration::from_secs(20);

pub(super) const KINDS: [SocketType; 2] = [SocketType::SEQPACKET, SocketType::STREAM];

/// How a buffer is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Share,
    Send,
    Updates,
}

pub(super) const WAYS: [Way; 3] = [Way::Share, Way::Send, Way::Updates];

/// What there is to send.
pub(super) struct Sharing {
    pub(super) exporter: Exporter,
    /// Of four chunks, of which the last came by growing.
    pub(super) buffer: Buffer,
    pub(super) export: Export,
}

impl Sharing {
    pub(super) fn new(context: &Context) -> Result<Self, Failure> {
        let allocator = allocator(context)?;
        let exporter = Exporter::new(&context.device()?)?;
        let first = filled(&allocator, 3, 1)?;
        let mut export = exporter.export(&first)?;
        let buffer = first.grow(4 * allocator.granularity())?;
        fill(&buffer, 1)?;
        export.grow(&buffer)?;
        Ok(Sharing {
            exporter,
            buffer,
            export,
        })
    }

    pub(super) fn send(&self, way: Way, channel: &mut Channel) -> Result<(), Error> {
        match way {
            Way::Share => self.exporter.share(&self.buffer, channel).map(drop),
            Way::Send => self.export.send(channel),
            Way::Updates => self.export.send_updates(channel, 0).map(drop),
        }
    }

    /// Sends to a peer that does as `script` says, which is there until then unless the script drops it.
    /// Gives how it ended, after how long, and the channel.
    pub(super) fn send_to(
        &self,
        way: Way,
        kind: SocketType,
        patience: Duration,
        script: impl FnOnce(Raw) -> Option<Raw> + Send,
    ) -> Result<(Result<(), Error>, Duration, Channel), Failure> {
        let (ours, theirs) = sockets(kind)?;
        std::thread::scope(|scope| {
            let peer = scope.spawn(move || script(Raw(theirs)));
            let mut channel = Channel::from_fd(ours, PeerPolicy::SameUser)?;
            channel.set_timeout(patience);
            let begin = Instant::now();
            let result = self.send(way, &mut channel);
            let took = begin.elapsed();
            // A script that still reads hears the end.
            let _ = shutdown(&channel, Shutdown::Write);
            let joined = peer.join();
            joined.map_err(|_| Failure::new("the hostile peer panicked"))?;
            let reached = result.as_ref().err().and_then(Error::reached);
            if result.is_err() && reached != (way == Way::Updates).then_some(0) {
                return Err(Failure::new(format!(
                    "{way:?} says {reached:?} was reached"
                )));
            }
            Ok((result, took, channel))
        })
    }

    /// That an importer which means well gets the buffer.
    pub(super) fn serve(&self, context: &Context) -> Result<(), Failure> {
        let (mut ours, mut theirs) = Channel::pair()?;
        std::thread::scope(|scope| {
            let importer = scope.spawn(move || -> Result<(), Failure> {
                let options = ImportOptions::read_only();
                let imported = options.receive(context.driver()?, &mut theirs)?;
                expect_filled(imported.buffer(), 4, 1)
            });
            self.export.send(&mut ours)?;
            importer
                .join()
                .unwrap_or_else(|_| Err(Failure::new("the importer panicked")))
        })
    }
}

/// Which buffer and generation the exporter asks about.
#[derive(Clone, Copy)]
pub(super) struct Subject {
    id: [u8; 16],
    generation: u64,
}

impl Subject {
    /// Reads the greeting, and the offer or the update.
    pub(super) fn heard(raw: &Raw) -> Option<Subject> {
        raw.receive()?;
        let (_, payload) = raw.receive()?;
        Some(Subject {
            id: payload.get(16..32)?.try_into().ok()?,
            generation: u64::from_le_bytes(payload.get(32..40)?.try_into().ok()?),
        })
    }

    fn payload(self) -> Vec<u8> {
        [&self.id[..], &self.generation.to_le_bytes()].concat()
    }

    pub(super) fn accepted(self) -> Vec<u8> {
        frame(ACCEPTED, 0, &self.payload())
    }

    fn refused(self, reason: u16, text: &[u8]) -> Vec<u8> {
        let mut payload = self.payload();
        payload.extend(reason.to_le_bytes());
        payload.extend([0; 6]);
        payload.extend(text);
        frame(REFUSED, 0, &payload)
    }

    /// Another one.
    fn of(self, buffer: u8, generation: u64) -> Subject {
        let mut other = self;
        other.id[7] ^= buffer;
        other.generation ^= generation;
        other
    }
}

fn an_honest_answer_by_hand_is_the_end_of_each_way_to_send(
    context: &Context,
) -> Result<(), Failure> {
    let sharing = &Sharing::new(context)?;
    for (way, kind) in combinations() {
        context.leaves_nothing(|| {
            let (result, _, channel) = sharing.send_to(way, kind, LONG, |raw| {
                raw.send(&hello(), &[]);
                let subject = Subject::heard(&raw)?;
                raw.receive()?;
                raw.send(&subject.accepted(), &[]);
                Some(raw)
            })?;
            result?;
            assert!(!channel.is_broken());
            Ok(())
        })?;
    }
    Ok(())
}

pub(super) fn combinations() -> impl Iterator<Item = (Way, SocketType)> {
    WAYS.into_iter()
        .flat_map(|way| KINDS.map(|kind| (way, kind)))
}

/// One thing that a peer answers, and what comes of it.
struct Attack {
    name: &'static str,
    kind: ErrorKind,
    says: &'static str,
    run: fn(&Sharing, &Raw, Subject),
}

/// What is sent in place of the whole answer, the greeting as well.
const INSTEAD_OF_HELLO: &[Attack] = &[
    Attack {
        name: "a wrong version",
        kind: ErrorKind::Protocol,
        says: "format version 2",
        run: |_, raw, _| raw.send(&frame(HELLO, 0, b"VMM-IPC\0\x02\0\0\0\0\0\0\0"), &[]),
    },
    Attack {
        name: "another protocol",
        kind: ErrorKind::Protocol,
        says: "not begin as one does",
        run: |_, raw, _| raw.send(&frame(HELLO, 0, b"HTTP/1.1\x01\0\0\0\0\0\0\0"), &[]),
    },
    Attack {
        name: "a hello with more behind",
        kind: ErrorKind::Limit,
        says: "at most 16",
        run: |_, raw, _| raw.send(&frame(HELLO, 0, b"VMM-IPC\0\x01\0\0\0\0\0\0\0!"), &[]),
    },
    Attack {
        name: "an acceptance without a hello",
        kind: ErrorKind::Protocol,
        says: "hello belongs",
        run: |_, raw, subject| raw.send(&subject.accepted(), &[]),
    },
    Attack {
        name: "nonsense",
        kind: ErrorKind::Protocol,
        says: "message kind 255",
        run: |_, raw, _| raw.send(&[0xff; 72], &[]),
    },
];

const OTHER: &str = "an answer about another buffer or generation";

/// What is sent in place of an acceptance, after the greeting.
const INSTEAD_OF_AN_ANSWER: &[Attack] = &[
    Attack {
        name: "an acceptance of another buffer",
        kind: ErrorKind::Protocol,
        says: OTHER,
        run: |_, raw, subject| raw.send(&subject.of(1, 0).accepted(), &[]),
    },
    Attack {
        name: "an acceptance of another generation",
        kind: ErrorKind::Protocol,
        says: OTHER,
        run: |_, raw, subject| raw.send(&subject.of(0, 1).accepted(), &[]),
    },
    Attack {
        name: "a refusal of another buffer",
        kind: ErrorKind::Protocol,
        says: OTHER,
        run: |_, raw, subject| raw.send(&subject.of(1, 0).refused(0, b"no"), &[]),
    },
    Attack {
        name: "a refusal of another generation",
        kind: ErrorKind::Protocol,
        says: OTHER,
        run: |_, raw, subject| raw.send(&subject.of(0, 1).refused(0, b"no"), &[]),
    },
    Attack {
        name: "a second hello",
        kind: ErrorKind::Protocol,
        says: "another message belongs",
        run: |_, raw, _| raw.send(&hello(), &[]),
    },
    Attack {
        name: "an offer",
        kind: ErrorKind::Protocol,
        says: "an offer came where an acceptance belongs",
        run: |sharing, raw, _| {
            raw.send(&frame(OFFER, 0, &sharing.export.descriptor().encode()), &[]);
        },
    },
    Attack {
        name: "an update",
        kind: ErrorKind::Protocol,
        says: "an update came where an acceptance belongs",
        run: |sharing, raw, _| {
            let updates = sharing.export.updates_since(0);
            raw.send(&frame(UPDATE, 0, &updates[0].encode()), &[]);
        },
    },
    Attack {
        name: "handles",
        kind: ErrorKind::Protocol,
        says: "handles came where an acceptance belongs",
        run: |sharing, raw, subject| {
            let fds: Vec<_> = sharing.export.fds().collect();
            let mut payload = subject.id.to_vec();
            payload.extend([0, fds.len() as u32].map(u32::to_le_bytes).concat());
            raw.send(&frame(HANDLES, fds.len(), &payload), &fds);
        },
    },
    Attack {
        name: "a retirement",
        kind: ErrorKind::Protocol,
        says: "a retirement came where an acceptance belongs",
        run: |_, raw, subject| raw.send(&frame(RETIRED, 0, &subject.id), &[]),
    },
    Attack {
        name: "an unknown message",
        kind: ErrorKind::Protocol,
        says: "message kind 99",
        run: |_, raw, _| raw.send(&frame(99, 0, &[]), &[]),
    },
    Attack {
        name: "an acceptance that is too short",
        kind: ErrorKind::Protocol,
        says: "ends too early",
        run: |_, raw, subject| raw.send(&frame(ACCEPTED, 0, &subject.payload()[..23]), &[]),
    },
    Attack {
        name: "an acceptance with more behind",
        kind: ErrorKind::Limit,
        says: "at most 24",
        run: |_, raw, subject| {
            raw.send(
                &frame(ACCEPTED, 0, &[subject.payload(), vec![0]].concat()),
                &[],
            );
        },
    },
    Attack {
        name: "a refusal that is too long",
        kind: ErrorKind::Limit,
        says: "at most 1056",
        run: |_, raw, subject| raw.send(&subject.refused(0, &[b'x'; 1025]), &[]),
    },
    Attack {
        name: "a refusal that is no text",
        kind: ErrorKind::Protocol,
        says: "not UTF-8",
        run: |_, raw, subject| raw.send(&subject.refused(0, b"\xff\xfe"), &[]),
    },
    Attack {
        name: "a refusal for no known reason",
        kind: ErrorKind::Protocol,
        says: "reason 7",
        run: |_, raw, subject| raw.send(&subject.refused(7, b"no"), &[]),
    },
    Attack {
        name: "an acceptance with descriptors",
        kind: ErrorKind::Protocol,
        says: "4 file descriptors came with an acceptance",
        run: |sharing, raw, subject| {
            let fds: Vec<_> = sharing.export.fds().collect();
            raw.send(&frame(ACCEPTED, fds.len(), &subject.payload()), &fds);
        },
    },
    Attack {
        name: "an acceptance with descriptors that it does not state",
        kind: ErrorKind::Protocol,
        says: "253 file descriptors came where the message states 0",
        run: |_, raw, subject| {
            let one = rustix::io::dup(&raw.0);
            let many = one.map(|fd| vec![fd]).unwrap_or_default();
            let fds: Vec<_> = borrowed(&many).into_iter().cycle().take(253).collect();
            raw.send(&subject.accepted(), &fds);
        },
    },
    Attack {
        name: "an acceptance without the descriptors that it states",
        kind: ErrorKind::Protocol,
        says: "0 file descriptors came where the message states 1",
        run: |_, raw, subject| raw.send(&frame(ACCEPTED, 1, &subject.payload()), &[]),
    },
];

fn answers_that_are_none_each_have_their_own_error(context: &Context) -> Result<(), Failure> {
    let sharing = &Sharing::new(context)?;
    let lists = [(false, INSTEAD_OF_HELLO), (true, INSTEAD_OF_AN_ANSWER)];
    let attacks = lists
        .into_iter()
        .flat_map(|(greets, list)| list.iter().map(move |attack| (greets, attack)));
    for (greets, attack) in attacks {
        for (way, kind) in combinations() {
            let name = format!("{} to {way:?} over {kind:?}", attack.name);
            let run = || {
                let (result, took, channel) = sharing.send_to(way, kind, LONG, |raw| {
                    let subject = Subject::heard(&raw)?;
                    if greets {
                        raw.send(&hello(), &[]);
                    }
                    (attack.run)(sharing, &raw, subject);
                    Some(raw)
                })?;
                let Err(error) = result else {
                    return Err(Failure::new("it was taken for an answer"));
                };
                let text = error.to_string();
                if error.kind() != attack.kind || !text.contains(attack.says) {
                    return Err(Failure::new(format!("{error:?}")));
                }
                assert!(channel.is_broken(), "{error}");
                assert!(took < LONG / 2, "{took:?}");
                sharing.serve(context)
            };
            let left = context.leaves_nothing(run);
            left.map_err(|failure| Failure::new(format!("{name}: {failure}")))?;
        }
        println!("{}: refused", attack.name);
    }
    Ok(())
}

fn a_refusal_of_any_text_leaves_the_channel_in_step(context: &Context) -> Result<(), Failure> {
    let sharing = &Sharing::new(context)?;
    let long = "ö".repeat(512);
    let texts = [
        ("", ""),
        (
            "\u{1b}[2J\r\n\u{7}\u{0}\u{9b}1m",
            "\\u{1b}[2J\\r\\n\\u{7}\\u{0}\\u{9b}1m",
        ),
        (&long, &long),
    ];
    for (way, kind) in combinations() {
        for reason in 0..=6 {
            for (text, shown) in texts {
                context.leaves_nothing(|| {
                    let (result, _, channel) = sharing.send_to(way, kind, LONG, |raw| {
                        raw.send(&hello(), &[]);
                        let subject = Subject::heard(&raw)?;
                        raw.receive()?;
                        raw.send(&subject.refused(reason, text.as_bytes()), &[]);
                        Some(raw)
                    })?;
                    let error = result.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
                    let said = error.to_string();
                    assert!(said.contains(shown), "{said:?}");
                    assert!(!said.contains(char::is_control), "{said:?}");
                    assert_eq!(error.refusal().map(|refusal| &*refusal.text), Some(text));
                    // Who says that the message was too long does not go on.
                    assert_eq!(channel.is_broken(), reason == 6, "{error}");
                    Ok(())
                })?;
            }
        }
    }
    context.leaves_nothing(|| sharing.serve(context))
}
