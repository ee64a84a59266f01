//! Copies and fills.

use super::List;
use crate::rig::{Called, G, Rig, code, d, setup};
use std::ptr::{null, null_mut};

type Ask = fn(&mut Rig, u64, usize, &mut [u8]) -> Called;

/// Calls that read or write device memory, and whether they write it.
const CALLS: &[(&str, bool, Ask)] = &[
    ("HtoD", true, |r, at, len, host| {
        d!(r, cuMemcpyHtoD(at, host.as_ptr().cast(), len))
    }),
    ("DtoH", false, |r, at, len, host| {
        d!(r, cuMemcpyDtoH(host.as_mut_ptr().cast(), at, len))
    }),
    ("memset", true, |r, at, len, _| {
        d!(r, cuMemsetD8(at, 7, len))
    }),
    ("HtoD async", true, |r, at, len, host| {
        d!(
            r,
            cuMemcpyHtoDAsync(at, host.as_ptr().cast(), len, null_mut())
        )
    }),
    ("DtoH async", false, |r, at, len, host| {
        d!(
            r,
            cuMemcpyDtoHAsync(host.as_mut_ptr().cast(), at, len, null_mut())
        )
    }),
    ("memset async", true, |r, at, len, _| {
        d!(r, cuMemsetD8Async(at, 7, len, null_mut()))
    }),
    ("unified to device", true, |r, at, len, host| {
        d!(r, cuMemcpy(at, host.as_ptr() as u64, len))
    }),
];

pub fn add(list: &mut List) {
    for &(name, writes, ask) in CALLS {
        list.add(
            format!("copy.{name} without context"),
            format!("{name} without a current context"),
            move |r| {
                let at = r.mapped(&[G], 3)?;
                Ok(code(ask(r, at, 16, &mut [0; 16])))
            },
        );
        for (what, access) in [("no access", 0), ("read only", 1), ("read and write", 3)] {
            list.add(
                format!("copy.{name} with {what}"),
                format!("{name} of 16 bytes of memory with {what}"),
                move |r| {
                    r.current()?;
                    let at = r.mapped(&[G], access)?;
                    let called = code(ask(r, at, 16, &mut [0; 16]));
                    Ok(format!(
                        "{called}; context then {}",
                        code(d!(r, cuCtxSynchronize()))
                    ))
                },
            );
        }
        list.add(
            format!("copy.{name} past the end"),
            format!("{name} of 32 bytes, 16 of them past the mapped end"),
            move |r| {
                r.current()?;
                let (at, handle) = (r.reserve(2 * G)?, r.memory(G)?);
                setup(r.map(at, G, 0, handle, 0))?;
                setup(r.access(at, G, 1, 0, 3))?;
                Ok(code(ask(r, at + G as u64 - 16, 32, &mut [0; 32])))
            },
        );
        list.add(
            format!("copy.{name} across mappings"),
            format!("{name} across the border of two mappings"),
            move |r| {
                r.current()?;
                let at = r.mapped(&[G, G], 3)?;
                Ok(code(ask(r, at + G as u64 - 16, 32, &mut [0; 32])))
            },
        );
        list.add(
            format!("copy.{name} length 0"),
            format!("{name} of no bytes at a mapped address"),
            move |r| {
                r.current()?;
                let at = r.mapped(&[G], 3)?;
                Ok(code(ask(r, at, 0, &mut [0; 16])))
            },
        );
        if writes {
            list.add(
                format!("copy.{name} half read only"),
                format!("{name} across mappings of which the second is read-only"),
                move |r| {
                    r.current()?;
                    let at = r.mapped(&[G, G], 3)?;
                    setup(r.access(at + G as u64, G, 1, 0, 1))?;
                    Ok(code(ask(r, at + G as u64 - 16, 32, &mut [0; 32])))
                },
            );
        }
    }
    list.add("copy.memset null", "memset of 16 bytes at null", |r| {
        r.current()?;
        Ok(code(d!(r, cuMemsetD8(0, 1, 16))))
    });
    list.add(
        "copy.memset null length 0",
        "memset of no bytes at null",
        |r| {
            r.current()?;
            Ok(code(d!(r, cuMemsetD8(0, 1, 0))))
        },
    );
    list.add(
        "copy.HtoD null length 0",
        "HtoD of no bytes from and to null",
        |r| {
            r.current()?;
            Ok(code(d!(r, cuMemcpyHtoD(0, null(), 0))))
        },
    );
    list.add(
        "copy.memset unmapped",
        "memset of a reserved address without a mapping",
        |r| {
            r.current()?;
            let at = r.reserve(G)?;
            Ok(code(d!(r, cuMemsetD8(at, 1, 16))))
        },
    );
    list.add(
        "copy.memset D16 unaligned",
        "memset of 16-bit values at an odd address",
        |r| {
            r.current()?;
            let at = r.mapped(&[G], 3)?;
            Ok(code(d!(r, cuMemsetD16(at + 1, 1, 16))))
        },
    );
    list.add(
        "copy.memset D32 unaligned",
        "memset of 32-bit values two bytes off",
        |r| {
            r.current()?;
            let at = r.mapped(&[G], 3)?;
            Ok(code(d!(r, cuMemsetD32(at + 2, 1, 16))))
        },
    );
    list.add(
        "copy.memset D32 bytes",
        "the bytes after a memset of 0x01020304",
        |r| {
            r.current()?;
            let at = r.mapped(&[G], 3)?;
            setup(d!(r, cuMemsetD32(at, 0x0102_0304, 2)))?;
            let mut bytes = [9_u8; 9];
            setup(d!(r, cuMemcpyDtoH(bytes.as_mut_ptr().cast(), at, 8)))?;
            Ok(format!("{bytes:?}"))
        },
    );
    list.add(
        "copy.DtoD across",
        "DtoD from two mappings into two others, off by 16, and the bytes",
        |r| {
            r.current()?;
            let (from, to) = (r.mapped(&[G, G], 3)?, r.mapped(&[G, G], 3)?);
            let bytes: Vec<u8> = (0..64).collect();
            setup(d!(
                r,
                cuMemcpyHtoD(from + G as u64 - 32, bytes.as_ptr().cast(), 64)
            ))?;
            let called = code(d!(
                r,
                cuMemcpyDtoD(to + G as u64 - 16, from + G as u64 - 32, 64)
            ));
            let mut back = [0_u8; 64];
            setup(d!(
                r,
                cuMemcpyDtoH(back.as_mut_ptr().cast(), to + G as u64 - 16, 64)
            ))?;
            Ok(format!(
                "{called}, bytes right: {}",
                back.as_slice() == bytes
            ))
        },
    );
    for (what, source, target) in [
        ("source without access", 0, 3),
        ("target without access", 3, 0),
        ("target read only", 3, 1),
        ("source read only", 1, 3),
    ] {
        list.add(
            format!("copy.DtoD {what}"),
            format!("DtoD with {what}"),
            move |r| {
                r.current()?;
                let (from, to) = (r.mapped(&[G], source)?, r.mapped(&[G], target)?);
                Ok(code(d!(r, cuMemcpyDtoD(to, from, 16))))
            },
        );
    }
    list.add(
        "copy.across reservations",
        "memset across two adjacent reservations, where they are adjacent",
        |r| {
            r.current()?;
            let both = r.reserve(2 * G)?;
            setup(r.free(both, 2 * G))?;
            let one = r
                .reserve_raw(G, 0, both, 0)
                .map_err(|error| error.to_string())?;
            let other = r
                .reserve_raw(G, 0, both + G as u64, 0)
                .map_err(|error| error.to_string())?;
            if other != one + G as u64 {
                return Err("not adjacent".into());
            }
            for at in [one, other] {
                let handle = r.memory(G)?;
                setup(r.map(at, G, 0, handle, 0))?;
            }
            let access = code(r.access(one, 2 * G, 1, 0, 3));
            let filled = code(d!(r, cuMemsetD8(one + G as u64 - 8, 1, 16)));
            Ok(format!(
                "access {access}; memset {filled}; unmap {}",
                code(r.unmap(one, 2 * G))
            ))
        },
    );
    list.add(
        "copy.aliases",
        "bytes written through one mapping, read through another",
        |r| {
            r.current()?;
            let (at, handle) = (r.reserve(2 * G)?, r.memory(G)?);
            setup(r.map(at, G, 0, handle, 0))?;
            setup(r.map(at + G as u64, G, 0, handle, 0))?;
            setup(r.access(at, 2 * G, 1, 0, 3))?;
            setup(d!(r, cuMemsetD8(at, 0x33, 16)))?;
            let mut byte = 0_u8;
            setup(d!(
                r,
                cuMemcpyDtoH((&raw mut byte).cast(), at + G as u64 + 15, 1)
            ))?;
            Ok(format!("{byte:#x}"))
        },
    );
    list.add(
        "copy.access taken away",
        "memset after access was set back to none",
        |r| {
            r.current()?;
            let at = r.mapped(&[G], 3)?;
            setup(r.access(at, G, 1, 0, 0))?;
            Ok(code(d!(r, cuMemsetD8(at, 1, 16))))
        },
    );
    list.add(
        "copy.host to host",
        "cuMemcpy between two places of the program",
        |r| {
            r.current()?;
            let (from, mut to) = ([5_u8; 16], [0_u8; 16]);
            let called = code(d!(
                r,
                cuMemcpy(to.as_mut_ptr() as u64, from.as_ptr() as u64, 16)
            ));
            Ok(format!("{called}, copied {}", from == to))
        },
    );
}
