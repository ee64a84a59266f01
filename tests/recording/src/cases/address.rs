//! Reservations.

use super::List;
use crate::rig::{G, M, code, d, error_name, setup, value};
use std::ptr::null_mut;

pub fn add(list: &mut List) {
    for (what, size) in [
        ("0", 0),
        ("1", 1),
        ("4 KiB", 4096),
        ("1 MiB", M),
        ("2 MiB", G),
        ("3 MiB", 3 * M),
        ("4 MiB", 2 * G),
        ("1 TiB", 1 << 40),
        ("64 TiB", 64 << 40),
        ("128 TiB", 128 << 40),
        ("all ones", usize::MAX),
    ] {
        list.add(
            format!("reserve.size {what}"),
            format!("reserve {what}"),
            move |r| Ok(code(r.reserve_raw(size, 0, 0, 0).map(drop))),
        );
    }
    for alignment in [
        1_usize,
        2,
        3,
        512,
        4096,
        5000,
        65_536,
        G,
        3 * M,
        1 << 30,
        1 << 40,
    ] {
        list.add(
            format!("reserve.alignment {alignment}"),
            format!("reserve 2 MiB with alignment {alignment}"),
            move |r| {
                Ok(value(r.reserve_raw(G, alignment, 0, 0).map(|at| {
                    format!("aligned: {}", at % alignment as u64 == 0)
                })))
            },
        );
    }
    list.add(
        "reserve.default alignment",
        "whether a reservation without alignment is aligned to 2 MiB",
        |r| {
            Ok(value(
                r.reserve_raw(G, 0, 0, 0).map(|at| at % G as u64 == 0),
            ))
        },
    );
    list.add(
        "reserve.small alignment",
        "whether a reservation with alignment 4096 is aligned to 2 MiB",
        |r| {
            Ok(value(
                r.reserve_raw(G, 4096, 0, 0).map(|at| at % G as u64 == 0),
            ))
        },
    );
    list.add("reserve.flags", "reserve 2 MiB with flags 1", |r| {
        Ok(code(r.reserve_raw(G, 0, 0, 1).map(drop)))
    });
    list.add("reserve.null", "reserve 2 MiB to a null pointer", |r| {
        Ok(code(d!(r, cuMemAddressReserve(null_mut(), G, 0, 0, 0))))
    });
    list.add(
        "reserve.free hint",
        "reserve where a freed reservation of the same size was",
        |r| {
            let at = r.reserve(2 * G)?;
            setup(r.free(at, 2 * G))?;
            Ok(code(r.reserve_raw(2 * G, 0, at, 0).map(drop)))
        },
    );
    list.add(
        "reserve.taken hint",
        "reserve with the address of a living reservation as hint",
        |r| {
            let at = r.reserve(G)?;
            Ok(value(
                r.reserve_raw(G, 0, at, 0)
                    .map(|other| format!("another address: {}", other != at)),
            ))
        },
    );
    for (what, hint) in [
        ("unaligned", 0x7000_0000_1000_u64),
        ("odd", 0x7000_0000_0001),
        ("beyond user space", 1 << 63),
        ("low", 4096),
    ] {
        list.add(
            format!("reserve.hint {what}"),
            format!("reserve 2 MiB with an {what} hint, {hint:#x}"),
            move |r| {
                Ok(value(r.reserve_raw(G, 0, hint, 0).map(|at| {
                    format!("aligned: {}, the hint: {}", at % G as u64 == 0, at == hint)
                })))
            },
        );
    }
    list.add("free.pair", "free a reservation with its exact pair", |r| {
        let at = r.reserve(2 * G)?;
        Ok(code(r.free(at, 2 * G)))
    });
    list.add("free.twice", "free a reservation twice", |r| {
        let at = r.reserve(G)?;
        setup(r.free(at, G))?;
        Ok(code(r.free(at, G)))
    });
    for (what, offset, size) in [
        ("part", 0, G),
        ("offset", G, G),
        ("larger", 0, 3 * G),
        ("zero size", 0, 0),
        ("unaligned", 4096, G),
    ] {
        list.add(format!("free.{what}"), format!("free {size} bytes at offset {offset} of a reservation of 4 MiB, then the exact pair"), move |r| {
            let at = r.reserve(2 * G)?;
            let wrong = code(r.free(at + offset as u64, size));
            Ok(format!("{wrong}; exact {}", code(r.free(at, 2 * G))))
        });
    }
    list.add("free.null", "free 2 MiB at null", |r| {
        Ok(code(r.free(0, G)))
    });
    list.add(
        "free.never reserved",
        "free 2 MiB at an address that was never reserved",
        |r| Ok(code(r.free(0x1000_0000, G))),
    );
    list.add(
        "free.mapped",
        "free a reservation with a mapping in it, unmap, free",
        |r| {
            let at = r.mapped(&[G], 3)?;
            let wrong = code(r.free(at, G));
            setup(r.unmap(at, G))?;
            Ok(format!("{wrong}; after unmap {}", code(r.free(at, G))))
        },
    );
    list.add(
        "free.half mapped",
        "free a reservation of 4 MiB whose second half is mapped",
        |r| {
            let at = r.reserve(2 * G)?;
            let handle = r.memory(G)?;
            setup(r.map(at + G as u64, G, 0, handle, 0))?;
            Ok(code(r.free(at, 2 * G)))
        },
    );
    list.add(
        "reserve.many",
        "reserve 64 times 2 MiB: how many differ",
        |r| {
            let mut all = Vec::new();
            for _ in 0..64 {
                match r.reserve_raw(G, 0, 0, 0) {
                    Ok(at) => all.push(at),
                    Err(error) => return Ok(error_name(&error)),
                }
            }
            all.sort_unstable();
            all.dedup();
            Ok(all.len().to_string())
        },
    );
}
