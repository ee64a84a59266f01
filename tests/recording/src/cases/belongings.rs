//! What belongs to a context and goes with it; memory of a program that the driver knows.

use super::List;
use crate::rig::{G, Rig, code, d, setup, value};
use std::ffi::c_void;
use std::ptr::null_mut;
use vmm_sys::*;

/// How a context can end.
pub const ENDS: [&str; 3] = [
    "cuCtxDestroy",
    "cuDevicePrimaryCtxRelease",
    "cuDevicePrimaryCtxReset",
];

pub fn add(list: &mut List) {
    for end in ENDS {
        list.alone(
            format!("context.takes memory, {end}"),
            format!(
                "memory from cuMemAlloc and cuMemAllocHost after {end}: known to the driver, freed"
            ),
            move |r| {
                let context = begin(r, end)?;
                let (mut at, mut host) = (0, null_mut());
                setup(d!(r, cuMemAlloc(&mut at, G)))?;
                setup(d!(r, cuMemAllocHost(&mut host, 4096)))?;
                finish(r, end, context)?;
                Ok(format!(
                    "linear: range {}, free {}; host: memory type {}, free {}",
                    code(d!(r, cuMemGetAddressRange(&mut 0, &mut 0, at))),
                    code(d!(r, cuMemFree(at))),
                    attribute(r, 2, host as u64),
                    code(d!(r, cuMemFreeHost(host))),
                ))
            },
        );
        list.alone(
            format!("context.takes bytes, {end}"),
            format!("24 times: 8 GiB from cuMemAlloc, then {end}; how often the memory was given"),
            move |r| {
                let mut given = 0;
                for _ in 0..24 {
                    let context = begin(r, end)?;
                    let mut at = 0;
                    if d!(r, cuMemAlloc(&mut at, 8 << 30)).is_ok() {
                        given += 1;
                    }
                    finish(r, end, context)?;
                }
                Ok(format!("{given} of 24"))
            },
        );
        list.alone(
            format!("context.leaves mappings, {end}"),
            format!("memory mapped before {end}: the byte, unmap, release after it"),
            move |r| {
                let context = begin(r, end)?;
                let at = r.mapped(&[G], 3)?;
                setup(d!(r, cuMemsetD8(at, 0x5a, 16)))?;
                finish(r, end, context)?;
                let mut byte = [0_u8; 1];
                let read = code(d!(r, cuMemcpyDtoH(byte.as_mut_ptr().cast(), at, 1)));
                let handle = r.handle(0);
                Ok(format!(
                    "read {read}, {byte:x?}; unmap {}; release {}",
                    code(r.unmap(at, G)),
                    code(r.release(handle)),
                ))
            },
        );
    }
    list.alone(
        "context.reset",
        "retain once, make current, cuDevicePrimaryCtxReset: state, use, use after a new retain",
        |r| {
            r.current()?;
            let reset = code(d!(r, cuDevicePrimaryCtxReset(0)));
            let (mut flags, mut active, mut again) = (0, 77, null_mut());
            setup(d!(r, cuDevicePrimaryCtxGetState(0, &mut flags, &mut active)))?;
            let before = code(d!(r, cuMemGetInfo(&mut 0, &mut 0)));
            let set = code(d!(r, cuCtxSetCurrent(r.context())));
            let retain = code(d!(r, cuDevicePrimaryCtxRetain(&mut again, 0)));
            Ok(format!(
                "reset {reset}, active {active}; memory info {before}; set current {set}; retain {retain}, the same {}; memory info {}; set current {}, memory info {}",
                again == r.context(),
                code(d!(r, cuMemGetInfo(&mut 0, &mut 0))),
                code(d!(r, cuCtxSetCurrent(again))),
                code(d!(r, cuMemGetInfo(&mut 0, &mut 0))),
            ))
        },
    );
    list.alone(
        "context.set released",
        "cuCtxSetCurrent of the primary context after its last release; memory info then",
        |r| {
            r.current()?;
            setup(d!(r, cuDevicePrimaryCtxRelease(0)))?;
            setup(d!(r, cuCtxSetCurrent(null_mut())))?;
            Ok(format!(
                "set current {}; memory info {}; push {}",
                code(d!(r, cuCtxSetCurrent(r.context()))),
                code(d!(r, cuMemGetInfo(&mut 0, &mut 0))),
                code(d!(r, cuCtxPushCurrent(r.context()))),
            ))
        },
    );
    list.alone(
        "context.registered",
        "memory of the program registered in a context that is destroyed: registered again, unregistered",
        |r| {
            let context = begin(r, "cuCtxDestroy")?;
            let memory = Page::new();
            setup(d!(r, cuMemHostRegister(memory.start(), 4096, 0)))?;
            finish(r, "cuCtxDestroy", context)?;
            Ok(format!(
                "register {}, unregister {}, again {}",
                code(d!(r, cuMemHostRegister(memory.start(), 4096, 0))),
                code(d!(r, cuMemHostUnregister(memory.start()))),
                code(d!(r, cuMemHostUnregister(memory.start()))),
            ))
        },
    );
    for (kind, words) in [
        ("linear", "of memory from cuMemAlloc"),
        ("pinned", "of memory from cuMemAllocHost"),
        ("registered", "of memory that cuMemHostRegister knows"),
    ] {
        for (number, what) in [
            (1, "context"),
            (2, "memory type"),
            (3, "device pointer"),
            (4, "host pointer"),
            (8, "managed"),
            (9, "device ordinal"),
            (10, "legacy IPC"),
            (11, "range start"),
            (12, "range size"),
            (13, "mapped"),
            (14, "allowed handle types"),
        ] {
            list.add(
                format!("pointer.{kind} {what}"),
                format!("pointer attribute {number}, {what}, {words}, 100 bytes in"),
                move |r| ask(r, kind, |r, at| Ok(attribute_of(r, number, at, at + 100))),
            );
        }
        list.add(
            format!("range.{kind}"),
            format!("cuMemGetAddressRange {words}, 100 bytes in"),
            move |r| {
                ask(r, kind, |r, at| {
                    let (mut base, mut size) = (0, 0);
                    let called = d!(r, cuMemGetAddressRange(&mut base, &mut size, at + 100));
                    Ok(value(called.map(|()| {
                        format!("base right {}, size {size}", base == at)
                    })))
                })
            },
        );
        list.add(
            format!("{kind}.set access"),
            format!("cuMemSetAccess {words}, to read; then a memset"),
            move |r| {
                ask(r, kind, |r, at| {
                    let set = code(r.access(at, G, 1, 0, 1));
                    let memset = code(d!(r, cuMemsetD8(at, 1, 16)));
                    Ok(format!("{set}; memset {memset}"))
                })
            },
        );
        list.add(
            format!("{kind}.get access"),
            format!("cuMemGetAccess {words}"),
            move |r| ask(r, kind, |r, at| Ok(value(r.get_access(at, 1, 0)))),
        );
        list.add(
            format!("{kind}.retain"),
            format!("cuMemRetainAllocationHandle {words}"),
            move |r| {
                ask(r, kind, |r, at| {
                    Ok(code(d!(
                        r,
                        cuMemRetainAllocationHandle(&mut 0, at as *mut c_void)
                    )))
                })
            },
        );
    }
    list.add(
        "registered.twice",
        "cuMemHostRegister twice, cuMemHostUnregister twice",
        |r| {
            r.current()?;
            let memory = Page::new();
            setup(d!(r, cuMemHostRegister(memory.start(), 4096, 0)))?;
            Ok(format!(
                "register again {}; unregister {}, again {}",
                code(d!(r, cuMemHostRegister(memory.start(), 4096, 0))),
                code(d!(r, cuMemHostUnregister(memory.start()))),
                code(d!(r, cuMemHostUnregister(memory.start()))),
            ))
        },
    );
    list.alone(
        "graph.destroyed twice",
        "cuGraphDestroy of one graph twice",
        |r| {
            r.current()?;
            let (stream, mut graph) = (r.stream(1)?, null_mut());
            setup(r.begin(stream, 0))?;
            setup(d!(r, cuStreamEndCapture(stream, &mut graph)))?;
            setup(d!(r, cuGraphDestroy(graph)))?;
            Ok(code(d!(r, cuGraphDestroy(graph))))
        },
    );
}

/// The context that is to end, current.
pub fn begin(r: &Rig, end: &str) -> Result<CUcontext, String> {
    if end != "cuCtxDestroy" {
        r.current()?;
        return Ok(r.context());
    }
    let mut context = null_mut();
    setup(d!(r, cuCtxCreate(&mut context, 0, 0)))?;
    Ok(context)
}

/// Ends it; the primary context is there and current afterwards.
fn finish(r: &Rig, end: &str, context: CUcontext) -> Result<(), String> {
    match end {
        "cuCtxDestroy" => setup(d!(r, cuCtxDestroy(context)))?,
        "cuDevicePrimaryCtxRelease" => {
            setup(d!(r, cuDevicePrimaryCtxRelease(0)))?;
            setup(d!(r, cuDevicePrimaryCtxRetain(&mut null_mut(), 0)))?;
        }
        _ => {
            setup(d!(r, cuDevicePrimaryCtxReset(0)))?;
            setup(d!(r, cuDevicePrimaryCtxRetain(&mut null_mut(), 0)))?;
        }
    }
    r.current()
}

/// Asks about memory of one granule of a kind, and gives it back.
fn ask(
    r: &mut Rig,
    kind: &str,
    question: impl Fn(&mut Rig, u64) -> Result<String, String>,
) -> Result<String, String> {
    r.current()?;
    let memory = Page::new();
    match kind {
        "linear" => {
            let mut at = 0;
            setup(d!(r, cuMemAlloc(&mut at, G)))?;
            let answer = question(r, at);
            setup(d!(r, cuMemFree(at)))?;
            answer
        }
        "pinned" => {
            let mut at = null_mut();
            setup(d!(r, cuMemAllocHost(&mut at, G)))?;
            let answer = question(r, at as u64);
            setup(d!(r, cuMemFreeHost(at)))?;
            answer
        }
        _ => {
            setup(d!(r, cuMemHostRegister(memory.start(), G, 0)))?;
            let answer = question(r, memory.start() as u64);
            setup(d!(r, cuMemHostUnregister(memory.start())))?;
            answer
        }
    }
}

/// One granule of the program, on a page of its own.
struct Page(Vec<u8>);

impl Page {
    fn new() -> Self {
        Self(vec![0; 2 * G])
    }

    fn start(&self) -> *mut c_void {
        let start = self.0.as_ptr().cast_mut();
        start.wrapping_add(start.align_offset(4096)).cast()
    }
}

fn attribute(r: &Rig, number: u32, at: u64) -> String {
    attribute_of(r, number, at, at)
}

/// The attribute, where it is an address or a context in words.
fn attribute_of(r: &Rig, number: u32, base: u64, at: u64) -> String {
    let mut found = 0_u64;
    let called = d!(
        r,
        cuPointerGetAttribute((&raw mut found).cast(), CUpointer_attribute(number), at)
    );
    value(called.map(|()| match number {
        1 => format!("the current context {}", found == r.context() as u64),
        3 | 4 | 11 => format!("offset {}", found.wrapping_sub(base)),
        _ => found.to_string(),
    }))
}
