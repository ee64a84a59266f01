//! Peers whose bytes are wrong or too many.

use std::os::fd::OwnedFd;

use rustix::net::SocketType;
use vmm_ipc::{ErrorKind, Exporter};

use super::raw::{
    HANDLES, HELLO, OFFER, RETIRED, Raw, borrowed, frame, handles, hello, import_from,
};
use super::{allocator, expect_filled, filled};
use crate::{Case, Context, Failure, cases};

pub const CASES: &[Case] = cases![
    an_exchange_by_hand_as_specified_is_an_import,
    bytes_that_are_not_the_protocol_each_have_their_own_error,
    sizes_and_counts_that_lie_are_refused,
];

/// What there is to send: a descriptor's bytes, and its handles.
pub(super) struct Offered {
    pub(super) descriptor: Vec<u8>,
    pub(super) fds: Vec<OwnedFd>,
    _buffer: vmm::Buffer,
}

impl Offered {
    pub(super) fn new(context: &Context) -> Result<Self, Failure> {
        let buffer = filled(&allocator(context)?, 3, 1)?;
        let export = Exporter::new(&context.device()?)?.export(&buffer)?;
        let (descriptor, fds) = export.into_parts();
        Ok(Offered {
            descriptor,
            fds,
            _buffer: buffer,
        })
    }
}

/// One thing that a peer does, and what comes of it.
struct Attack {
    name: &'static str,
    kind: ErrorKind,
    says: &'static str,
    run: fn(&Offered, &Raw),
}

/// Runs each of them, twice, and looks for what is left.
fn run_all(context: &Context, attacks: &[Attack]) -> Result<(), Failure> {
    let offered = &Offered::new(context)?;
    for attack in attacks {
        let name = attack.name;
        let run = || {
            let result = import_from(context, SocketType::SEQPACKET, |raw| {
                (attack.run)(offered, &raw);
                Some(raw)
            })?;
            let error = match result {
                Err(error) => error,
                Ok(_) => return Err(Failure::new(format!("{name}: it was taken"))),
            };
            let text = error.to_string();
            if error.kind() != attack.kind || !text.contains(attack.says) {
                return Err(Failure::new(format!("{name}: {error:?}")));
            }
            Ok(())
        };
        let left = context.leaves_nothing(run);
        left.map_err(|failure| Failure::new(format!("{name}: {failure}")))?;
        println!("{name}: refused");
    }
    Ok(())
}

fn an_exchange_by_hand_as_specified_is_an_import(context: &Context) -> Result<(), Failure> {
    let offered = &Offered::new(context)?;
    for kind in [SocketType::SEQPACKET, SocketType::STREAM] {
        context.leaves_nothing(|| {
            let result = import_from(context, kind, |raw| {
                raw.send(&hello(), &[]);
                raw.send(&frame(OFFER, 0, &offered.descriptor), &[]);
                raw.send(
                    &handles(&offered.descriptor, 0, 1),
                    &borrowed(&offered.fds[..1]),
                );
                raw.send(
                    &handles(&offered.descriptor, 1, 2),
                    &borrowed(&offered.fds[1..]),
                );
                Some(raw)
            })?;
            expect_filled(result?.buffer(), 3, 1)
        })?;
    }
    Ok(())
}

pub(super) const OPENING: fn(&Offered, &Raw) = |offered, raw| {
    raw.send(&hello(), &[]);
    raw.send(&frame(OFFER, 0, &offered.descriptor), &[]);
};

fn bytes_that_are_not_the_protocol_each_have_their_own_error(
    context: &Context,
) -> Result<(), Failure> {
    use ErrorKind::{Hangup, Limit, Protocol};
    let attack = |name, kind, says, run| Attack {
        name,
        kind,
        says,
        run,
    };
    run_all(
        context,
        &[
            attack("a wrong version", Protocol, "format version 2", |_, raw| {
                raw.send(&frame(HELLO, 0, b"VMM-IPC\0\x02\0\0\0\0\0\0\0"), &[]);
            }),
            attack(
                "another protocol",
                Protocol,
                "not begin as one does",
                |_, raw| {
                    raw.send(&frame(HELLO, 0, b"HTTP/1.1\x01\0\0\0\0\0\0\0"), &[]);
                },
            ),
            attack("no hello", Protocol, "hello belongs", |offered, raw| {
                raw.send(&frame(OFFER, 0, &offered.descriptor), &[]);
            }),
            attack(
                "two hellos",
                Protocol,
                "another message belongs",
                |_, raw| {
                    raw.send(&hello(), &[]);
                    raw.send(&hello(), &[]);
                },
            ),
            attack("a hello with more behind", Limit, "at most 16", |_, raw| {
                raw.send(&frame(HELLO, 0, b"VMM-IPC\0\x01\0\0\0\0\0\0\0!"), &[]);
            }),
            attack("bytes behind the frame", Protocol, "length", |_, raw| {
                raw.send(&[hello(), vec![0]].concat(), &[]);
            }),
            attack(
                "bytes behind the descriptor",
                Protocol,
                "length",
                |offered, raw| {
                    raw.send(&hello(), &[]);
                    raw.send(
                        &frame(OFFER, 0, &[&offered.descriptor[..], &[0]].concat()),
                        &[],
                    );
                },
            ),
            attack(
                "an unknown message",
                Protocol,
                "message kind 99",
                |_, raw| {
                    raw.send(&hello(), &[]);
                    raw.send(&frame(99, 0, &[]), &[]);
                },
            ),
            attack(
                "a packet of one byte",
                Protocol,
                "ends too early",
                |_, raw| {
                    raw.send(&[1], &[]);
                },
            ),
            attack(
                "a packet that is too large",
                Protocol,
                "larger than any",
                |_, raw| {
                    raw.send(&[1; 40_000], &[]);
                },
            ),
            attack(
                "a frame from the middle",
                Protocol,
                "rest of a message",
                |_, raw| {
                    raw.send(&hello(), &[]);
                    let mut bytes = frame(OFFER, 0, &[0; 100]);
                    bytes[8..12].copy_from_slice(&(32_768_u32 + 100).to_le_bytes());
                    bytes[12..16].copy_from_slice(&32_768_u32.to_le_bytes());
                    raw.send(&bytes, &[]);
                },
            ),
            attack(
                "a message of another in the middle",
                Protocol,
                "rest of a message",
                |_, raw| {
                    raw.send(&hello(), &[]);
                    let mut bytes = frame(OFFER, 0, &[0; 32_768]);
                    bytes[8..12].copy_from_slice(&(32_768_u32 + 100).to_le_bytes());
                    raw.send(&bytes, &[]);
                    raw.send(&frame(RETIRED, 0, &[0; 16]), &[]);
                },
            ),
            attack(
                "handles where an offer belongs",
                Protocol,
                "an offer belongs",
                |offered, raw| {
                    raw.send(&hello(), &[]);
                    raw.send(&handles(&offered.descriptor, 0, 3), &borrowed(&offered.fds));
                },
            ),
            attack(
                "an offer where handles belong",
                Protocol,
                "handles belong",
                |offered, raw| {
                    OPENING(offered, raw);
                    raw.send(&frame(OFFER, 0, &offered.descriptor), &[]);
                },
            ),
            attack(
                "handles of another buffer",
                Protocol,
                "chunk 0 is next",
                |offered, raw| {
                    OPENING(offered, raw);
                    let mut other = offered.descriptor.clone();
                    other[20] ^= 1;
                    raw.send(&handles(&other, 0, 3), &borrowed(&offered.fds));
                },
            ),
            attack(
                "handles out of order",
                Protocol,
                "chunk 0 is next",
                |offered, raw| {
                    OPENING(offered, raw);
                    raw.send(
                        &handles(&offered.descriptor, 1, 2),
                        &borrowed(&offered.fds[1..]),
                    );
                },
            ),
            attack(
                "an exporter that gives up",
                Hangup,
                "gave up",
                |offered, raw| {
                    OPENING(offered, raw);
                    raw.send(&frame(RETIRED, 0, &offered.descriptor[16..32]), &[]);
                },
            ),
            attack(
                "too few handles",
                Protocol,
                "2 file descriptors came",
                |offered, raw| {
                    OPENING(offered, raw);
                    raw.send(
                        &handles(&offered.descriptor, 0, 3),
                        &borrowed(&offered.fds[..2]),
                    );
                },
            ),
            attack(
                "none",
                Protocol,
                "0 file descriptors came",
                |offered, raw| {
                    OPENING(offered, raw);
                    raw.send(&handles(&offered.descriptor, 0, 3), &[]);
                },
            ),
            attack(
                "none that are stated to be none",
                Protocol,
                "0 file descriptors",
                |offered, raw| {
                    OPENING(offered, raw);
                    raw.send(&handles(&offered.descriptor, 0, 0), &[]);
                },
            ),
            attack(
                "more than stated",
                Protocol,
                "3 file descriptors came",
                |offered, raw| {
                    OPENING(offered, raw);
                    raw.send(&handles(&offered.descriptor, 0, 1), &borrowed(&offered.fds));
                },
            ),
            attack(
                "more than there are chunks",
                Protocol,
                "253 file descriptors came",
                |offered, raw| {
                    OPENING(offered, raw);
                    let many = borrowed(&offered.fds).into_iter().cycle().take(253);
                    raw.send(
                        &handles(&offered.descriptor, 0, 253),
                        &many.collect::<Vec<_>>(),
                    );
                },
            ),
            attack(
                "more stated than fit",
                Limit,
                "at most 253",
                |offered, raw| {
                    OPENING(offered, raw);
                    raw.send(
                        &handles(&offered.descriptor, 0, 254),
                        &borrowed(&offered.fds),
                    );
                },
            ),
            attack(
                "handles with a hello",
                Protocol,
                "3 file descriptors came",
                |offered, raw| {
                    raw.send(&frame(HELLO, 3, &hello()[16..]), &borrowed(&offered.fds));
                },
            ),
            attack(
                "handles with an offer",
                Protocol,
                "3 file descriptors came",
                |offered, raw| {
                    raw.send(&hello(), &[]);
                    raw.send(
                        &frame(OFFER, 3, &offered.descriptor),
                        &borrowed(&offered.fds),
                    );
                },
            ),
            attack(
                "handles that state another number",
                Protocol,
                "file descriptors came",
                |offered, raw| {
                    OPENING(offered, raw);
                    let mut bytes = handles(&offered.descriptor, 0, 3);
                    bytes[36] = 2;
                    assert_eq!(bytes[0], HANDLES);
                    raw.send(&bytes, &borrowed(&offered.fds));
                },
            ),
        ],
    )
}

/// An offer of the descriptor with some bytes changed.
fn offer_with(offered: &Offered, raw: &Raw, changes: &[(usize, &[u8])]) {
    let mut bytes = offered.descriptor.clone();
    for (at, value) in changes {
        bytes[*at..*at + value.len()].copy_from_slice(value);
    }
    raw.send(&hello(), &[]);
    raw.send(&frame(OFFER, 0, &bytes), &[]);
    raw.send(&handles(&bytes, 0, 3), &borrowed(&offered.fds));
}

fn sizes_and_counts_that_lie_are_refused(context: &Context) -> Result<(), Failure> {
    use ErrorKind::{Limit, NoDevice, NotAHandle, Protocol};
    let attack = |name, kind, says, run| Attack {
        name,
        kind,
        says,
        run,
    };
    run_all(
        context,
        &[
            attack("zero chunks", Protocol, "no chunks", |offered, raw| {
                let mut bytes = offered.descriptor[..88].to_vec();
                bytes[8..12].copy_from_slice(&88_u32.to_le_bytes());
                bytes[12..16].copy_from_slice(&[0; 4]);
                raw.send(&hello(), &[]);
                raw.send(&frame(OFFER, 0, &bytes), &[]);
            }),
            attack(
                "a million chunks in words",
                Protocol,
                "states a length",
                |offered, raw| {
                    offer_with(offered, raw, &[(12, &1_000_000_u32.to_le_bytes())]);
                },
            ),
            attack("a million chunks", Limit, "at most", |offered, raw| {
                raw.send(&hello(), &[]);
                // The first frame of eight million bytes is enough to know.
                let mut bytes = frame(OFFER, 0, &[1; 32_768]);
                bytes[8..12].copy_from_slice(&8_000_088_u32.to_le_bytes());
                assert!(!offered.fds.is_empty());
                raw.send(&bytes, &[]);
            }),
            attack(
                "sizes that overflow",
                Protocol,
                "more than there are addresses",
                |offered, raw| {
                    let huge = (u64::MAX - (2 << 20) + 1).to_le_bytes();
                    offer_with(offered, raw, &[(88, &huge), (96, &huge)]);
                },
            ),
            attack(
                "a size of zero",
                Protocol,
                "chunk 1 has 0 bytes",
                |offered, raw| {
                    offer_with(offered, raw, &[(96, &[0; 8])]);
                },
            ),
            attack(
                "a size off the granularity",
                Protocol,
                "multiple",
                |offered, raw| {
                    offer_with(offered, raw, &[(96, &[1])]);
                },
            ),
            attack(
                "a length beyond the chunks",
                Protocol,
                "does not fit",
                |offered, raw| {
                    offer_with(offered, raw, &[(72, &u64::MAX.to_le_bytes())]);
                },
            ),
            attack(
                "a capacity below the chunks",
                Protocol,
                "capacity",
                |offered, raw| {
                    offer_with(offered, raw, &[(80, &(2_u64 << 20).to_le_bytes())]);
                },
            ),
            attack(
                "a capacity of half the world",
                Limit,
                "capacity",
                |offered, raw| {
                    offer_with(offered, raw, &[(80, &(1_u64 << 62).to_le_bytes())]);
                },
            ),
            attack(
                "memory of another size than stated",
                NotAHandle,
                "not what was stated",
                |offered, raw| {
                    let granularity =
                        u64::from_le_bytes(offered.descriptor[64..72].try_into().unwrap());
                    let (size, all) = (2 * granularity, 4 * granularity);
                    offer_with(
                        offered,
                        raw,
                        &[(96, &size.to_le_bytes()), (80, &all.to_le_bytes())],
                    );
                },
            ),
            attack(
                "a device that nobody has",
                NoDevice,
                "CUDA_VISIBLE_DEVICES",
                |offered, raw| {
                    offer_with(offered, raw, &[(40, &[0xab; 16])]);
                },
            ),
        ],
    )
}
