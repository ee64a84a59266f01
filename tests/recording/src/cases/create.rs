//! Physical memory: granularity, creating, properties, releasing, retaining.

use super::List;
use crate::rig::{DEVICE, FD, G, HOST, M, NUMA, code, d, setup, value};
use std::ptr::{null, null_mut};
use vmm_sys::*;

const KINDS: &[(&str, u32)] = &[
    ("invalid", 0),
    ("device", DEVICE),
    ("host", HOST),
    ("host NUMA", NUMA),
    ("host NUMA current", 4),
    ("number 5", 5),
    ("number 99", 99),
];
const HANDLES: &[(&str, u32)] = &[
    ("none", 0),
    ("fd", FD),
    ("win32", 2),
    ("kmt", 4),
    ("fd and win32", 3),
    ("fabric", 8),
    ("fd and fabric", 9),
    ("16", 16),
];

pub fn add(list: &mut List) {
    granularity(list);
    create(list);
    properties(list);
    release(list);
}

fn granularity(list: &mut List) {
    for &(what, kind) in KINDS {
        for (name, option) in [("minimum", 0), ("recommended", 1)] {
            list.add(
                format!("granularity.{what} {name}"),
                format!("{name} granularity of {what} memory, id 0, fd"),
                move |r| {
                    // Host memory cannot be exported as an fd.
                    let prop = r.prop(kind, 0, if kind == HOST { 0 } else { FD });
                    let mut found = 77;
                    let option = CUmemAllocationGranularity_flags(option);
                    Ok(value(
                        d!(r, cuMemGetAllocationGranularity(&mut found, &prop, option))
                            .map(|()| found),
                    ))
                },
            );
        }
    }
    for &(what, handles) in HANDLES {
        list.add(
            format!("granularity.handle {what}"),
            format!("granularity of device memory with handle types {what}"),
            move |r| {
                let prop = r.prop(DEVICE, 0, handles);
                Ok(code(d!(
                    r,
                    cuMemGetAllocationGranularity(
                        &mut 0,
                        &prop,
                        CUmemAllocationGranularity_flags(0)
                    )
                )))
            },
        );
    }
    for id in [-1, 99] {
        list.add(
            format!("granularity.device {id}"),
            format!("granularity of memory on device {id}"),
            move |r| {
                let prop = r.prop(DEVICE, id, FD);
                Ok(code(d!(
                    r,
                    cuMemGetAllocationGranularity(
                        &mut 0,
                        &prop,
                        CUmemAllocationGranularity_flags(0)
                    )
                )))
            },
        );
    }
    list.add("granularity.option 2", "granularity with option 2", |r| {
        let prop = r.prop(DEVICE, 0, FD);
        Ok(code(d!(
            r,
            cuMemGetAllocationGranularity(&mut 0, &prop, CUmemAllocationGranularity_flags(2))
        )))
    });
    list.add("granularity.null", "granularity to a null pointer", |r| {
        let prop = r.prop(DEVICE, 0, FD);
        Ok(code(d!(
            r,
            cuMemGetAllocationGranularity(null_mut(), &prop, CUmemAllocationGranularity_flags(0))
        )))
    });
    list.add(
        "granularity.null properties",
        "granularity of null properties",
        |r| {
            Ok(code(d!(
                r,
                cuMemGetAllocationGranularity(&mut 0, null(), CUmemAllocationGranularity_flags(0))
            )))
        },
    );
}

fn create(list: &mut List) {
    for &(what, kind) in KINDS {
        for &(name, handles) in HANDLES {
            list.add(
                format!("create.{what} {name}"),
                format!("create 2 MiB of {what} memory, id 0, with handle types {name}"),
                move |r| {
                    let prop = r.prop(kind, 0, handles);
                    Ok(code(r.create(G, &prop, 0)))
                },
            );
        }
    }
    for (what, size) in [
        ("0", 0),
        ("1", 1),
        ("4 KiB", 4096),
        ("1 MiB", M),
        ("3 MiB", 3 * M),
        ("4 MiB", 2 * G),
        ("1 PiB", 1 << 50),
        ("all ones", usize::MAX),
        ("almost all", usize::MAX - G + 1),
    ] {
        list.add(
            format!("create.size {what}"),
            format!("create {what} of device memory"),
            move |r| {
                let prop = r.prop(DEVICE, 0, FD);
                Ok(code(r.create(size, &prop, 0)))
            },
        );
    }
    for id in [-1, 99] {
        list.add(
            format!("create.on device {id}"),
            format!("create on device {id}"),
            move |r| {
                let prop = r.prop(DEVICE, id, FD);
                Ok(code(r.create(G, &prop, 0)))
            },
        );
        list.add(
            format!("create.on node {id}"),
            format!("create on NUMA node {id}"),
            move |r| {
                let prop = r.prop(NUMA, id, FD);
                Ok(code(r.create(G, &prop, 0)))
            },
        );
        list.add(
            format!("create.on host {id}"),
            format!("create on the host with id {id}"),
            move |r| {
                let prop = r.prop(HOST, id, 0);
                Ok(code(r.create(G, &prop, 0)))
            },
        );
    }
    for kind in [0, 3, 77] {
        list.add(
            format!("create.type {kind}"),
            format!("create with allocation type {kind}"),
            move |r| {
                let mut prop = r.prop(DEVICE, 0, FD);
                prop.type_ = CUmemAllocationType(kind);
                Ok(code(r.create(G, &prop, 0)))
            },
        );
    }
    for flags in [1, 1 << 63] {
        list.add(
            format!("create.flags {flags}"),
            format!("create with flags {flags}"),
            move |r| {
                let prop = r.prop(DEVICE, 0, FD);
                Ok(code(r.create(G, &prop, flags)))
            },
        );
    }
    list.add("create.null", "create to a null pointer", |r| {
        let prop = r.prop(DEVICE, 0, FD);
        Ok(code(d!(r, cuMemCreate(null_mut(), G, &prop, 0))))
    });
    list.add(
        "create.null properties",
        "create with null properties",
        |r| Ok(code(d!(r, cuMemCreate(&mut 0, G, null(), 0)))),
    );
    for (what, compression, rdma, usage) in [
        ("compression", 1, 0, 0),
        ("compression 7", 7, 0, 0),
        ("rdma", 0, 1, 0),
        ("tile pool", 0, 0, 1),
        ("usage 0x80", 0, 0, 0x80),
    ] {
        list.add(
            format!("create.flag {what}"),
            format!("create with {what} and read the flags back"),
            move |r| {
                let mut prop = r.prop(DEVICE, 0, FD);
                prop.allocFlags.compressionType = compression;
                prop.allocFlags.gpuDirectRDMACapable = rdma;
                prop.allocFlags.usage = usage;
                let created = r.create(G, &prop, 0);
                if created.is_err() {
                    return Ok(code(created));
                }
                let mut back = CUmemAllocationProp::default();
                setup(d!(
                    r,
                    cuMemGetAllocationPropertiesFromHandle(&mut back, r.handle(0))
                ))?;
                let flags = back.allocFlags;
                Ok(format!(
                    "CUDA_SUCCESS, compression {} rdma {} usage {}",
                    flags.compressionType, flags.gpuDirectRDMACapable, flags.usage
                ))
            },
        );
    }
    list.add("create.reserved", "create with a reserved byte set", |r| {
        let mut prop = r.prop(DEVICE, 0, FD);
        prop.allocFlags.reserved[1] = 1;
        Ok(code(r.create(G, &prop, 0)))
    });
    list.add("create.zeroed", "whether new memory reads as zeros", |r| {
        r.current()?;
        let address = r.mapped(&[G], 3)?;
        let mut bytes = vec![1_u8; G];
        setup(d!(r, cuMemcpyDtoH(bytes.as_mut_ptr().cast(), address, G)))?;
        Ok(format!("zeros: {}", bytes.iter().all(|byte| *byte == 0)))
    });
}

fn properties(list: &mut List) {
    for (what, kind, handles) in [
        ("device", DEVICE, FD),
        ("device without handle", DEVICE, 0),
        ("host", HOST, 0),
        ("host NUMA", NUMA, FD),
    ] {
        list.add(
            format!("properties.{what}"),
            format!("properties of {what} memory"),
            move |r| {
                let handle = r.memory_at(G, kind, handles)?;
                let mut prop = CUmemAllocationProp::default();
                Ok(value(
                    d!(r, cuMemGetAllocationPropertiesFromHandle(&mut prop, handle)).map(|()| {
                        format!(
                            "type {} handle types {} location {} id {}",
                            prop.type_.0,
                            prop.requestedHandleTypes.0,
                            prop.location.type_.0,
                            prop.location.id()
                        )
                    }),
                ))
            },
        );
    }
    list.add("properties.null", "properties to a null pointer", |r| {
        let handle = r.memory(G)?;
        Ok(code(d!(
            r,
            cuMemGetAllocationPropertiesFromHandle(null_mut(), handle)
        )))
    });
    list.add("properties.handle 0", "properties of handle 0", |r| {
        Ok(code(d!(
            r,
            cuMemGetAllocationPropertiesFromHandle(&mut CUmemAllocationProp::default(), 0)
        )))
    });
}

fn release(list: &mut List) {
    list.add("release.handle 0", "release handle 0", |r| {
        Ok(code(r.release(0)))
    });
    list.add("release.once", "release a handle", |r| {
        let handle = r.memory(G)?;
        Ok(code(r.release(handle)))
    });
    list.add("release.twice", "release a handle twice", |r| {
        let handle = r.memory(G)?;
        setup(r.release(handle))?;
        Ok(code(r.release(handle)))
    });
    list.add(
        "release.mapped",
        "release while mapped, then use, then retain: the same handle value",
        |r| {
            r.current()?;
            let at = r.mapped(&[G], 3)?;
            let handle = r.handle(0);
            setup(r.release(handle))?;
            let used = code(d!(r, cuMemsetD8(at, 1, G)));
            let mut again = 0;
            let retained = code(d!(r, cuMemRetainAllocationHandle(&mut again, at as *mut _)));
            r.adopt(again);
            Ok(format!(
                "use {used}; retain {retained}, same {}",
                again == handle
            ))
        },
    );
    list.add(
        "release.retained",
        "retain, then release twice, then a third time",
        |r| {
            let at = r.mapped(&[G], 3)?;
            let handle = r.handle(0);
            let mut again = 0;
            setup(d!(
                r,
                cuMemRetainAllocationHandle(&mut again, (at + 4096) as *mut _)
            ))?;
            let (one, two) = (code(r.release(handle)), code(d!(r, cuMemRelease(handle))));
            Ok(format!("same {}; {one}; {two}", again == handle))
        },
    );
    list.add(
        "release.charged",
        "whether memory released while mapped stays charged until unmapped",
        |r| {
            r.current()?;
            const SIZE: usize = 256 * M;
            let before = r.free_memory()?;
            let at = r.mapped(&[SIZE], 3)?;
            let handle = r.handle(0);
            setup(r.release(handle))?;
            let held = before - r.free_memory()?.min(before) >= SIZE;
            setup(r.unmap(at, SIZE))?;
            let back = before - r.free_memory()?.min(before) < SIZE;
            Ok(format!("charged {held}, then free {back}"))
        },
    );
    list.add("retain.null", "retain to a null pointer", |r| {
        let at = r.mapped(&[G], 3)?;
        Ok(code(d!(
            r,
            cuMemRetainAllocationHandle(null_mut(), at as *mut _)
        )))
    });
    list.add("retain.address null", "retain at address null", |r| {
        Ok(code(d!(r, cuMemRetainAllocationHandle(&mut 0, null_mut()))))
    });
    list.add(
        "retain.reserved",
        "retain at a reserved address without a mapping",
        |r| {
            let at = r.reserve(G)?;
            Ok(code(d!(
                r,
                cuMemRetainAllocationHandle(&mut 0, at as *mut _)
            )))
        },
    );
    list.add("retain.host", "retain at an address of the program", |r| {
        let mut local = 0_u64;
        Ok(code(d!(
            r,
            cuMemRetainAllocationHandle(&mut 0, (&raw mut local).cast())
        )))
    });
    list.add(
        "retain.linear",
        "retain at an address from cuMemAlloc",
        |r| {
            r.current()?;
            let mut at = 0;
            setup(d!(r, cuMemAlloc(&mut at, G)))?;
            let called = code(d!(r, cuMemRetainAllocationHandle(&mut 0, at as *mut _)));
            setup(d!(r, cuMemFree(at)))?;
            Ok(called)
        },
    );
}
