//! Every owner can be closed, and says then what a drop would tell the hook.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use vmm::sys::CUresult;
use vmm::{Error, ErrorKind, Stream};

use super::exact;
use crate::emulated::{Calls, fail};
use crate::{Case, Context, Failure, cases};

pub const CASES: &[Case] = cases![
    invariant_11_every_owner_closes_and_leaves_nothing,
    invariant_11_every_owner_says_what_it_could_not_release: emulator_only(),
    invariant_11_a_close_says_that_kept_addresses_could_not_be_freed: emulator_only(),
    invariant_11_a_forked_child_waits_for_no_lock: emulator_only(),
    invariant_11_a_stream_is_not_destroyed_by_a_forked_child: emulator_only(),
    invariant_11_a_driver_cannot_be_loaded_in_a_forked_child: emulator_only(),
];

fn invariant_11_every_owner_closes_and_leaves_nothing(context: &Context) -> Result<(), Failure> {
    context.leaves_nothing(|| {
        let (allocator, granularity) = exact(context)?;
        let allocation = allocator.allocate_unmapped(granularity)?;
        allocation.clone().close()?;
        allocation.close()?;
        let buffer = allocator.allocate_with_capacity(granularity, 4 * granularity)?;
        let grown = buffer.grow(2 * granularity)?;
        buffer.slice(1..)?.close()?;
        buffer.close()?;
        grown.sleep().map_err(|f| f.error)?.close()?;
        let stream = Stream::new(&context.device()?)?;
        stream.clone().close()?;
        Ok(stream.close()?)
    })
}

/// A range that only a shrunk buffer kept, to grow into again.
fn invariant_11_a_close_says_that_kept_addresses_could_not_be_freed(
    context: &Context,
) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    // The emulator gives out what lies below: this leaves a place behind the next one.
    let above = allocator.allocate_with_capacity(0, 64 * granularity)?;
    let first = allocator.allocate_with_capacity(granularity, granularity)?;
    drop(above);
    let longer = first.grow(2 * granularity)?;
    assert_eq!(longer.address(), first.address(), "it moved");
    let short = longer.shrink(granularity)?;
    assert!(short.capacity() > granularity);
    drop(longer);
    let refused = fail(
        Calls::Of("cuMemAddressFree"),
        1,
        CUresult::CUDA_ERROR_UNKNOWN,
    );
    let errors = short.close().unwrap_err();
    assert_eq!(refused.fired(), 1);
    assert_eq!(errors.errors().len(), 1, "{errors}");
    Ok(first.close()?)
}

fn invariant_11_every_owner_says_what_it_could_not_release(
    context: &Context,
) -> Result<(), Failure> {
    static TOLD: AtomicUsize = AtomicUsize::new(0);
    let (allocator, granularity) = exact(context)?;
    let device = context.device()?;
    let driver = context.driver()?;
    driver.on_release_error(|_| {
        TOLD.fetch_add(1, Ordering::Relaxed);
    });
    let failing = |function| fail(Calls::Of(function), 1, CUresult::CUDA_ERROR_UNKNOWN);
    let code = |error: &Error| error.code();
    let unknown = Some(CUresult::CUDA_ERROR_UNKNOWN);

    let allocation = allocator.allocate_unmapped(granularity)?;
    let refused = failing("cuMemRelease");
    assert_eq!(allocation.close().as_ref().map_err(code), Err(unknown));
    drop(refused);

    let stream = Stream::new(&device)?;
    let refused = failing("cuStreamDestroy");
    assert_eq!(stream.close().as_ref().map_err(code), Err(unknown));
    drop(refused);

    let asleep = allocator.allocate(granularity)?.sleep();
    let asleep = asleep.map_err(|f| f.error)?;
    let refused = failing("cuMemAddressFree");
    let errors = asleep.close().unwrap_err();
    assert!(errors.errors().iter().map(code).eq([unknown]), "{errors}");
    drop(refused);

    // The driver once more, with a context of its own, by whoever has it last.
    for told in [false, true] {
        let again = vmm::Driver::new(vmm_emulator::driver()?)?;
        again.on_release_error(|_| {
            TOLD.fetch_add(1, Ordering::Relaxed);
        });
        again.device(0)?.memory_info()?;
        again.clone().close()?;
        let refused = failing("cuDevicePrimaryCtxRelease");
        if told {
            drop(again);
            assert_eq!(TOLD.swap(0, Ordering::Relaxed), 1, "the hook is told");
        } else {
            let errors = again.close().unwrap_err();
            assert!(errors.errors().iter().map(code).eq([unknown]), "{errors}");
        }
        drop(refused);
    }

    let slice = allocator.allocate(granularity)?.slice(..)?;
    let refused = failing("cuMemUnmap");
    // The call for all, and the one for each that follows it, are two.
    slice.close()?;
    drop(refused);

    assert_eq!(
        TOLD.load(Ordering::Relaxed),
        0,
        "what is returned is not told as well"
    );
    Ok(())
}

unsafe extern "C" {
    fn fork() -> i32;
    fn _exit(status: i32) -> !;
}

/// Whether the work in a forked child answers true, and does so soon.
fn in_child(work: impl FnOnce() -> bool) -> Result<bool, Failure> {
    use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
    // SAFETY: the child calls what is under test and `_exit`.
    let child = unsafe { fork() };
    if child == 0 {
        let good = work();
        // SAFETY: ends the child at once.
        unsafe { _exit(i32::from(!good)) };
    }
    let child = Pid::from_raw(child).ok_or_else(|| Failure::new("fork failed"))?;
    let start = Instant::now();
    loop {
        if let Some((_, status)) = waitpid(Some(child), WaitOptions::NOHANG)? {
            return Ok(status.exit_status() == Some(0));
        }
        if start.elapsed() > Duration::from_secs(10) {
            kill_process(child, Signal::KILL)?;
            waitpid(Some(child), WaitOptions::empty())?;
            return Err(Failure::new("the child hangs"));
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// A thread of the parent's holds locks of the crate most of the time, and is not there in a child.
fn invariant_11_a_forked_child_waits_for_no_lock(context: &Context) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let device = context.device()?;
    let driver = context.driver()?;
    let streams = [Stream::new(&device)?, Stream::new(&device)?];
    let buffer = allocator.allocate_with_capacity(granularity, 2 * granularity)?;
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut busy = buffer.alias();
            while !over.load(Ordering::Relaxed) {
                for stream in &streams {
                    busy.set_stream(Some(stream));
                    driver.on_release_error(|_| {});
                }
            }
        });
        let mut answer = Ok(true);
        for _ in 0..200 {
            answer = in_child(|| {
                let mut alias = buffer.alias();
                alias.set_stream(Some(&streams[0]));
                alias.set_stream(Some(&streams[1]));
                driver.on_release_error(|_| {});
                let forked = |result: vmm::Result<()>| {
                    result.is_err_and(|error| error.kind() == ErrorKind::Forked)
                };
                forked(alias.write(0, &[1])) && forked(alias.fill(0, 1, 1))
            });
            if !matches!(answer, Ok(true)) {
                break;
            }
        }
        over.store(true, Ordering::Relaxed);
        assert!(answer?, "the child was not refused");
        Ok(())
    })
}

fn invariant_11_a_stream_is_not_destroyed_by_a_forked_child(
    context: &Context,
) -> Result<(), Failure> {
    use crate::emulated::{start_trace, take_trace};
    let stream = Stream::new(&context.device()?)?;
    let closing = stream.clone();
    let silent = in_child(move || {
        start_trace();
        let refused = closing.close();
        drop(stream);
        let forked = refused.is_err_and(|error| error.kind() == ErrorKind::Forked);
        forked && take_trace().is_empty()
    })?;
    assert!(silent, "the child called the driver");
    Ok(())
}

fn invariant_11_a_driver_cannot_be_loaded_in_a_forked_child(
    context: &Context,
) -> Result<(), Failure> {
    context.device()?;
    let refused = in_child(|| {
        let again = vmm_emulator::driver().map(vmm::Driver::new);
        matches!(again, Ok(Err(error)) if error.kind() == ErrorKind::Forked)
    })?;
    assert!(refused, "the child got a driver, or another reason");
    Ok(())
}
