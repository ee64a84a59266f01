//! Streams and events; work that meets memory that is gone.

use super::List;
use crate::rig::{G, M, Rig, code, d, setup, value};
use std::ptr::null_mut;
use vmm_sys::*;

/// Bytes of a buffer that takes a GPU long enough to fill that a call comes in between.
const LARGE: usize = 512 * M;

pub fn add(list: &mut List) {
    for flags in [0, 1, 2, 3] {
        list.add(
            format!("stream.create {flags}"),
            format!("cuStreamCreate with flags {flags}, and cuStreamGetFlags"),
            move |r| {
                r.current()?;
                let mut stream = null_mut();
                let created = d!(r, cuStreamCreate(&mut stream, flags));
                if created.is_err() {
                    return Ok(code(created));
                }
                let mut back = 77;
                let read = value(d!(r, cuStreamGetFlags(stream, &mut back)).map(|()| back));
                Ok(format!(
                    "CUDA_SUCCESS; flags {read}; destroy {}",
                    code(d!(r, cuStreamDestroy(stream)))
                ))
            },
        );
    }
    list.add(
        "stream.create null",
        "cuStreamCreate to a null pointer",
        |r| {
            r.current()?;
            Ok(code(d!(r, cuStreamCreate(null_mut(), 0))))
        },
    );
    for (what, handle) in [("null", 0_usize), ("legacy", 1), ("per thread", 2)] {
        list.add(
            format!("stream.destroy {what}"),
            format!("cuStreamDestroy of the {what} stream"),
            move |r| {
                r.current()?;
                Ok(code(d!(r, cuStreamDestroy(handle as CUstream))))
            },
        );
        list.add(
            format!("stream.synchronize {what}"),
            format!("cuStreamSynchronize of the {what} stream"),
            move |r| {
                r.current()?;
                Ok(code(d!(r, cuStreamSynchronize(handle as CUstream))))
            },
        );
        list.add(
            format!("stream.query {what}"),
            format!("cuStreamQuery of the idle {what} stream"),
            move |r| {
                r.current()?;
                Ok(code(d!(r, cuStreamQuery(handle as CUstream))))
            },
        );
        list.add(
            format!("stream.flags {what}"),
            format!("cuStreamGetFlags of the {what} stream"),
            move |r| {
                r.current()?;
                let mut flags = 77;
                Ok(value(
                    d!(r, cuStreamGetFlags(handle as CUstream, &mut flags)).map(|()| flags),
                ))
            },
        );
        list.add(
            format!("stream.capturing {what}"),
            format!("cuStreamIsCapturing of the {what} stream"),
            move |r| {
                r.current()?;
                Ok(r.status(handle as CUstream))
            },
        );
        list.add(
            format!("stream.context {what}"),
            format!("cuStreamGetCtx of the {what} stream: the current one"),
            move |r| {
                r.current()?;
                let mut context = null_mut();
                Ok(value(
                    d!(r, cuStreamGetCtx(handle as CUstream, &mut context))
                        .map(|()| context == r.context()),
                ))
            },
        );
    }
    list.add(
        "stream.without context",
        "cuStreamSynchronize, query, context of a stream without a current context",
        |r| {
            r.current()?;
            let stream = r.stream(1)?;
            setup(d!(r, cuCtxSetCurrent(null_mut())))?;
            let mut context = null_mut();
            Ok(format!(
                "synchronize {}; query {}; context {}; capturing {}",
                code(d!(r, cuStreamSynchronize(stream))),
                code(d!(r, cuStreamQuery(stream))),
                value(d!(r, cuStreamGetCtx(stream, &mut context)).map(|()| context == r.context())),
                r.status(stream),
            ))
        },
    );
    list.add(
        "stream.memset without context",
        "memset on a stream without a current context",
        |r| {
            r.current()?;
            let (stream, at) = (r.stream(1)?, r.mapped(&[G], 3)?);
            setup(d!(r, cuCtxSetCurrent(null_mut())))?;
            Ok(code(d!(r, cuMemsetD8Async(at, 1, 16, stream))))
        },
    );
    events(list);
    busy(list);
}

fn events(list: &mut List) {
    for flags in [0, 1, 2, 3, 4, 8] {
        list.add(
            format!("event.create {flags}"),
            format!("cuEventCreate with flags {flags}"),
            move |r| {
                r.current()?;
                let mut event = null_mut();
                let created = d!(r, cuEventCreate(&mut event, flags));
                if created.is_ok() {
                    setup(d!(r, cuEventDestroy(event)))?;
                }
                Ok(code(created))
            },
        );
    }
    list.add(
        "event.never recorded",
        "query, synchronize and elapsed time of events never recorded",
        |r| {
            r.current()?;
            let (one, other) = (r.event()?, r.event()?);
            let mut time = 0.0;
            Ok(format!(
                "query {}; synchronize {}; elapsed {}",
                code(d!(r, cuEventQuery(one))),
                code(d!(r, cuEventSynchronize(one))),
                code(d!(r, cuEventElapsedTime(&mut time, one, other)))
            ))
        },
    );
    list.add(
        "event.recorded",
        "record, synchronize, query, wait for it on another stream",
        |r| {
            r.current()?;
            let (event, stream, other) = (r.event()?, r.stream(1)?, r.stream(1)?);
            Ok(format!(
                "record {}; wait {}; synchronize {}; query {}",
                code(d!(r, cuEventRecord(event, stream))),
                code(d!(r, cuStreamWaitEvent(other, event, 0))),
                code(d!(r, cuEventSynchronize(event))),
                code(d!(r, cuEventQuery(event)))
            ))
        },
    );
    list.add(
        "event.null",
        "query, record, destroy of the null event",
        |r| {
            r.current()?;
            Ok(format!(
                "query {}; record {}; destroy {}",
                code(d!(r, cuEventQuery(null_mut()))),
                code(d!(r, cuEventRecord(null_mut(), null_mut()))),
                code(d!(r, cuEventDestroy(null_mut())))
            ))
        },
    );
    list.add(
        "event.wait never recorded",
        "cuStreamWaitEvent for an event never recorded",
        |r| {
            r.current()?;
            let (event, stream) = (r.event()?, r.stream(1)?);
            Ok(code(d!(r, cuStreamWaitEvent(stream, event, 0))))
        },
    );
    list.add(
        "event.elapsed",
        "elapsed time between two recorded events",
        |r| {
            r.current()?;
            let (one, other) = (r.event()?, r.event()?);
            setup(d!(r, cuEventRecord(one, null_mut())))?;
            setup(d!(r, cuEventRecord(other, null_mut())))?;
            setup(d!(r, cuEventSynchronize(other)))?;
            let mut time = -1.0;
            Ok(value(
                d!(r, cuEventElapsedTime(&mut time, one, other))
                    .map(|()| format!("not negative: {}", time >= 0.0)),
            ))
        },
    );
}

/// Puts work on a stream that lasts for some hundred milliseconds: on a GPU by its amount, on the
/// emulator by the latency that it was loaded with.
fn occupy(r: &mut Rig, stream: CUstream) -> Result<u64, String> {
    let at = r.mapped(&[LARGE], 3)?;
    let emulated = r.driver.is_emulator();
    if emulated {
        r.slow_down(true);
    }
    for _ in 0..if emulated { 1 } else { 400 } {
        let len = if emulated { G } else { LARGE };
        setup(d!(r, cuMemsetD8Async(at, 1, len, stream)))?;
    }
    Ok(at)
}

/// These need work that lasts.
fn busy(list: &mut List) {
    list.add(
        "busy.query",
        "query and synchronize a busy stream, then query again",
        |r| {
            r.current()?;
            let stream = r.stream(1)?;
            occupy(r, stream)?;
            Ok(format!(
                "query {}; synchronize {}; query {}",
                code(d!(r, cuStreamQuery(stream))),
                code(d!(r, cuStreamSynchronize(stream))),
                code(d!(r, cuStreamQuery(stream)))
            ))
        },
    );
    list.add(
        "busy.legacy and blocking",
        "query the legacy stream while a blocking and while a non-blocking stream is busy",
        |r| {
            r.current()?;
            let blocking = r.stream(0)?;
            occupy(r, blocking)?;
            let first = code(d!(r, cuStreamQuery(null_mut())));
            setup(d!(r, cuStreamSynchronize(blocking)))?;
            let free = r.stream(1)?;
            occupy(r, free)?;
            let second = code(d!(r, cuStreamQuery(null_mut())));
            setup(d!(r, cuStreamSynchronize(free)))?;
            Ok(format!("blocking {first}; non-blocking {second}"))
        },
    );
    list.add(
        "busy.legacy synchronize",
        "synchronize the legacy stream while a blocking stream is busy, then query that one",
        |r| {
            r.current()?;
            let blocking = r.stream(0)?;
            occupy(r, blocking)?;
            let waited = code(d!(r, cuStreamSynchronize(null_mut())));
            let then = code(d!(r, cuStreamQuery(blocking)));
            setup(d!(r, cuStreamSynchronize(blocking)))?;
            Ok(format!("{waited}; then {then}"))
        },
    );
    list.add(
        "busy.event",
        "query an event recorded on a busy stream, before and after synchronizing it",
        |r| {
            r.current()?;
            let (stream, event) = (r.stream(1)?, r.event()?);
            occupy(r, stream)?;
            setup(d!(r, cuEventRecord(event, stream)))?;
            let before = code(d!(r, cuEventQuery(event)));
            setup(d!(r, cuEventSynchronize(event)))?;
            Ok(format!("{before}; {}", code(d!(r, cuEventQuery(event)))))
        },
    );
    list.add("busy.destroy", "destroy a busy stream", |r| {
        r.current()?;
        let mut stream = null_mut();
        setup(d!(r, cuStreamCreate(&mut stream, 1)))?;
        occupy(r, stream)?;
        let destroyed = code(d!(r, cuStreamDestroy(stream)));
        setup(d!(r, cuCtxSynchronize()))?;
        Ok(destroyed)
    });
    list.alone("busy.unmapped", "unmap under running work: unmap, the stream, the context, a new stream, and the calls for memory", |r| {
        r.current()?;
        let stream = r.stream(1)?;
        let at = occupy(r, stream)?;
        let unmapped = code(r.unmap(at, LARGE));
        let failed = code(d!(r, cuStreamSynchronize(stream)));
        let again = code(d!(r, cuStreamSynchronize(stream)));
        let context = code(d!(r, cuCtxSynchronize()));
        let made = code(d!(r, cuStreamCreate(&mut null_mut(), 0)));
        let info = code(d!(r, cuMemGetInfo(&mut 0, &mut 0)));
        let capturing = r.status(stream);
        let mut word = 0_u32;
        let copied = code(d!(r, cuMemcpyDtoH((&raw mut word).cast(), at, 4)));
        let released = code(r.release(r.handle(0)));
        let freed = code(r.free(at, LARGE));
        let mapped = r.mapped(&[G], 3).map_or_else(|error| error, |_| "CUDA_SUCCESS".into());
        Ok(format!(
            "unmap {unmapped}; synchronize {failed}, {again}; context {context}; new stream {made}; memory info {info}; \
             capturing {capturing}; copy {copied}; release {released}; free {freed}; create, map, set access {mapped}"
        ))
    });
}
