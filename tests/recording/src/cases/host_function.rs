//! Functions of the program that a stream calls.

use super::{List, inside};
use crate::rig::{Called, G, Rig, code, d, setup};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::{Duration, Instant};
use vmm_sys::*;

/// A function that never hears from its case ends all the same.
const PATIENCE: Duration = Duration::from_secs(2);

/// What a case and its function say to each other.
pub struct Talk {
    /// The function may return.
    pub go: AtomicBool,
    pub returned: AtomicBool,
    pub calls: AtomicU32,
    thread: Mutex<Option<ThreadId>>,
    inside: Mutex<String>,
    ask: Box<dyn Fn() -> String + Send + Sync>,
}

impl Talk {
    pub fn new(go: bool, ask: impl Fn() -> String + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            go: AtomicBool::new(go),
            returned: AtomicBool::new(false),
            calls: AtomicU32::new(0),
            thread: Mutex::default(),
            inside: Mutex::default(),
            ask: Box::new(ask),
        })
    }

    pub fn launch(self: &Arc<Self>, r: &Rig, stream: CUstream) -> Called {
        let data = Arc::into_raw(self.clone()).cast::<c_void>().cast_mut();
        d!(r, cuLaunchHostFunc(stream, Some(called), data))
    }

    /// Lets the function return in a while, from another thread.
    pub fn let_go_later(self: &Arc<Self>) -> std::thread::JoinHandle<()> {
        let talk = self.clone();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            talk.go.store(true, SeqCst);
        })
    }

    /// Whether the same thread called both.
    fn was_called_where(&self, other: &Self) -> bool {
        let (one, two) = (self.thread.lock(), other.thread.lock());
        one.is_ok_and(|one| two.is_ok_and(|two| *one == *two))
    }

    fn inside(&self) -> String {
        self.inside
            .lock()
            .map_or_else(|_| String::new(), |text| text.clone())
    }
}

unsafe extern "C" fn called(data: *mut c_void) {
    // SAFETY: `launch` gave one count away for one call.
    let talk = unsafe { Arc::from_raw(data.cast_const().cast::<Talk>()) };
    let end = Instant::now() + PATIENCE;
    while !talk.go.load(SeqCst) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    let answer = (talk.ask)();
    if let (Ok(mut inside), Ok(mut thread)) = (talk.inside.lock(), talk.thread.lock()) {
        *inside = answer;
        *thread = Some(std::thread::current().id());
    }
    talk.calls.fetch_add(1, SeqCst);
    talk.returned.store(true, SeqCst);
}

pub fn add(list: &mut List) {
    list.add(
        "host function.null",
        "cuLaunchHostFunc of a null function",
        |r| {
            r.current()?;
            let stream = r.stream(1)?;
            Ok(code(d!(r, cuLaunchHostFunc(stream, None, null_mut()))))
        },
    );
    list.add(
        "host function.no stream",
        "cuLaunchHostFunc on the default stream without a context",
        |r| {
            let talk = Talk::new(true, String::new);
            Ok(code(talk.launch(r, null_mut())))
        },
    );
    list.add(
        "host function.launched",
        "a function that waits for the program, launched on a stream: the launch, what it saw of the stream before and after",
        |r| {
            r.current()?;
            let stream = r.stream(1)?;
            let talk = Talk::new(false, String::new);
            let launch = code(talk.launch(r, stream));
            let returned = talk.returned.load(SeqCst);
            let busy = code(d!(r, cuStreamQuery(stream)));
            talk.go.store(true, SeqCst);
            let waited = code(d!(r, cuStreamSynchronize(stream)));
            let own = talk.thread.lock().is_ok_and(|thread| *thread == Some(std::thread::current().id()));
            Ok(format!(
                "launch {launch}, function over {returned}, query {busy}; synchronize {waited}, function over {}, calls {}, on the caller's thread {own}",
                talk.returned.load(SeqCst),
                talk.calls.load(SeqCst),
            ))
        },
    );
    for (name, words, flags) in [
        ("other stream", "of a stream that does not wait", 1),
        ("blocking stream", "of a blocking stream", 0),
    ] {
        list.add(
            format!("host function.{name}"),
            format!("while a function {words} waits: query of the default stream, of another stream that does not wait"),
            move |r| {
                r.current()?;
                let (stream, other) = (r.stream(flags)?, r.stream(1)?);
                let talk = Talk::new(false, String::new);
                setup(talk.launch(r, stream))?;
                let at = r.mapped(&[G], 3)?;
                setup(d!(r, cuMemsetD8Async(at, 1, 16, other)))?;
                setup(d!(r, cuStreamSynchronize(other)))?;
                let default = code(d!(r, cuStreamQuery(null_mut())));
                let other = code(d!(r, cuStreamQuery(other)));
                talk.go.store(true, SeqCst);
                setup(d!(r, cuStreamSynchronize(stream)))?;
                Ok(format!("default {default}, other {other}"))
            },
        );
    }
    list.add(
        "host function.order",
        "memset, a function that waits, memset on one stream: the byte while it waits and after",
        |r| {
            r.current()?;
            let at = r.mapped(&[G], 3)?;
            let (stream, other) = (r.stream(1)?, r.stream(1)?);
            let talk = Talk::new(false, String::new);
            setup(d!(r, cuMemsetD8Async(at, 1, 16, stream)))?;
            setup(talk.launch(r, stream))?;
            setup(d!(r, cuMemsetD8Async(at, 2, 16, stream)))?;
            let read = |stream| {
                let mut byte = [0_u8; 1];
                // The function waits behind the first memset, which another stream does not.
                std::thread::sleep(Duration::from_millis(100));
                setup(d!(
                    r,
                    cuMemcpyDtoHAsync(byte.as_mut_ptr().cast(), at, 1, stream)
                ))?;
                setup(d!(r, cuStreamSynchronize(stream)))?;
                Ok::<u8, String>(byte[0])
            };
            let during = read(other)?;
            talk.go.store(true, SeqCst);
            let after = read(stream)?;
            Ok(format!("during {during}, after {after}"))
        },
    );
    list.add(
        "host function.event",
        "an event recorded after a function that waits: query before and after; a stream that waits for it",
        |r| {
            r.current()?;
            let (stream, other, event) = (r.stream(1)?, r.stream(1)?, r.event()?);
            let talk = Talk::new(false, String::new);
            setup(talk.launch(r, stream))?;
            setup(d!(r, cuEventRecord(event, stream)))?;
            setup(d!(r, cuStreamWaitEvent(other, event, 0)))?;
            let before = code(d!(r, cuEventQuery(event)));
            let waiting = code(d!(r, cuStreamQuery(other)));
            talk.go.store(true, SeqCst);
            setup(d!(r, cuStreamSynchronize(other)))?;
            Ok(format!(
                "event {before}, stream {waiting}; after the stream was waited for: event {}, function over {}",
                code(d!(r, cuEventQuery(event))),
                talk.returned.load(SeqCst),
            ))
        },
    );
    list.add(
        "host function.context",
        "cuCtxSynchronize behind a function",
        |r| {
            r.current()?;
            let stream = r.stream(1)?;
            let talk = Talk::new(false, String::new);
            setup(talk.launch(r, stream))?;
            let helper = talk.let_go_later();
            let waited = code(d!(r, cuCtxSynchronize()));
            let over = talk.returned.load(SeqCst);
            let _ = helper.join();
            Ok(format!("{waited}, function over {over}"))
        },
    );
    list.add(
        "host function.destroyed stream",
        "a stream destroyed while its function waits: the function is called to its end",
        |r| {
            r.current()?;
            let mut stream = null_mut();
            setup(d!(r, cuStreamCreate(&mut stream, 1)))?;
            let talk = Talk::new(false, String::new);
            setup(talk.launch(r, stream))?;
            let destroyed = code(d!(r, cuStreamDestroy(stream)));
            let before = talk.returned.load(SeqCst);
            talk.go.store(true, SeqCst);
            setup(d!(r, cuCtxSynchronize()))?;
            Ok(format!(
                "destroy {destroyed}, function over {before}; after cuCtxSynchronize {}",
                talk.returned.load(SeqCst)
            ))
        },
    );
    list.add(
        "host function.in a capture",
        "a function launched on a stream that captures: how often it is called",
        |r| {
            r.current()?;
            let stream = r.stream(1)?;
            let talk = Talk::new(true, String::new);
            setup(r.begin(stream, 0))?;
            let launch = code(talk.launch(r, stream));
            let ended = code(r.end(stream));
            setup(d!(r, cuStreamSynchronize(stream)))?;
            Ok(format!(
                "launch {launch}, end {ended}, calls {}",
                talk.calls.load(SeqCst)
            ))
        },
    );
    list.add(
        "host function.two streams",
        "a function that waits for the program, and one launched on another stream after it: whether that one is called meanwhile",
        |r| {
            r.current()?;
            let (stream, other) = (r.stream(1)?, r.stream(1)?);
            let (first, second) = (Talk::new(false, String::new), Talk::new(true, String::new));
            setup(first.launch(r, stream))?;
            setup(second.launch(r, other))?;
            std::thread::sleep(Duration::from_millis(300));
            let during = second.returned.load(SeqCst);
            first.go.store(true, SeqCst);
            setup(d!(r, cuStreamSynchronize(stream)))?;
            setup(d!(r, cuStreamSynchronize(other)))?;
            let same = first.was_called_where(&second);
            Ok(format!("called meanwhile {during}, on the same thread {same}"))
        },
    );
    list.add(
        "host function.later",
        "two functions on one stream, the second after the first was waited for: whether they were called on the same thread",
        |r| {
            r.current()?;
            let stream = r.stream(1)?;
            let (first, second) = (Talk::new(true, String::new), Talk::new(true, String::new));
            setup(first.launch(r, stream))?;
            setup(d!(r, cuStreamSynchronize(stream)))?;
            setup(second.launch(r, stream))?;
            setup(d!(r, cuStreamSynchronize(stream)))?;
            let same = first.was_called_where(&second);
            Ok(format!("on the same thread {same}"))
        },
    );
    list.add(
        "host function.its own stream",
        "cuStreamQuery and cuStreamGetFlags of the stream that calls the function, inside it",
        |r| {
            r.current()?;
            let stream = r.stream(1)?;
            let (driver, own) = (r.driver.clone(), stream as usize);
            let talk = Talk::new(true, move || {
                inside::of_its_own_stream(&driver, own as CUstream)
            });
            setup(talk.launch(r, stream))?;
            let waited = code(d!(r, cuStreamSynchronize(stream)));
            Ok(format!("{}; synchronize {waited}", talk.inside()))
        },
    );
    for (name, ask) in inside::CALLS {
        // What a forbidden call leaves behind is not known.
        list.alone(
            format!("host function.calls {name}"),
            format!("{name} inside a function that a stream calls"),
            move |r| {
                let things = inside::Things::make(r)?;
                let stream = r.stream(1)?;
                let driver = r.driver.clone();
                let talk = Talk::new(true, move || ask(&driver, &things));
                setup(talk.launch(r, stream))?;
                let waited = code(d!(r, cuStreamSynchronize(stream)));
                Ok(format!("{}; synchronize {waited}", talk.inside()))
            },
        );
    }
}
