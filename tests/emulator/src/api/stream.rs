//! Streams and their capture into graphs.

use super::copy::wait_for;
use super::{Out, PerThread, api};
use crate::abi::{STREAM_LEGACY, STREAM_NON_BLOCKING, STREAM_PER_THREAD};
use crate::capture::{self, Mode, Status};
use crate::code::{Code, Result};
use crate::core::{Core, Locked, is_ready};
use crate::host_function::HostFunction;
use crate::queue::Task;
use crate::stream::Kind;
use crate::thread::Thread;
use crate::{fault, host_thread};
use std::ffi::{c_int, c_uint, c_void};
use std::time::Instant;

api! {
    fn cuStreamCreate as "cuStreamCreate"(stream: Out<u64>, flags: c_uint) |mut core| {
        create(&mut core, stream, flags, 0)
    }

    fn cuStreamCreateWithPriority as "cuStreamCreateWithPriority"(stream: Out<u64>, flags: c_uint, priority: c_int) |mut core| {
        create(&mut core, stream, flags, priority)
    }

    fn cuStreamDestroy as "cuStreamDestroy"(stream: u64) |mut core| {
        if matches!(stream, 0 | STREAM_LEGACY | STREAM_PER_THREAD) {
            return Err(Code::INVALID_HANDLE);
        }
        core.stream(stream)?;
        core.drop_captures(|id, _| id == stream);
        core.streams.destroy(stream)
    }

    fn cuStreamSynchronize as "cuStreamSynchronize"(stream: u64) |mut core| {
        let stream = core.stream(stream)?;
        core.no_capture_on(stream)?;
        core.safe_in_capture()?;
        wait_for(core, stream).map(drop)
    }

    fn cuStreamQuery as "cuStreamQuery"(stream: u64) |mut core| {
        let stream = core.stream(stream)?;
        core.no_capture_on(stream)?;
        core.safe_in_capture()?;
        match core.streams.is_busy(stream)? {
            true => Err(Code::NOT_READY),
            false => Ok(()),
        }
    }

    fn cuStreamWaitEvent as "cuStreamWaitEvent"(stream: u64, event: u64, flags: c_uint) |mut core| {
        let stream = core.stream(stream)?;
        if flags > 1 {
            return Err(Code::INVALID_VALUE);
        }
        core.wait_event(stream, event)
    }

    fn cuStreamGetFlags as "cuStreamGetFlags"(stream: u64, flags: Out<c_uint>) |mut core| {
        let stream = core.stream(stream)?;
        flags.set(c_uint::from(core.streams.get(stream)?.kind == Kind::NonBlocking))
    }

    fn cuStreamGetPriority as "cuStreamGetPriority"(stream: u64, priority: Out<c_int>) |mut core| {
        let stream = core.stream(stream)?;
        priority.set(core.streams.get(stream)?.priority)
    }

    fn cuStreamGetCtx as "cuStreamGetCtx"(stream: u64, context: Out<u64>) |mut core| {
        let stream = core.stream(stream)?;
        context.set(core.streams.get(stream)?.context)
    }

    fn cuStreamGetCtx_v2 as "cuStreamGetCtx"(stream: u64, context: Out<u64>, green: Out<u64>) |mut core| {
        let stream = core.stream(stream)?;
        context.set(core.streams.get(stream)?.context)?;
        // There are no green contexts.
        green.set_if_wanted(0);
        Ok(())
    }

    fn cuStreamGetId as "cuStreamGetId"(stream: u64, id: Out<u64>) |mut core| {
        let stream = core.stream(stream)?;
        id.set(core.streams.get(stream)?.id)
    }

    fn cuStreamBeginCapture as "cuStreamBeginCapture"(stream: u64, mode: c_int) |mut core| {
        let stream = core.stream(stream)?;
        core.begin_capture(stream, Mode::from_c(mode)?)
    }

    fn cuStreamEndCapture as "cuStreamEndCapture"(stream: u64, graph: Out<u64>) |mut core| {
        let stream = core.stream(stream)?;
        graph.check()?;
        graph.set(0)?;
        graph.set(core.end_capture(stream)?)
    }

    fn cuStreamIsCapturing as "cuStreamIsCapturing"(stream: u64, status: Out<c_int>) |mut core| {
        let stream = core.stream(stream)?;
        status.check()?;
        status.set(core.capture_status(stream)?.0 as c_int)
    }

    fn cuStreamGetCaptureInfo as "cuStreamGetCaptureInfo"(stream: u64, status: Out<c_int>, id: Out<u64>) |mut core| {
        let stream = core.stream(stream)?;
        status.check()?;
        let (state, number) = core.capture_status(stream)?;
        status.set(state as c_int)?;
        id.set_if_wanted(number);
        Ok(())
    }

    fn cuStreamGetCaptureInfo_v2 as "cuStreamGetCaptureInfo"(
        stream: u64, status: Out<c_int>, id: Out<u64>, graph: Out<u64>, nodes: Out<u64>, count: Out<usize>
    ) |mut core| {
        let stream = core.stream(stream)?;
        capture_info(&core, stream, status, id, graph, nodes, count)
    }

    fn cuStreamGetCaptureInfo_v3 as "cuStreamGetCaptureInfo"(
        stream: u64, status: Out<c_int>, id: Out<u64>, graph: Out<u64>, nodes: Out<u64>, edges: Out<u64>, count: Out<usize>
    ) |mut core| {
        let stream = core.stream(stream)?;
        edges.set_if_wanted(0);
        capture_info(&core, stream, status, id, graph, nodes, count)
    }

    fn cuThreadExchangeStreamCaptureMode as "cuThreadExchangeStreamCaptureMode"(mode: *mut c_int) |_| {
        let mode = Exchanged(mode);
        let wanted = Mode::from_c(mode.get()?)?;
        mode.set(capture::exchange_mode(wanted).to_c())
    }

    fn cuGraphDestroy as "cuGraphDestroy"(graph: u64) |mut core| {
        core.destroy_graph(graph)
    }

    fn cuLaunchHostFunc as "cuLaunchHostFunc"(
        stream: u64, function: Option<unsafe extern "C-unwind" fn(*mut c_void)>, data: *mut c_void
    ) |core| {
        launch(core, stream, function, data)
    }

    // How a real driver waits for the function is its own matter.
    fn cuLaunchHostFunc_v2 as "cuLaunchHostFunc"(
        stream: u64, function: Option<unsafe extern "C-unwind" fn(*mut c_void)>, data: *mut c_void, mode: c_uint
    ) |core| {
        if mode > 1 {
            return Err(Code::INVALID_VALUE);
        }
        launch(core, stream, function, data)
    }
}

fn launch(
    mut core: Locked,
    stream: u64,
    function: Option<unsafe extern "C-unwind" fn(*mut c_void)>,
    data: *mut c_void,
) -> Result {
    let function = function.ok_or(Code::INVALID_VALUE)?;
    let stream = core.stream(stream)?;
    if core.is_recorded(stream)? {
        return core.add_captured(stream);
    }
    host_thread::start(&mut core)?;
    // SAFETY: the caller of the C function vouches for function and data.
    let function = unsafe { HostFunction::new(function, data) };
    let latency = fault::latency("cuLaunchHostFunc");
    core.streams
        .enqueue(stream, Task::Call(function), latency, Instant::now())
        .map(drop)
}

impl Core {
    /// The stream that C names, whose context has to be usable.
    pub(super) fn stream(&mut self, stream: u64) -> Result<u64> {
        let kind = match stream {
            0 if PerThread::is_on() => Kind::PerThread(Thread::current()),
            0 | STREAM_LEGACY => Kind::Legacy,
            STREAM_PER_THREAD => Kind::PerThread(Thread::current()),
            _ => {
                let context = self.streams.get(stream)?.context;
                self.usable(context)?;
                return Ok(stream);
            }
        };
        let context = self.contexts.usable()?;
        if matches!(kind, Kind::PerThread(_)) {
            // A thread that ends already has no later end to wait for: such a stream stays.
            let _ = END.try_with(|_| ());
        }
        Ok(self.streams.built_in(context, kind))
    }
}

/// Takes the default streams of a thread away when the thread ends.
struct End;

thread_local! {
    static END: End = const { End };
}

impl Drop for End {
    fn drop(&mut self) {
        if is_ready() {
            let thread = Thread::current();
            let mut core = Locked::new();
            core.drop_captures(|_, stream| stream.kind == Kind::PerThread(thread));
            core.streams.drop_thread(thread);
        }
    }
}

/// A pointer that is read and then written.
struct Exchanged(*mut c_int);

impl Exchanged {
    fn get(&self) -> Result<c_int> {
        super::In(self.0.cast_const()).get()
    }

    fn set(&self, value: c_int) -> Result {
        Out(self.0).set(value)
    }
}

fn create(core: &mut Core, stream: Out<u64>, flags: c_uint, priority: c_int) -> Result {
    stream.check()?;
    let kind = match flags {
        0 => Kind::Blocking,
        STREAM_NON_BLOCKING => Kind::NonBlocking,
        _ => return Err(Code::INVALID_VALUE),
    };
    let (context, _) = core.current()?;
    // One priority is emulated, and a real driver clamps to what it has.
    stream.set(core.streams.create(context, kind, priority.clamp(0, 0)))
}

fn capture_info(
    core: &Core,
    stream: u64,
    status: Out<c_int>,
    id: Out<u64>,
    graph: Out<u64>,
    nodes: Out<u64>,
    count: Out<usize>,
) -> Result {
    status.check()?;
    let (state, number) = core.capture_status(stream)?;
    let wanted = [graph.address(), nodes.address(), count.address()];
    if state == Status::Active && wanted.iter().any(|address| *address != 0) {
        // A graph under way has no handle here, and no nodes.
        return Err(Code::NOT_SUPPORTED);
    }
    status.set(state as c_int)?;
    id.set_if_wanted(number);
    graph.set_if_wanted(0);
    nodes.set_if_wanted(0);
    count.set_if_wanted(0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{context, entry};

    fn per_thread_streams() -> usize {
        let core = Locked::new();
        let kinds = core.streams.iter().map(|(_, stream)| stream.kind);
        kinds
            .filter(|kind| matches!(kind, Kind::PerThread(_)))
            .count()
    }

    #[test]
    fn a_thread_takes_its_default_streams_along_once_their_work_is_done() {
        let mut made = 0_u64;
        // SAFETY: a pointer to a local.
        unsafe {
            assert_eq!(entry::cuInit(0), Code::SUCCESS);
            let created = context::cuCtxCreate(Out::new(&mut made), 0, 0);
            assert_eq!(created, Code::SUCCESS);
        }
        let use_one = |context| {
            let calls = move || {
                // SAFETY: no pointers.
                unsafe {
                    assert_eq!(context::cuCtxSetCurrent(context), Code::SUCCESS);
                    assert_eq!(cuStreamQuery(STREAM_PER_THREAD), Code::SUCCESS);
                    assert_eq!(per_thread::cuStreamQuery(0), Code::SUCCESS);
                }
                per_thread_streams()
            };
            std::thread::spawn(calls)
        };
        for _ in 0..100 {
            assert_eq!(use_one(made).join().ok(), Some(1));
            assert_eq!(per_thread_streams(), 0);
        }
        let hold = move || {
            // SAFETY: no pointers.
            unsafe { context::cuCtxSetCurrent(made) };
            let mut core = Locked::new();
            core.hold_streams(true);
            let stream = core.stream(STREAM_PER_THREAD)?;
            let now = Instant::now();
            core.streams
                .enqueue(stream, Task::Nothing, std::time::Duration::ZERO, now)
        };
        assert!(
            std::thread::spawn(hold)
                .join()
                .is_ok_and(|queued| queued.is_ok())
        );
        assert_eq!(per_thread_streams(), 1, "its work is not done");
        Locked::new().hold_streams(false);
        assert_eq!(per_thread_streams(), 0);
    }
}
