//! What the driver knows of a pointer; classic allocations.

use super::List;
use crate::rig::{G, code, d, setup, value};
use std::ptr::null_mut;
use vmm_sys::*;

pub fn add(list: &mut List) {
    for (number, what) in [
        (2, "memory type"),
        (8, "managed"),
        (9, "device ordinal"),
        (12, "range size"),
        (13, "mapped"),
        (14, "allowed handle types"),
        (10, "legacy IPC"),
        (99, "no attribute"),
    ] {
        list.add(
            format!("pointer.mapping {what}"),
            format!("pointer attribute {number}, {what}, inside a mapping of 4 MiB"),
            move |r| {
                r.current()?;
                let at = r.mapped(&[2 * G], 3)?;
                let mut found = 0_u64;
                let called = d!(
                    r,
                    cuPointerGetAttribute(
                        (&raw mut found).cast(),
                        CUpointer_attribute(number),
                        at + 4096
                    )
                );
                Ok(value(called.map(|()| found)))
            },
        );
        list.add(
            format!("pointer.reserved {what}"),
            format!("pointer attribute {number}, {what}, of a reserved address"),
            move |r| {
                r.current()?;
                let at = r.reserve(2 * G)?;
                let mut found = 0_u64;
                let called = d!(
                    r,
                    cuPointerGetAttribute((&raw mut found).cast(), CUpointer_attribute(number), at)
                );
                Ok(value(called.map(|()| found)))
            },
        );
    }
    list.add(
        "pointer.mapping context",
        "pointer attribute 1, context, of a mapping: whether null",
        |r| {
            r.current()?;
            let at = r.mapped(&[G], 3)?;
            let mut found = 7_u64;
            let called = d!(
                r,
                cuPointerGetAttribute((&raw mut found).cast(), CUpointer_attribute(1), at)
            );
            Ok(value(called.map(|()| format!("null: {}", found == 0))))
        },
    );
    list.add("pointer.mapping start", "pointer attribute 11, range start, inside the second of two mappings, from the reservation", |r| {
        r.current()?;
        let at = r.mapped(&[G, 2 * G], 3)?;
        let mut found = 0_u64;
        let called = d!(r, cuPointerGetAttribute((&raw mut found).cast(), CUpointer_attribute(11), at + G as u64 + 4096));
        Ok(value(called.map(|()| found.wrapping_sub(at))))
    });
    list.add(
        "pointer.host",
        "pointer attribute 2, memory type, of an address of the program",
        |r| {
            r.current()?;
            let mut found = 0_u64;
            let called = d!(
                r,
                cuPointerGetAttribute(
                    (&raw mut found).cast(),
                    CUpointer_attribute(2),
                    (&raw const found) as u64
                )
            );
            Ok(code(called))
        },
    );
    list.add(
        "pointer.no context",
        "pointer attribute 2, memory type, of a mapping without a current context",
        |r| {
            let at = r.mapped(&[G], 3)?;
            let mut found = 0_u64;
            let called = d!(
                r,
                cuPointerGetAttribute((&raw mut found).cast(), CUpointer_attribute(2), at)
            );
            Ok(value(called.map(|()| found)))
        },
    );
    list.add(
        "pointer.null",
        "pointer attribute 2 to a null pointer",
        |r| {
            r.current()?;
            let at = r.mapped(&[G], 3)?;
            Ok(code(d!(
                r,
                cuPointerGetAttribute(null_mut(), CUpointer_attribute(2), at)
            )))
        },
    );
    list.add(
        "range.mapping",
        "cuMemGetAddressRange inside the second of two mappings, from the reservation",
        |r| {
            r.current()?;
            let at = r.mapped(&[G, 2 * G], 3)?;
            let (mut base, mut size) = (0, 0);
            let called = d!(
                r,
                cuMemGetAddressRange(&mut base, &mut size, at + G as u64 + 4096)
            );
            Ok(value(called.map(|()| {
                format!("base at {}, size {size}", base.wrapping_sub(at))
            })))
        },
    );
    list.add(
        "range.reserved",
        "cuMemGetAddressRange of a reserved address",
        |r| {
            r.current()?;
            let at = r.reserve(G)?;
            Ok(code(d!(r, cuMemGetAddressRange(&mut 0, &mut 0, at))))
        },
    );
    list.add(
        "range.host",
        "cuMemGetAddressRange of an address of the program",
        |r| {
            r.current()?;
            let local = 0_u64;
            Ok(code(d!(
                r,
                cuMemGetAddressRange(&mut 0, &mut 0, (&raw const local) as u64)
            )))
        },
    );
    list.add(
        "range.no context",
        "cuMemGetAddressRange of a mapping without a current context",
        |r| {
            let at = r.mapped(&[G], 3)?;
            Ok(code(d!(r, cuMemGetAddressRange(&mut 0, &mut 0, at))))
        },
    );
    list.add(
        "dma-buf.size 0",
        "cuMemGetHandleForAddressRange of no bytes",
        |r| {
            r.current()?;
            let at = r.mapped(&[G], 3)?;
            let mut fd = -1;
            Ok(code(d!(
                r,
                cuMemGetHandleForAddressRange(
                    (&raw mut fd).cast(),
                    at,
                    0,
                    CUmemRangeHandleType(1),
                    0
                )
            )))
        },
    );
    list.add(
        "linear.free",
        "cuMemAlloc of 1 MiB, cuMemGetAddressRange, cuMemFree",
        |r| {
            r.current()?;
            let (mut at, mut base, mut size) = (0, 0, 0);
            setup(d!(r, cuMemAlloc(&mut at, 1 << 20)))?;
            let range = code(d!(r, cuMemGetAddressRange(&mut base, &mut size, at + 100)));
            Ok(format!(
                "range {range}, base right {}, size {size}; free {}",
                base == at,
                code(d!(r, cuMemFree(at)))
            ))
        },
    );
    list.add("linear.size 0", "cuMemAlloc of no bytes", |r| {
        r.current()?;
        Ok(code(d!(r, cuMemAlloc(&mut 0, 0))))
    });
    list.add("linear.too large", "cuMemAlloc of 1 PiB", |r| {
        r.current()?;
        Ok(code(d!(r, cuMemAlloc(&mut 0, 1 << 50))))
    });
    list.add("linear.free null", "cuMemFree of null", |r| {
        r.current()?;
        Ok(code(d!(r, cuMemFree(0))))
    });
    list.add("linear.free twice", "cuMemFree twice", |r| {
        r.current()?;
        let mut at = 0;
        setup(d!(r, cuMemAlloc(&mut at, G)))?;
        setup(d!(r, cuMemFree(at)))?;
        Ok(code(d!(r, cuMemFree(at))))
    });
    list.add(
        "linear.free mapping",
        "cuMemFree of an address from cuMemMap",
        |r| {
            r.current()?;
            let at = r.mapped(&[G], 3)?;
            Ok(code(d!(r, cuMemFree(at))))
        },
    );
    list.add(
        "linear.unmap",
        "cuMemUnmap of memory from cuMemAlloc",
        |r| {
            r.current()?;
            let mut at = 0;
            setup(d!(r, cuMemAlloc(&mut at, G)))?;
            let called = code(d!(r, cuMemUnmap(at, G)));
            let _ = d!(r, cuMemFree(at));
            Ok(called)
        },
    );
    list.add("pinned.free", "cuMemAllocHost and cuMemFreeHost", |r| {
        r.current()?;
        let mut at = null_mut();
        setup(d!(r, cuMemAllocHost(&mut at, 4096)))?;
        Ok(code(d!(r, cuMemFreeHost(at))))
    });
    list.add("pinned.size 0", "cuMemAllocHost of no bytes", |r| {
        r.current()?;
        Ok(code(d!(r, cuMemAllocHost(&mut null_mut(), 0))))
    });
    list.add("pinned.free twice", "cuMemFreeHost twice", |r| {
        r.current()?;
        let mut at = null_mut();
        setup(d!(r, cuMemAllocHost(&mut at, 4096)))?;
        setup(d!(r, cuMemFreeHost(at)))?;
        Ok(code(d!(r, cuMemFreeHost(at))))
    });
}
