//! Graph capture: what is allowed while one is under way.

use super::List;
use crate::rig::{Called, DEVICE, FD, G, Rig, code, d, setup, value};
use std::ptr::null_mut;
use vmm_sys::*;

type Ask = fn(&mut Rig) -> Called;

/// Calls that a release or a growth may make while some stream captures.
const CALLS: &[(&str, Ask)] = &[
    ("reserve", |r| r.reserve_raw(G, 0, 0, 0).map(drop)),
    ("create", |r| {
        let prop = r.prop(DEVICE, 0, FD);
        r.create(G, &prop, 0)
    }),
    ("map", |r| r.map(r.spare_address(), G, 0, r.handle(1), 0)),
    ("set access", |r| {
        r.access(r.mapped_address(), G, DEVICE, 0, 3)
    }),
    ("get access", |r| {
        r.get_access(r.mapped_address(), DEVICE, 0).map(drop)
    }),
    ("unmap", |r| r.unmap(r.mapped_address(), G)),
    ("release", |r| r.release(r.handle(1))),
    ("free", |r| r.free(r.spare_address(), G)),
    ("export", |r| r.export(r.handle(0)).map(drop)),
    ("granularity", |r| {
        let prop = r.prop(DEVICE, 0, FD);
        d!(
            r,
            cuMemGetAllocationGranularity(&mut 0, &prop, CUmemAllocationGranularity_flags(0))
        )
    }),
    ("memory info", |r| d!(r, cuMemGetInfo(&mut 0, &mut 0))),
    ("HtoD", |r| {
        d!(
            r,
            cuMemcpyHtoD(r.mapped_address(), (&raw const r.one).cast(), 4)
        )
    }),
    ("DtoH", |r| {
        d!(
            r,
            cuMemcpyDtoH((&raw mut r.one).cast(), r.mapped_address(), 4)
        )
    }),
    ("memset", |r| d!(r, cuMemsetD8(r.mapped_address(), 1, 4))),
    ("memset on another stream", |r| {
        d!(
            r,
            cuMemsetD8Async(r.mapped_address(), 1, 4, r.second_stream())
        )
    }),
    ("memset on the legacy stream", |r| {
        d!(r, cuMemsetD8Async(r.mapped_address(), 1, 4, null_mut()))
    }),
    ("synchronize another stream", |r| {
        d!(r, cuStreamSynchronize(r.second_stream()))
    }),
    ("query another stream", |r| {
        d!(r, cuStreamQuery(r.second_stream()))
    }),
    ("synchronize the legacy stream", |r| {
        d!(r, cuStreamSynchronize(null_mut()))
    }),
    ("query the legacy stream", |r| {
        d!(r, cuStreamQuery(null_mut()))
    }),
    ("synchronize the context", |r| d!(r, cuCtxSynchronize())),
    ("synchronize the capturing stream", |r| {
        d!(r, cuStreamSynchronize(r.first_stream()))
    }),
    ("query the capturing stream", |r| {
        d!(r, cuStreamQuery(r.first_stream()))
    }),
    ("legacy stream is capturing", |r| {
        d!(
            r,
            cuStreamIsCapturing(null_mut(), &mut CUstreamCaptureStatus(0))
        )
    }),
    ("query an event", |r| d!(r, cuEventQuery(r.first_event()))),
    ("synchronize an event", |r| {
        d!(r, cuEventSynchronize(r.first_event()))
    }),
    ("allocate linear", |r| {
        let mut at = 0;
        d!(r, cuMemAlloc(&mut at, G))?;
        d!(r, cuMemFree(at))
    }),
    ("allocate pinned", |r| {
        let mut at = null_mut();
        d!(r, cuMemAllocHost(&mut at, 4096))?;
        d!(r, cuMemFreeHost(at))
    }),
    ("create a stream", |r| {
        r.stream(1)
            .map(drop)
            .map_err(|_| Error::failed("cuStreamCreate", CUresult(999)))
    }),
    ("create an event", |r| {
        r.event()
            .map(drop)
            .map_err(|_| Error::failed("cuEventCreate", CUresult(999)))
    }),
    ("set the current context", |r| {
        d!(r, cuCtxSetCurrent(r.context()))
    }),
    ("retain the primary context", |r| {
        d!(r, cuDevicePrimaryCtxRetain(&mut null_mut(), 0))?;
        d!(r, cuDevicePrimaryCtxRelease(0))
    }),
];

pub fn add(list: &mut List) {
    for &(name, ask) in CALLS {
        for (kind, flags) in [("blocking", 0), ("non-blocking", 1)] {
            list.add(
                format!("capture.{name}, {kind}"),
                format!("{name} while a {kind} stream captures in global mode, and how the capture then ends"),
                move |r| while_capturing(r, flags, 0, 0, ask),
            );
        }
        list.add(
            format!("capture.{name}, relaxed thread"),
            format!(
                "{name} by a thread in relaxed mode while a blocking stream captures in global mode"
            ),
            move |r| while_capturing(r, 0, 0, 2, ask),
        );
    }
    modes(list);
    begin_and_end(list);
}

fn while_capturing(
    r: &mut Rig,
    flags: u32,
    mode: u32,
    thread: u32,
    ask: Ask,
) -> Result<String, String> {
    r.current()?;
    r.mapped(&[G], 3)?;
    r.memory(G)?;
    r.reserve(G)?;
    r.event()?;
    let stream = r.stream(flags)?;
    r.stream(1)?;
    setup(r.begin(stream, mode))?;
    setup(r.exchange(thread).map(drop))?;
    let called = code(ask(r));
    setup(r.exchange(0).map(drop))?;
    Ok(format!(
        "{called}; {}; end {}",
        r.status(stream),
        code(r.end(stream))
    ))
}

fn modes(list: &mut List) {
    for mode in [0, 1, 2, 3] {
        list.add(
            format!("mode.exchange {mode}"),
            format!("exchange the thread's capture mode to {mode}, and back"),
            move |r| {
                let before = r.exchange(mode);
                if before.is_err() {
                    return Ok(value(before));
                }
                Ok(format!("{}; back {}", value(before), value(r.exchange(0))))
            },
        );
        list.add(
            format!("mode.begin {mode}"),
            format!("begin a capture in mode {mode}, end it"),
            move |r| {
                r.current()?;
                let stream = r.stream(1)?;
                let begun = code(r.begin(stream, mode));
                Ok(format!(
                    "{begun}; {}; end {}",
                    r.status(stream),
                    code(r.end(stream))
                ))
            },
        );
        if mode < 3 {
            list.add(
                format!("mode.allocate in {mode}"),
                format!("cuMemAlloc while a stream captures in mode {mode}"),
                move |r| {
                    while_capturing(r, 1, mode, 0, |r| {
                        let mut at = 0;
                        d!(r, cuMemAlloc(&mut at, G))?;
                        d!(r, cuMemFree(at))
                    })
                },
            );
            list.add(
                format!("mode.legacy in {mode}"),
                format!(
                    "synchronize the legacy stream while a blocking stream captures in mode {mode}"
                ),
                move |r| while_capturing(r, 0, mode, 0, |r| d!(r, cuStreamSynchronize(null_mut()))),
            );
            list.add(
                format!("mode.other stream in {mode}"),
                format!("synchronize another stream while a stream captures in mode {mode}"),
                move |r| {
                    while_capturing(r, 1, mode, 0, |r| {
                        d!(r, cuStreamSynchronize(r.second_stream()))
                    })
                },
            );
        }
    }
    list.add(
        "mode.null",
        "exchange the capture mode through a null pointer",
        |r| Ok(code(d!(r, cuThreadExchangeStreamCaptureMode(null_mut())))),
    );
    for mode in [0, 1, 2] {
        list.add(
            format!("mode.other thread {mode}"),
            format!("another thread allocates while this one captures in mode {mode}"),
            move |r| {
                r.current()?;
                let stream = r.stream(1)?;
                setup(r.begin(stream, mode))?;
                let called = in_thread(r, |r| {
                    let mut at = 0;
                    d!(r, cuMemAlloc(&mut at, G))?;
                    d!(r, cuMemFree(at))
                });
                Ok(format!(
                    "{called}; {}; end {}",
                    r.status(stream),
                    code(r.end(stream))
                ))
            },
        );
        list.add(
            format!("mode.ended elsewhere {mode}"),
            format!("another thread ends a capture of mode {mode}"),
            move |r| {
                r.current()?;
                let stream = r.stream(1)?;
                setup(r.begin(stream, mode))?;
                let address = stream as usize;
                let called = in_thread(r, move |r| r.end(address as CUstream));
                Ok(format!("{called}; {}", r.status(stream)))
            },
        );
    }
}

fn begin_and_end(list: &mut List) {
    for (what, handle) in [("legacy", 0_usize), ("per-thread", 2)] {
        list.add(
            format!("begin.{what}"),
            format!("begin a capture on the {what} stream"),
            move |r| {
                r.current()?;
                let begun = code(r.begin(handle as CUstream, 0));
                let status = r.status(handle as CUstream);
                Ok(format!(
                    "{begun}; {status}; end {}",
                    code(r.end(handle as CUstream))
                ))
            },
        );
    }
    list.add(
        "begin.twice",
        "begin a capture on a stream that captures",
        |r| {
            r.current()?;
            let stream = r.stream(1)?;
            setup(r.begin(stream, 0))?;
            let again = code(r.begin(stream, 0));
            Ok(format!(
                "{again}; {}; end {}",
                r.status(stream),
                code(r.end(stream))
            ))
        },
    );
    list.add(
        "end.none",
        "end a capture on a stream that does not capture",
        |r| {
            r.current()?;
            let stream = r.stream(1)?;
            Ok(code(r.end(stream)))
        },
    );
    list.add(
        "capturing.none",
        "cuStreamIsCapturing of a stream that does not",
        |r| {
            r.current()?;
            let stream = r.stream(0)?;
            Ok(r.status(stream))
        },
    );
    list.add(
        "capturing.info",
        "cuStreamGetCaptureInfo while capturing: status, whether the id is zero",
        |r| {
            r.current()?;
            let stream = r.stream(1)?;
            setup(r.begin(stream, 0))?;
            let (mut status, mut id) = (CUstreamCaptureStatus(77), 0);
            let called = d!(r, cuStreamGetCaptureInfo(stream, &mut status, &mut id));
            Ok(value(called.map(|()| {
                format!("status {}, id zero: {}", status.0, id == 0)
            })))
        },
    );
    list.add(
        "capturing.null",
        "cuStreamIsCapturing to a null pointer",
        |r| {
            r.current()?;
            let stream = r.stream(1)?;
            Ok(code(d!(r, cuStreamIsCapturing(stream, null_mut()))))
        },
    );
    list.add(
        "captured.memset",
        "memset on a capturing stream: whether it ran",
        |r| {
            r.current()?;
            let (at, stream) = (r.mapped(&[G], 3)?, r.stream(1)?);
            setup(d!(r, cuMemsetD8(at, 0x11, 16)))?;
            setup(r.begin(stream, 0))?;
            let called = code(d!(r, cuMemsetD8Async(at, 0x22, 16, stream)));
            let ended = code(r.end(stream));
            let mut byte = 0_u8;
            setup(d!(r, cuMemcpyDtoH((&raw mut byte).cast(), at, 1)))?;
            Ok(format!("{called}; end {ended}; byte {byte:#x}"))
        },
    );
    list.add(
        "captured.event",
        "record an event while capturing, then query, synchronize it",
        |r| {
            r.current()?;
            let (stream, event) = (r.stream(1)?, r.event()?);
            setup(r.begin(stream, 0))?;
            let recorded = code(d!(r, cuEventRecord(event, stream)));
            let queried = code(d!(r, cuEventQuery(event)));
            Ok(format!(
                "record {recorded}; query {queried}; {}; end {}",
                r.status(stream),
                code(r.end(stream))
            ))
        },
    );
    list.add(
        "captured.joined",
        "another stream waits for a captured event: its status, and ending without joining back",
        |r| {
            r.current()?;
            let (stream, other, event) = (r.stream(1)?, r.stream(1)?, r.event()?);
            setup(r.begin(stream, 0))?;
            setup(d!(r, cuEventRecord(event, stream)))?;
            let waited = code(d!(r, cuStreamWaitEvent(other, event, 0)));
            let status = r.status(other);
            let at = r.mapped(&[G], 3)?;
            let work = code(d!(r, cuMemsetD8Async(at, 1, 16, other)));
            let ended = code(r.end(stream));
            Ok(format!(
                "wait {waited}; {status}; work {work}; end {ended}; then {}",
                r.status(other)
            ))
        },
    );
    list.add(
        "captured.invalid",
        "work on a stream whose capture is invalid",
        |r| {
            r.current()?;
            let (at, stream) = (r.mapped(&[G], 3)?, r.stream(1)?);
            setup(r.begin(stream, 0))?;
            let _ = d!(r, cuStreamSynchronize(stream));
            let work = code(d!(r, cuMemsetD8Async(at, 1, 16, stream)));
            Ok(format!(
                "{}; work {work}; end {}; then {}",
                r.status(stream),
                code(r.end(stream)),
                r.status(stream)
            ))
        },
    );
}

/// Runs in another thread, with the same current context.
fn in_thread(r: &Rig, run: impl FnOnce(&Rig) -> Called + Send) -> String {
    struct Shared<'a>(&'a Rig);
    // SAFETY: the rig's driver is Sync, its lists are not touched by either thread meanwhile, and
    // handles are only numbers.
    unsafe impl Send for Shared<'_> {}
    let shared = Shared(r);
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            let shared = shared;
            let rig = shared.0;
            let _ = rig.current();
            let called = code(run(rig));
            let _ = d!(rig, cuCtxSetCurrent(null_mut()));
            called
        });
        thread.join().unwrap_or_else(|_| "panic".into())
    })
}
