//! What waits for functions of the program that streams call, and what does not.

use super::List;
use super::belongings::{ENDS, begin};
use super::host_function::Talk;
use crate::rig::{G, Rig, code, d, setup};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;
use vmm_sys::*;

pub fn add(list: &mut List) {
    for (name, words) in [
        ("cuMemAlloc", "of memory"),
        ("cuMemAllocHost", "of memory"),
        ("cuMemFree", "of other memory"),
        ("cuMemFreeHost", "of other memory"),
        ("cuMemHostRegister", "of memory of the program"),
        ("cuMemHostUnregister", "of memory of the program"),
        ("cuMemUnmap", "of other memory"),
        ("cuMemRelease", "of other memory"),
        ("cuEventDestroy", "of an event recorded behind it"),
    ] {
        list.alone(
            format!("host function.{name} meanwhile"),
            format!(
                "{name} {words} while a function waits: whether the function had to return first"
            ),
            move |r| meanwhile(r, name),
        );
    }
    for (what, words) in [
        (
            "stream",
            "a stream that another thread waits for is destroyed while its function waits",
        ),
        (
            "event",
            "an event that another thread waits for is destroyed while the function before it waits",
        ),
    ] {
        list.alone(
            format!("host function.awaited {what}"),
            format!(
                "{words}: the answer to the one who waits, and whether the function was over then"
            ),
            move |r| {
                r.current()?;
                let (mut stream, mut event) = (null_mut(), null_mut());
                setup(d!(r, cuStreamCreate(&mut stream, 1)))?;
                setup(d!(r, cuEventCreate(&mut event, 0)))?;
                let talk = Talk::new(false, String::new);
                setup(talk.launch(r, stream))?;
                setup(d!(r, cuEventRecord(event, stream)))?;
                let (driver, there) = (r.driver.clone(), talk.clone());
                let (awaited, of_event) = ((stream as usize, event as usize), what == "event");
                let waiting = std::thread::spawn(move || {
                    // SAFETY: both are alive when this begins; what becomes of it is the question.
                    let waited = code(unsafe {
                        match of_event {
                            true => driver.cuEventSynchronize(awaited.1 as CUevent),
                            false => driver.cuStreamSynchronize(awaited.0 as CUstream),
                        }
                    });
                    (waited, there.returned.load(SeqCst))
                });
                std::thread::sleep(Duration::from_millis(100));
                let destroyed = code(match of_event {
                    true => d!(r, cuEventDestroy(event)),
                    false => d!(r, cuStreamDestroy(stream)),
                });
                std::thread::sleep(Duration::from_millis(100));
                talk.go.store(true, SeqCst);
                let (waited, over) = waiting.join().map_err(|_| "the waiting thread panicked")?;
                Ok(format!(
                    "destroy {destroyed}; wait {waited}, function over {over}"
                ))
            },
        );
    }
    for end in ENDS {
        list.alone(
            format!("host function.at {end}"),
            format!("{end} while a function of a stream waits, with another one behind it: whether the first had to return, calls of each a while later"),
            move |r| {
                let context = begin(r, end)?;
                let mut stream = null_mut();
                setup(d!(r, cuStreamCreate(&mut stream, 1)))?;
                let (first, second) = (Talk::new(false, String::new), Talk::new(true, String::new));
                setup(first.launch(r, stream))?;
                setup(second.launch(r, stream))?;
                std::thread::sleep(Duration::from_millis(100));
                let let_go = first.let_go_later();
                let ended = code(match end {
                    "cuCtxDestroy" => d!(r, cuCtxDestroy(context)),
                    "cuDevicePrimaryCtxRelease" => d!(r, cuDevicePrimaryCtxRelease(0)),
                    _ => d!(r, cuDevicePrimaryCtxReset(0)),
                });
                let over = first.returned.load(SeqCst);
                let _ = let_go.join();
                std::thread::sleep(Duration::from_millis(200));
                Ok(format!(
                    "{ended}, function over {over}; later {} and {}",
                    first.calls.load(SeqCst),
                    second.calls.load(SeqCst)
                ))
            },
        );
    }
    list.alone(
        "host function.relaunched",
        "a function that launches itself anew until the program says so: whether cuStreamSynchronize and cuCtxSynchronize wait for those launched since",
        |r| {
            r.current()?;
            let stream = r.stream(1)?;
            let again: Arc<Again> = Arc::new(Again {
                driver: r.driver.clone(),
                stream: stream as usize,
                calls: AtomicU32::new(0),
            });
            let data = Arc::into_raw(again.clone()).cast::<c_void>().cast_mut();
            setup(d!(r, cuLaunchHostFunc(stream, Some(call_again), data)))?;
            setup(d!(r, cuStreamSynchronize(stream)))?;
            let of_stream = again.calls.load(SeqCst) < MOST_AGAIN;
            setup(d!(r, cuCtxSynchronize()))?;
            let of_context = again.calls.load(SeqCst) < MOST_AGAIN;
            while again.calls.load(SeqCst) < MOST_AGAIN {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(format!(
                "back before the last: stream {of_stream}, context {of_context}"
            ))
        },
    );
}

/// What a function that launches itself knows.
struct Again {
    driver: Arc<Driver>,
    stream: usize,
    calls: AtomicU32,
}

/// Calls of a function that launches itself, of 10 milliseconds each.
const MOST_AGAIN: u32 = 50;

unsafe extern "C" fn call_again(data: *mut c_void) {
    // SAFETY: the count that the case gave away is kept by the last call.
    let again = unsafe { &*data.cast_const().cast::<Again>() };
    std::thread::sleep(Duration::from_millis(10));
    if again.calls.fetch_add(1, SeqCst) + 1 < MOST_AGAIN {
        let stream = again.stream as CUstream;
        // SAFETY: the stream is alive until the last call, and so is what the function takes.
        let _ = unsafe {
            again
                .driver
                .cuLaunchHostFunc(stream, Some(call_again), data)
        };
    }
}

/// A page of the program.
#[repr(align(4096))]
struct Page([u8; 4096]);

fn meanwhile(r: &mut Rig, name: &str) -> Result<String, String> {
    r.current()?;
    let stream = r.stream(1)?;
    let (mut linear, mut host, mut event) = (0, null_mut(), null_mut());
    let (mut given, mut given_host) = (0, null_mut());
    setup(d!(r, cuMemAlloc(&mut linear, G)))?;
    setup(d!(r, cuMemAllocHost(&mut host, 4096)))?;
    setup(d!(r, cuEventCreate(&mut event, 0)))?;
    let at = r.mapped(&[G], 3)?;
    let handle = r.memory(G)?;
    let mut own = Box::new(Page([0; 4096]));
    let own = own.0.as_mut_ptr().cast::<c_void>();
    if name == "cuMemHostUnregister" {
        setup(d!(r, cuMemHostRegister(own, 4096, 0)))?;
    }
    let talk = Talk::new(false, String::new);
    setup(talk.launch(r, stream))?;
    setup(d!(r, cuEventRecord(event, stream)))?;
    let let_go = talk.let_go_later();
    let called = code(match name {
        "cuMemAlloc" => d!(r, cuMemAlloc(&mut given, G)),
        "cuMemAllocHost" => d!(r, cuMemAllocHost(&mut given_host, 4096)),
        "cuMemFree" => d!(r, cuMemFree(linear)),
        "cuMemFreeHost" => d!(r, cuMemFreeHost(host)),
        "cuMemHostRegister" => d!(r, cuMemHostRegister(own, 4096, 0)),
        "cuMemHostUnregister" => d!(r, cuMemHostUnregister(own)),
        "cuMemUnmap" => r.unmap(at, G),
        "cuMemRelease" => r.release(handle),
        _ => d!(r, cuEventDestroy(event)),
    });
    let over = talk.returned.load(SeqCst);
    let _ = let_go.join();
    setup(d!(r, cuStreamSynchronize(stream)))?;
    if name == "cuMemHostRegister" {
        setup(d!(r, cuMemHostUnregister(own)))?;
    }
    Ok(format!("{called}, function over {over}"))
}
