//! Properties of the wire format, and that its specification keeps up with it.

use proptest::prelude::*;
use vmm_ipc::wire::{Descriptor, FRAME_HEADER, Frame, Message, MessageKind};

const KINDS: [MessageKind; 7] = [
    MessageKind::Hello,
    MessageKind::Offer,
    MessageKind::Update,
    MessageKind::Handles,
    MessageKind::Accepted,
    MessageKind::Refused,
    MessageKind::Retired,
];

const GRANULARITY: u64 = 2 << 20;

/// A descriptor's bytes, put together by the specification and not by the crate.
fn descriptor(sizes: &[u64], len: u64, capacity: u64) -> Vec<u8> {
    let total = 88 + sizes.len() * 8;
    let mut bytes = Vec::new();
    bytes.extend(b"VMMD");
    bytes.extend(1_u16.to_le_bytes());
    bytes.extend([0; 2]);
    bytes.extend((total as u32).to_le_bytes());
    bytes.extend((sizes.len() as u32).to_le_bytes());
    bytes.extend([7; 16]);
    bytes.extend(3_u64.to_le_bytes());
    bytes.extend([9; 16]);
    bytes.extend([1, 1, 0, 0]);
    bytes.extend([0; 4]);
    for value in [GRANULARITY, len, capacity] {
        bytes.extend(value.to_le_bytes());
    }
    bytes.extend(sizes.iter().flat_map(|size| size.to_le_bytes()));
    bytes
}

fn sizes() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(
        (1_u64..4096).prop_map(|granules| granules * GRANULARITY),
        1..200,
    )
}

proptest! {
    #[test]
    fn any_bytes_give_an_error_or_a_message_of_exactly_these_bytes(
        kind in prop::sample::select(&KINDS[..]),
        bytes in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        if let Ok(message) = Message::decode(kind, &bytes) {
            prop_assert_eq!(message.kind(), kind);
            prop_assert_eq!(message.encode(), bytes);
        }
    }

    #[test]
    fn a_descriptor_by_the_specification_decodes_to_what_it_says(
        sizes in sizes(),
        short in 0..GRANULARITY,
        spare in 0_u64..100,
    ) {
        let mapped: u64 = sizes.iter().sum();
        let (len, capacity) = (mapped - short, mapped + spare * GRANULARITY);
        let bytes = descriptor(&sizes, len, capacity);
        let decoded = Descriptor::decode(&bytes).unwrap();
        prop_assert_eq!(decoded.sizes(), &sizes[..]);
        prop_assert_eq!(decoded.len(), len);
        prop_assert_eq!(decoded.mapped_len(), mapped);
        prop_assert_eq!(decoded.capacity(), capacity);
        prop_assert_eq!(decoded.encode(), bytes);
    }

    #[test]
    fn a_descriptor_with_one_byte_changed_is_refused_or_another_value(
        sizes in sizes(),
        at in any::<prop::sample::Index>(),
        change in 1_u8..,
    ) {
        let mapped = sizes.iter().sum();
        let mut bytes = descriptor(&sizes, mapped, mapped);
        let before = Descriptor::decode(&bytes).unwrap();
        bytes[at.index(88 + sizes.len() * 8)] ^= change;
        if let Ok(after) = Descriptor::decode(&bytes) {
            prop_assert!(after != before);
            prop_assert_eq!(after.encode(), bytes);
        }
    }

    #[test]
    fn any_frame_header_gives_an_error_or_a_frame_of_exactly_these_bytes(
        header in any::<[u8; FRAME_HEADER]>(),
    ) {
        if let Ok(frame) = Frame::decode(&header) {
            prop_assert_eq!(frame.encode(), header);
        }
    }

    #[test]
    fn a_message_of_any_length_is_cut_into_frames_that_decode(
        total in 0_u32..200_000,
        fds in 0_u16..=253,
    ) {
        let mut next = 0;
        for frame in Frame::cut(MessageKind::Offer, total, fds) {
            prop_assert_eq!(Frame::decode(&frame.encode()), Ok(frame));
            prop_assert_eq!(frame.offset, next);
            prop_assert_eq!(frame.fds, if next == 0 { fds } else { 0 });
            next += frame.payload;
            prop_assert_eq!(frame.is_last(), next == total);
        }
        prop_assert_eq!(next, total);
    }
}

#[test]
fn each_lie_of_a_descriptor_has_its_own_error() {
    let good = descriptor(
        &[GRANULARITY, 2 * GRANULARITY],
        3 * GRANULARITY,
        3 * GRANULARITY,
    );
    assert!(Descriptor::decode(&good).is_ok());
    let with = |at: usize, value: &[u8]| {
        let mut bytes = good.clone();
        bytes[at..at + value.len()].copy_from_slice(value);
        Descriptor::decode(&bytes).unwrap_err().to_string()
    };
    let cases = [
        (with(0, b"VMMX"), "does not begin as one does"),
        (with(4, &[2, 0]), "format version 2"),
        (with(6, &[1]), "flags field of a descriptor is not zero"),
        (with(8, &[1]), "states a length"),
        (with(12, &[0]), "has no chunks"),
        (with(12, &[3]), "states a length"),
        (with(12, &1_000_000_u32.to_le_bytes()), "states a length"),
        (with(56, &[2]), "location type 2"),
        (with(57, &[2]), "handle type 2"),
        (with(58, &[1]), "reserved field of a descriptor is not zero"),
        (with(60, &[1]), "NUMA node of device memory is not zero"),
        (with(64, &[0; 8]), "granularity of 0"),
        (with(64, &3_u64.to_le_bytes()), "granularity of 3"),
        (with(72, &[0xff; 8]), "does not fit"),
        (with(80, &[0; 8]), "capacity of 0"),
        (with(88, &[1]), "chunk 0 has 2097153 bytes"),
        (with(88, &[0; 8]), "chunk 0 has 0 bytes"),
        (
            with(88, &(u64::MAX - GRANULARITY + 1).to_le_bytes()),
            "more than there are addresses",
        ),
    ];
    for (text, expected) in cases {
        assert!(
            text.contains(expected),
            "`{text}` does not say `{expected}`"
        );
    }
}

#[test]
fn a_descriptor_prints_as_a_table() {
    let bytes = descriptor(&[GRANULARITY, 2 * GRANULARITY], 5_000_000, 8 * GRANULARITY);
    let descriptor = Descriptor::decode(&bytes).unwrap();
    let text = "\
buffer 07070707070707070707070707070707 generation 3 on GPU-09090909-0909-0909-0909-090909090909 as posix-fd
chunk        offset          size
    0             0       2097152
    1       2097152       4194304
length 5000000, mapped 6291456, capacity 16777216 bytes";
    assert_eq!(descriptor.to_string(), text);
    assert_eq!(format!("{descriptor:?}"), text);
}

/// The specification names the sources that it specifies, by a hash: who changes them sees this
/// fail, reads the specification again, and records the new value there.
#[test]
fn the_specification_is_of_these_wire_sources() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/");
    let mut files: Vec<_> = std::fs::read_dir(format!("{root}src/wire"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.file_name().is_some_and(|name| name != "golden.rs"))
        .collect();
    files.sort();
    // FNV-1a: against oversight, not against malice.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for file in files {
        for byte in std::fs::read(file).unwrap() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    let line = format!("Wire sources: `{hash:016x}`");
    let text = std::fs::read_to_string(format!("{root}../docs/protocol.md")).unwrap();
    assert!(
        text.contains(&line),
        "vmm-ipc/src/wire has changed: see that docs/protocol.md still says what it does, and \
         write there `{line}`"
    );
}
