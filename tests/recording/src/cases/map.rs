//! Mappings and access.

use super::List;
use crate::rig::{DEVICE, FD, G, HOST, M, NUMA, code, d, setup, value};
use std::ptr::{null, null_mut};
use vmm_sys::*;

pub fn add(list: &mut List) {
    map(list);
    unmap(list);
    set_access(list);
    get_access(list);
    host(list);
    mixed(list);
}

fn map(list: &mut List) {
    list.add("map.whole", "map a whole allocation", |r| {
        let (at, handle) = (r.reserve(G)?, r.memory(G)?);
        Ok(code(r.map(at, G, 0, handle, 0)))
    });
    for (what, allocated, size, offset) in [
        ("smaller", 2 * G, G, 0),
        ("larger", G, 2 * G, 0),
        ("offset", 2 * G, G, G),
        ("offset with the whole size", 2 * G, 2 * G, G),
        ("size 0", G, 0, 0),
        ("size 4096", G, 4096, 0),
        ("offset 4096", 2 * G, G, 4096),
        ("size 1", G, 1, 0),
    ] {
        list.add(
            format!("map.{what}"),
            format!("map {size} bytes at offset {offset} of an allocation of {allocated}"),
            move |r| {
                let (at, handle) = (r.reserve(4 * G)?, r.memory(allocated)?);
                Ok(code(r.map(at, size, offset, handle, 0)))
            },
        );
    }
    for (what, offset) in [("1", 1), ("4096", 4096), ("1 MiB", M as u64)] {
        list.add(
            format!("map.address off by {what}"),
            format!("map at a reserved address plus {what}"),
            move |r| {
                let (at, handle) = (r.reserve(2 * G)?, r.memory(G)?);
                Ok(code(r.map(at + offset, G, 0, handle, 0)))
            },
        );
    }
    list.add("map.null", "map at null", |r| {
        let handle = r.memory(G)?;
        Ok(code(r.map(0, G, 0, handle, 0)))
    });
    list.add(
        "map.unreserved",
        "map at an address that is not reserved",
        |r| {
            let (at, handle) = (r.reserve(G)?, r.memory(G)?);
            setup(r.free(at, G))?;
            Ok(code(r.map(at, G, 0, handle, 0)))
        },
    );
    list.add("map.flags", "map with flags 1", |r| {
        let (at, handle) = (r.reserve(G)?, r.memory(G)?);
        Ok(code(r.map(at, G, 0, handle, 1)))
    });
    list.add("map.handle 0", "map handle 0", |r| {
        let at = r.reserve(G)?;
        Ok(code(r.map(at, G, 0, 0, 0)))
    });
    list.add("map.mapped", "map where something is mapped", |r| {
        let (at, one, other) = (r.reserve(G)?, r.memory(G)?, r.memory(G)?);
        setup(r.map(at, G, 0, one, 0))?;
        Ok(code(r.map(at, G, 0, other, 0)))
    });
    list.add(
        "map.overlapping",
        "map 4 MiB over a mapping of 2 MiB in its second half",
        |r| {
            let (at, one, other) = (r.reserve(2 * G)?, r.memory(G)?, r.memory(2 * G)?);
            setup(r.map(at + G as u64, G, 0, one, 0))?;
            Ok(code(r.map(at, 2 * G, 0, other, 0)))
        },
    );
    list.add(
        "map.twice",
        "map one allocation twice in one reservation",
        |r| {
            let (at, handle) = (r.reserve(2 * G)?, r.memory(G)?);
            setup(r.map(at, G, 0, handle, 0))?;
            Ok(code(r.map(at + G as u64, G, 0, handle, 0)))
        },
    );
    list.add("map.again", "map, unmap and map again", |r| {
        let (at, handle) = (r.reserve(G)?, r.memory(G)?);
        setup(r.map(at, G, 0, handle, 0))?;
        setup(r.unmap(at, G))?;
        Ok(code(r.map(at, G, 0, handle, 0)))
    });
    list.add("map.middle", "map in the middle of a reservation", |r| {
        let (at, handle) = (r.reserve(4 * G)?, r.memory(G)?);
        Ok(code(r.map(at + 2 * G as u64, G, 0, handle, 0)))
    });
}

fn unmap(list: &mut List) {
    for (what, chunks, offset, size) in [
        ("whole", &[G, G][..], 0, 2 * G),
        ("first of two", &[G, G], 0, G),
        ("second of two", &[G, G], G, G),
        ("part at the front", &[2 * G], 0, G),
        ("part at the end", &[2 * G], G, G),
        ("one and a half", &[G, 2 * G], 0, 2 * G),
        ("more than the reservation", &[G], 0, 2 * G),
        ("size 0", &[G], 0, 0),
        ("4096 bytes", &[G], 0, 4096),
        ("address off by 4096", &[2 * G], 4096, G),
    ] {
        list.add(
            format!("unmap.{what}"),
            format!("unmap {size} bytes at {offset} of chunks {chunks:?}"),
            move |r| {
                let at = r.mapped(chunks, 3)?;
                Ok(code(r.unmap(at + offset as u64, size)))
            },
        );
    }
    list.add("unmap.null", "unmap at null", |r| Ok(code(r.unmap(0, G))));
    list.add(
        "unmap.nothing",
        "unmap where nothing is mapped in a reservation",
        |r| {
            let at = r.reserve(2 * G)?;
            Ok(code(r.unmap(at, G)))
        },
    );
    list.add(
        "unmap.hole",
        "unmap a range with a hole between two mappings",
        |r| {
            let (at, one, other) = (r.reserve(3 * G)?, r.memory(G)?, r.memory(G)?);
            setup(r.map(at, G, 0, one, 0))?;
            setup(r.map(at + 2 * G as u64, G, 0, other, 0))?;
            Ok(code(r.unmap(at, 3 * G)))
        },
    );
    list.add(
        "unmap.mapping and rest",
        "unmap a mapping and the empty rest of its reservation",
        |r| {
            let (at, handle) = (r.reserve(2 * G)?, r.memory(G)?);
            setup(r.map(at, G, 0, handle, 0))?;
            Ok(code(r.unmap(at, 2 * G)))
        },
    );
    list.add("unmap.twice", "unmap twice", |r| {
        let at = r.mapped(&[G], 3)?;
        setup(r.unmap(at, G))?;
        Ok(code(r.unmap(at, G)))
    });
    list.add(
        "unmap.unreserved",
        "unmap an address that is not reserved",
        |r| {
            let at = r.reserve(G)?;
            setup(r.free(at, G))?;
            Ok(code(r.unmap(at, G)))
        },
    );
    list.add(
        "unmap.keeps bytes",
        "whether bytes survive unmapping and mapping elsewhere",
        |r| {
            r.current()?;
            let at = r.mapped(&[G], 3)?;
            setup(d!(r, cuMemsetD8(at, 0x42, G)))?;
            setup(r.unmap(at, G))?;
            let (other, handle) = (r.reserve(G)?, r.handle(0));
            setup(r.map(other, G, 0, handle, 0))?;
            setup(r.access(other, G, DEVICE, 0, 1))?;
            let mut byte = [0_u8; 2];
            setup(d!(
                r,
                cuMemcpyDtoH(byte.as_mut_ptr().cast(), other + G as u64 - 2, 2)
            ))?;
            Ok(format!("{byte:x?}"))
        },
    );
}

fn set_access(list: &mut List) {
    for flags in [0, 1, 2, 3, 4, 7, 99] {
        list.add(
            format!("access.flags {flags}"),
            format!("set access {flags} for device 0"),
            move |r| {
                let at = r.mapped(&[G], 0)?;
                Ok(code(r.access(at, G, DEVICE, 0, flags)))
            },
        );
    }
    for (what, kind, id) in [
        ("device -1", DEVICE, -1),
        ("device 99", DEVICE, 99),
        ("host", HOST, 0),
        ("host id 5", HOST, 5),
        ("NUMA 0", NUMA, 0),
        ("NUMA 99", NUMA, 99),
        ("NUMA current", 4, 0),
        ("invalid", 0, 0),
        ("number 9", 9, 0),
    ] {
        for (suffix, words, flags) in [("", "access", 3), (", none", "no access", 0)] {
            list.add(
                format!("access.device memory to {what}{suffix}"),
                format!("give {what} {words} to device memory"),
                move |r| {
                    let at = r.mapped(&[G], 0)?;
                    Ok(code(r.access(at, G, kind, id, flags)))
                },
            );
            list.add(
                format!("access.NUMA memory to {what}{suffix}"),
                format!("give {what} {words} to host-NUMA memory"),
                move |r| {
                    let (at, handle) = (r.reserve(G)?, r.memory_at(G, NUMA, FD)?);
                    setup(r.map(at, G, 0, handle, 0))?;
                    Ok(code(r.access(at, G, kind, id, flags)))
                },
            );
        }
    }
    for (what, chunks, offset, size) in [
        ("two mappings", &[G, G][..], 0, 2 * G),
        ("second of two", &[G, G], G, G),
        ("part at the front", &[2 * G], 0, G),
        ("part at the end", &[2 * G], G, G),
        ("one and a half", &[G, 2 * G], 0, 2 * G),
        ("past the end", &[G], 0, 2 * G),
        ("size 0", &[G], 0, 0),
        ("4096 bytes", &[G], 0, 4096),
        ("address off by 4096", &[2 * G], 4096, G),
    ] {
        list.add(
            format!("access.{what}"),
            format!("set access to {size} bytes at {offset} of chunks {chunks:?}"),
            move |r| {
                let at = r.mapped(chunks, 0)?;
                Ok(code(r.access(at + offset as u64, size, DEVICE, 0, 3)))
            },
        );
    }
    list.add("access.hole", "set access to a range with a hole", |r| {
        let (at, one, other) = (r.reserve(3 * G)?, r.memory(G)?, r.memory(G)?);
        setup(r.map(at, G, 0, one, 0))?;
        setup(r.map(at + 2 * G as u64, G, 0, other, 0))?;
        Ok(code(r.access(at, 3 * G, DEVICE, 0, 3)))
    });
    list.add(
        "access.unmapped",
        "set access to a reservation without mappings",
        |r| {
            let at = r.reserve(G)?;
            Ok(code(r.access(at, G, DEVICE, 0, 3)))
        },
    );
    list.add("access.null", "set access at null", |r| {
        Ok(code(r.access(0, G, DEVICE, 0, 3)))
    });
    list.add(
        "access.no descriptors",
        "set access with no descriptors",
        |r| {
            let at = r.mapped(&[G], 0)?;
            let desc = CUmemAccessDesc {
                location: CUmemLocation::new(CUmemLocationType(DEVICE), 0),
                flags: CUmemAccess_flags(3),
            };
            Ok(code(d!(r, cuMemSetAccess(at, G, &desc, 0))))
        },
    );
    list.add(
        "access.null descriptors",
        "set access with a null descriptor",
        |r| {
            let at = r.mapped(&[G], 0)?;
            Ok(code(d!(r, cuMemSetAccess(at, G, null(), 1))))
        },
    );
    list.add(
        "access.same device twice",
        "set access with two descriptors for device 0, read and read-write",
        |r| {
            let at = r.mapped(&[G], 0)?;
            let desc = |flags| CUmemAccessDesc {
                location: CUmemLocation::new(CUmemLocationType(DEVICE), 0),
                flags: CUmemAccess_flags(flags),
            };
            let both = [desc(1), desc(3)];
            let called = code(d!(r, cuMemSetAccess(at, G, both.as_ptr(), 2)));
            Ok(format!(
                "{called}; then {}",
                value(r.get_access(at, DEVICE, 0))
            ))
        },
    );
    list.add(
        "access.one bad of two",
        "set access for device 0 and device 99: what device 0 has then",
        |r| {
            let at = r.mapped(&[G], 0)?;
            let desc = |id| CUmemAccessDesc {
                location: CUmemLocation::new(CUmemLocationType(DEVICE), id),
                flags: CUmemAccess_flags(3),
            };
            let both = [desc(0), desc(99)];
            let called = code(d!(r, cuMemSetAccess(at, G, both.as_ptr(), 2)));
            Ok(format!(
                "{called}; then {}",
                value(r.get_access(at, DEVICE, 0))
            ))
        },
    );
    list.add(
        "access.each mapping its own",
        "two mappings of one allocation with different access",
        |r| {
            let (at, handle) = (r.reserve(2 * G)?, r.memory(G)?);
            setup(r.map(at, G, 0, handle, 0))?;
            setup(r.map(at + G as u64, G, 0, handle, 0))?;
            setup(r.access(at, G, DEVICE, 0, 1))?;
            setup(r.access(at + G as u64, G, DEVICE, 0, 3))?;
            Ok(format!(
                "{} and {}",
                value(r.get_access(at, DEVICE, 0)),
                value(r.get_access(at + G as u64, DEVICE, 0))
            ))
        },
    );
}

fn get_access(list: &mut List) {
    for flags in [0, 1, 3] {
        list.add(
            format!("get access.{flags}"),
            format!("get access after setting {flags}"),
            move |r| {
                let at = r.mapped(&[G], 0)?;
                setup(r.access(at, G, DEVICE, 0, flags))?;
                Ok(value(r.get_access(at, DEVICE, 0)))
            },
        );
    }
    list.add(
        "get access.never set",
        "get access of a mapping that was given none",
        |r| {
            let at = r.mapped(&[G], 0)?;
            Ok(value(r.get_access(at, DEVICE, 0)))
        },
    );
    for (what, kind, id) in [
        ("device 99", DEVICE, 99),
        ("device -1", DEVICE, -1),
        ("host", HOST, 0),
        ("NUMA 0", NUMA, 0),
        ("NUMA 99", NUMA, 99),
        ("invalid", 0, 0),
    ] {
        list.add(
            format!("get access.{what}"),
            format!("get the access of {what} to device memory that device 0 may write"),
            move |r| {
                let at = r.mapped(&[G], 3)?;
                Ok(value(r.get_access(at, kind, id)))
            },
        );
    }
    list.add(
        "get access.inside",
        "get access at an odd address inside a mapping",
        |r| {
            let at = r.mapped(&[G], 3)?;
            Ok(value(r.get_access(at + 12_345, DEVICE, 0)))
        },
    );
    list.add(
        "get access.reserved",
        "get access of a reserved address without a mapping",
        |r| {
            let at = r.reserve(G)?;
            Ok(value(r.get_access(at, DEVICE, 0)))
        },
    );
    list.add("get access.null", "get access at null", |r| {
        Ok(value(r.get_access(0, DEVICE, 0)))
    });
    list.add(
        "get access.null pointer",
        "get access to a null pointer",
        |r| {
            let at = r.mapped(&[G], 3)?;
            let location = CUmemLocation::new(CUmemLocationType(DEVICE), 0);
            Ok(code(d!(r, cuMemGetAccess(null_mut(), &location, at))))
        },
    );
    list.add(
        "get access.null location",
        "get access with a null location",
        |r| {
            let at = r.mapped(&[G], 3)?;
            Ok(code(d!(r, cuMemGetAccess(&mut 0, null(), at))))
        },
    );
    list.add(
        "get access.linear",
        "get access of memory from cuMemAlloc",
        |r| {
            r.current()?;
            let mut at = 0;
            setup(d!(r, cuMemAlloc(&mut at, G)))?;
            let found = value(r.get_access(at, DEVICE, 0));
            setup(d!(r, cuMemFree(at)))?;
            Ok(found)
        },
    );
}

/// Chunks of two kinds of memory side by side. A copy from or to the host over their bound is not
/// asked for: the driver ends the process by SIGSEGV.
fn mixed(list: &mut List) {
    let layouts = [
        ("device, host", [DEVICE, NUMA]),
        ("host, device", [NUMA, DEVICE]),
        ("host, host", [NUMA, NUMA]),
    ];
    for (what, kinds) in layouts {
        list.add(
            format!("mixed.{what} memset"),
            format!("memset over two chunks: {what}"),
            move |r| {
                r.current()?;
                let at = r.side_by_side(&kinds)?;
                Ok(code(d!(r, cuMemsetD8(at, 1, 2 * G))))
            },
        );
        list.add(
            format!("mixed.{what} copy"),
            format!("copy on the device to two chunks and back from them: {what}"),
            move |r| {
                r.current()?;
                let at = r.side_by_side(&kinds)?;
                let plain = r.mapped(&[2 * G], 3)?;
                setup(d!(r, cuMemsetD8(plain, 7, 2 * G)))?;
                let to = code(d!(r, cuMemcpyDtoD(at, plain, 2 * G)));
                setup(d!(r, cuMemsetD8(plain, 0, 2 * G)))?;
                let from = code(d!(r, cuMemcpyDtoD(plain, at, 2 * G)));
                let mut ends = [0_u8; 2];
                let last = plain + 2 * G as u64 - 1;
                setup(d!(r, cuMemcpyDtoH((&raw mut ends[0]).cast(), plain, 1)))?;
                setup(d!(r, cuMemcpyDtoH((&raw mut ends[1]).cast(), last, 1)))?;
                Ok(format!("to {to}; from {from}; bytes {ends:?}"))
            },
        );
        list.add(
            format!("mixed.{what} access"),
            format!("grant the host access to two chunks in one call: {what}"),
            move |r| {
                let at = r.side_by_side(&kinds)?;
                Ok(code(r.access(at, 2 * G, NUMA, 0, 3)))
            },
        );
    }
}

/// Memory of the host, seen by both sides through one address.
fn host(list: &mut List) {
    for (what, kind, handles) in [("host", HOST, 0), ("host NUMA", NUMA, FD)] {
        list.add(
            format!("host.{what} both ways"),
            format!("{what} memory: the host writes, the device reads, and back"),
            move |r| {
                r.current()?;
                let (at, handle) = (r.reserve(G)?, r.memory_at(G, kind, handles)?);
                setup(r.map(at, G, 0, handle, 0))?;
                setup(r.access(at, G, kind, 0, 3))?;
                setup(r.access(at, G, DEVICE, 0, 3))?;
                let pointer = at as *mut u8;
                // SAFETY: mapped with host access just above.
                unsafe { pointer.write_volatile(0x17) };
                let mut byte = 0_u8;
                setup(d!(r, cuMemcpyDtoH((&raw mut byte).cast(), at, 1)))?;
                setup(d!(r, cuMemsetD8(at + 1, 0x29, 1)))?;
                setup(d!(r, cuCtxSynchronize()))?;
                // SAFETY: as above.
                let seen = unsafe { pointer.wrapping_add(1).read_volatile() };
                Ok(format!("device reads {byte:#x}, host reads {seen:#x}"))
            },
        );
        list.add(
            format!("host.{what} access"),
            format!("{what} memory: what each location has after both were given read-write"),
            move |r| {
                let (at, handle) = (r.reserve(G)?, r.memory_at(G, kind, handles)?);
                setup(r.map(at, G, 0, handle, 0))?;
                setup(r.access(at, G, kind, 0, 3))?;
                setup(r.access(at, G, DEVICE, 0, 1))?;
                Ok(format!(
                    "own {}; device {}",
                    value(r.get_access(at, kind, 0)),
                    value(r.get_access(at, DEVICE, 0))
                ))
            },
        );
        list.add(
            format!("host.{what} device only"),
            format!("{what} memory with device access only: a memset"),
            move |r| {
                r.current()?;
                let (at, handle) = (r.reserve(G)?, r.memory_at(G, kind, handles)?);
                setup(r.map(at, G, 0, handle, 0))?;
                setup(r.access(at, G, DEVICE, 0, 3))?;
                Ok(code(d!(r, cuMemsetD8(at, 1, G))))
            },
        );
        list.add(
            format!("host.{what} host only"),
            format!("{what} memory with host access only: a memset"),
            move |r| {
                r.current()?;
                let (at, handle) = (r.reserve(G)?, r.memory_at(G, kind, handles)?);
                setup(r.map(at, G, 0, handle, 0))?;
                setup(r.access(at, G, kind, 0, 3))?;
                Ok(code(d!(r, cuMemsetD8(at, 1, G))))
            },
        );
    }
}
