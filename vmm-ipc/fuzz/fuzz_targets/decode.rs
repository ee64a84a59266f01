//! Any bytes, taken as each thing that a peer can send: an error, or a value of exactly these bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vmm_ipc::wire::{Descriptor, FRAME_HEADER, Frame, Message, MessageKind, Update};

/// One for each first byte, modulo their number.
const KINDS: [MessageKind; 7] = [
    MessageKind::Hello,
    MessageKind::Offer,
    MessageKind::Update,
    MessageKind::Handles,
    MessageKind::Accepted,
    MessageKind::Refused,
    MessageKind::Retired,
];

fuzz_target!(|input: &[u8]| {
    let Some((&choice, bytes)) = input.split_first() else {
        return;
    };
    match usize::from(choice) % (KINDS.len() + 1) {
        7 => frame(bytes),
        kind => message(KINDS[kind], bytes),
    }
});

fn frame(bytes: &[u8]) {
    let Some(header) = bytes.first_chunk::<FRAME_HEADER>() else {
        return;
    };
    if let Ok(frame) = Frame::decode(header) {
        assert_eq!(frame.encode(), *header);
        assert!(
            frame
                .offset
                .checked_add(frame.payload)
                .is_some_and(|end| end <= frame.total)
        );
    }
}

fn message(kind: MessageKind, bytes: &[u8]) {
    let Ok(message) = Message::decode(kind, bytes) else {
        return;
    };
    assert_eq!(message.kind(), kind);
    assert_eq!(message.encode(), bytes);
    match message {
        Message::Offer(descriptor) => consistent(&descriptor),
        Message::Update(update) => assert!(added(&update) > 0),
        _ => {}
    }
}

/// What the importer takes for granted.
fn consistent(descriptor: &Descriptor) {
    let sum: u64 = descriptor.sizes().iter().sum();
    assert_eq!(descriptor.mapped_len(), sum);
    assert!(!descriptor.sizes().is_empty());
    assert!(descriptor.len() <= sum && sum <= descriptor.capacity());
    assert!(
        descriptor
            .sizes()
            .iter()
            .all(|size| size % descriptor.granularity() == 0)
    );
    let _ = descriptor.to_string();
}

fn added(update: &Update) -> u64 {
    let sum: u64 = update.sizes().iter().sum();
    assert!(update.len() <= update.mapped_before() + sum);
    sum
}
