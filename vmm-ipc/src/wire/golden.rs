//! The examples of `docs/golden`, made from values and read back.

use super::{
    BufferId, Descriptor, DescriptorFields, FRAME_HEADER, Frame, HandleKind, Hello, Message,
    MessageKind, Place, Reason, Refusal, Update, UpdateFields, VERSION,
};

const MIB: u64 = 1 << 20;
const ID: BufferId = BufferId([
    0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e, 0x1f,
]);

/// The bytes of a file: two digits each, and comments from `#` to the end of the line.
fn golden(name: &str) -> Vec<u8> {
    let path = format!("{}/../docs/golden/{name}.hex", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    text.lines()
        .flat_map(|line| line.split('#').next().unwrap().split_whitespace())
        .map(|digits| u8::from_str_radix(digits, 16).unwrap())
        .collect()
}

/// The file is what the message is encoded to, and decodes to the message.
fn check(name: &str, message: &Message) {
    let bytes = golden(name);
    assert_eq!(message.encode(), bytes, "{name}: encoding");
    assert_eq!(
        &Message::decode(message.kind(), &bytes).unwrap(),
        message,
        "{name}: decoding"
    );
}

fn fields(len: u64, capacity: u64) -> DescriptorFields {
    DescriptorFields {
        id: ID,
        generation: 0,
        device: [
            0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xab, 0xac, 0xad,
            0xae, 0xaf,
        ],
        place: Place::Device,
        granularity: 2 * MIB,
        len,
        capacity,
    }
}

fn fabric(seed: usize) -> [u8; HandleKind::FABRIC_LEN] {
    std::array::from_fn(|index| (seed * HandleKind::FABRIC_LEN + index) as u8)
}

fn descriptor_fd() -> Descriptor {
    let sizes = vec![2 * MIB, 4 * MIB, 16 * MIB];
    Descriptor::new(fields(22 * MIB - 5, 128 * MIB), sizes, Vec::new()).unwrap()
}

#[test]
fn descriptors_are_as_the_golden_files_say() {
    check("descriptor-fd", &Message::Offer(descriptor_fd()));
    let on_host = DescriptorFields {
        generation: 4,
        place: Place::HostNuma(1),
        ..fields(1, 8 * MIB)
    };
    let on_host = Descriptor::new(on_host, vec![8 * MIB], Vec::new()).unwrap();
    check("descriptor-numa", &Message::Offer(on_host));
    let handles = vec![fabric(1), fabric(2)];
    let by_fabric = Descriptor::new(fields(4 * MIB, 4 * MIB), vec![2 * MIB; 2], handles).unwrap();
    check("descriptor-fabric", &Message::Offer(by_fabric));
}

#[test]
fn updates_are_as_the_golden_files_say() {
    let fields = UpdateFields {
        id: ID,
        generation: 1,
        granularity: 2 * MIB,
        first_chunk: 3,
        mapped_before: 22 * MIB,
        len: 56 * MIB,
    };
    let update = Update::new(fields.clone(), vec![2 * MIB, 32 * MIB], Vec::new()).unwrap();
    check("update-fd", &Message::Update(update.clone()));
    let mut grown = descriptor_fd();
    grown.apply(&update).unwrap();
    assert_eq!(grown.sizes().len(), 5);
    assert_eq!(grown.generation(), 1);
    assert_eq!(grown.len(), 56 * MIB);
    let by_fabric = UpdateFields {
        first_chunk: 2,
        mapped_before: 4 * MIB,
        len: 6 * MIB,
        ..fields
    };
    let by_fabric = Update::new(by_fabric, vec![2 * MIB], vec![fabric(1)]).unwrap();
    check("update-fabric", &Message::Update(by_fabric));
}

#[test]
fn other_messages_are_as_the_golden_files_say() {
    let (id, generation) = (ID, 1);
    check("hello", &Message::Hello(Hello { version: VERSION }));
    let (first, count) = (1, 2);
    check("handles", &Message::Handles { id, first, count });
    check("accepted", &Message::Accepted { id, generation });
    let refusal = Refusal::new(Reason::Resources, "no room for 64 bytes");
    let refused = Message::Refused {
        id,
        generation,
        refusal,
    };
    check("refused", &refused);
    check("retired", &Message::Retired { id });
}

#[test]
fn frames_are_as_the_golden_files_say() {
    let header: [u8; FRAME_HEADER] = golden("frame").try_into().unwrap();
    let total = 88 + 5000 * 8;
    let frames: Vec<_> = Frame::cut(MessageKind::Offer, total, 0).collect();
    assert_eq!(frames.len(), 2);
    assert_eq!(frames[1].encode(), header);
    assert_eq!(Frame::decode(&header), Ok(frames[1]));

    let packet = golden("frame-handles");
    let (header, payload) = packet.split_first_chunk::<FRAME_HEADER>().unwrap();
    assert_eq!(payload, golden("handles"));
    let frame = Frame::cut(MessageKind::Handles, 24, 2).next().unwrap();
    assert_eq!(frame.encode(), *header);
}

/// Each byte that the format does not leave free is refused where it is another.
#[test]
fn a_golden_file_with_any_other_length_is_refused() {
    for (name, kind) in [
        ("descriptor-fd", MessageKind::Offer),
        ("descriptor-fabric", MessageKind::Offer),
        ("update-fd", MessageKind::Update),
        ("hello", MessageKind::Hello),
        ("handles", MessageKind::Handles),
        ("accepted", MessageKind::Accepted),
        ("retired", MessageKind::Retired),
    ] {
        let bytes = golden(name);
        for end in 0..bytes.len() {
            assert!(
                Message::decode(kind, &bytes[..end]).is_err(),
                "{name} cut at {end}"
            );
        }
        let longer = [bytes, vec![0]].concat();
        assert!(
            Message::decode(kind, &longer).is_err(),
            "{name} with a byte more"
        );
    }
}
