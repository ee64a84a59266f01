//! Sequences of operations: drawn, and shrunk where one fails.

use proptest::prelude::*;

use super::PAGE;
use super::state::{HOST, User};

/// Numbers choose among what is alive, or once was, when the operation comes. Lengths and shifts
/// are in units.
#[derive(Debug, Clone)]
pub enum Op {
    Create {
        at: User,
        pages: u64,
        shareable: bool,
    },
    Release {
        handle: usize,
    },
    Retain {
        place: Place,
    },
    Export {
        handle: usize,
    },
    Import {
        export: usize,
    },
    Close {
        export: usize,
    },
    Reserve {
        pages: u64,
    },
    Free {
        reservation: usize,
        skew: u64,
    },
    Map {
        handle: usize,
        place: Place,
        pages: Option<u64>,
        offset: u64,
    },
    /// Without pages, the mapping at the place.
    Unmap {
        place: Place,
        pages: Option<u64>,
    },
    Access {
        user: User,
        place: Place,
        pages: Option<u64>,
        flags: u32,
    },
    Fill {
        by: User,
        to: Stretch,
        value: u8,
    },
    /// From memory of the program, no two neighbours alike.
    Write {
        by: User,
        to: Stretch,
        seed: u8,
    },
    Read {
        by: User,
        from: Stretch,
    },
    Copy {
        by: User,
        to: Stretch,
        from: Place,
        shift: u64,
    },
}

/// A page of a reservation, or just beyond. Numbers alone seldom meet: where the place is `aimed`,
/// they choose among the pages that the operation can do something with.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    pub aimed: bool,
    pub reservation: usize,
    pub page: u64,
}

#[derive(Debug, Clone, Copy)]
pub struct Stretch {
    pub place: Place,
    pub shift: u64,
    pub len: u64,
}

/// What an operation does; see [`Op`].
#[derive(Debug, Clone, Copy)]
enum Kind {
    Reserve,
    Create,
    Map,
    Access,
    Write,
    Copy,
    Fill,
    Read,
    Unmap,
    Free,
    Release,
    Retain,
    Export,
    Import,
    Close,
}

/// As often as they are to come.
#[rustfmt::skip]
const KINDS: &[Kind] = {
    use Kind::*;
    &[
        Reserve, Reserve, Create, Create, Create, Map, Map, Map, Map, Map, Access, Access, Access,
        Access, Access, Access, Write, Write, Write, Copy, Copy, Copy, Copy, Fill, Fill, Fill, Read,
        Read, Unmap, Unmap, Free, Release, Release, Retain, Export, Export, Import, Import, Close,
    ]
};

/// Operations of every kind, after some that give them something to work on.
pub fn sequence() -> impl Strategy<Value = Vec<Op>> {
    let some = |kind: &'static [Kind]| prop::collection::vec(op(kind), 0..5);
    (
        some(&[Kind::Reserve]),
        some(&[Kind::Create]),
        some(&[Kind::Map]),
        some(&[Kind::Access]),
        prop::collection::vec(op(KINDS), 1..80),
    )
        .prop_map(|(a, b, c, d, e)| [a, b, c, d, e].concat())
}

/// Draws every number that any operation needs. A choice among strategies would seed a generator
/// for each that it does not take, which costs more than the operations do.
fn op(kinds: &'static [Kind]) -> impl Strategy<Value = Op> {
    let place = || {
        (0..8, 0..4_usize, 0..7_u64).prop_map(|(aim, reservation, page)| Place {
            aimed: aim > 0,
            reservation,
            page,
        })
    };
    // One of four begins, or ends, at the border of a page: that is where one too many shows.
    let shift = || (0..4, 0..PAGE).prop_map(|(border, shift)| if border == 0 { 0 } else { shift });
    let len = (0..4, 0..3 * PAGE).prop_map(|(kind, len)| match kind {
        0 => len - len % PAGE,
        1 => len,
        _ => len % 200,
    });
    let stretch =
        (place(), shift(), len).prop_map(|(place, shift, len)| Stretch { place, shift, len });
    let device = (0..5_usize).prop_map(|of_five| of_five / 4);
    let user = prop::sample::select(&[0, 0, 0, 0, 1, HOST][..]);
    let numbers = (0..8_usize, 0..7_u64, 0..10_u32, any::<u8>());
    (
        prop::sample::select(kinds),
        stretch,
        (place(), shift()),
        device,
        user,
        numbers,
    )
        .prop_map(
            |(kind, to, (from, shift), by, user, (index, pages, of_ten, value))| {
                let place = to.place;
                match kind {
                    Kind::Create => Op::Create {
                        at: user,
                        pages: pages % 5,
                        shareable: of_ten < 5,
                    },
                    Kind::Release => Op::Release { handle: index },
                    Kind::Retain => Op::Retain { place },
                    Kind::Export => Op::Export { handle: index },
                    Kind::Import => Op::Import { export: index },
                    Kind::Close => Op::Close { export: index },
                    Kind::Reserve => Op::Reserve {
                        pages: pages + u64::from(of_ten > 8),
                    },
                    Kind::Free => Op::Free {
                        reservation: index,
                        skew: u64::from(of_ten / 8),
                    },
                    Kind::Map => Op::Map {
                        handle: index,
                        place,
                        pages: (of_ten == 9).then_some(pages % 5),
                        offset: u64::from(of_ten == 8),
                    },
                    Kind::Unmap => Op::Unmap {
                        place,
                        pages: (of_ten < 4).then_some(pages),
                    },
                    Kind::Access => Op::Access {
                        user,
                        place,
                        pages: (value < 32).then_some(pages),
                        flags: [3, 3, 3, 3, 3, 3, 1, 1, 0, 2][of_ten as usize],
                    },
                    Kind::Fill => Op::Fill { by, to, value },
                    Kind::Write => Op::Write {
                        by,
                        to,
                        seed: value,
                    },
                    Kind::Read => Op::Read { by, from: to },
                    Kind::Copy => Op::Copy {
                        by,
                        to,
                        from,
                        shift,
                    },
                }
            },
        )
}
