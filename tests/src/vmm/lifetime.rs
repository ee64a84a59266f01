//! When memory and addresses go: invariants 1, 2 and 11.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use vmm::ErrorKind;
use vmm::sys::CUresult;

use super::{exact, expect_pattern, write_pattern};
use crate::emulated::{self, Calls};
use crate::{Case, Context, Failure, Link, Role, cases};

pub const CASES: &[Case] = cases![
    invariant_01_addresses_are_freed_when_their_buffer_goes,
    invariant_01_a_reservation_is_freed_once_and_after_its_mappings: emulator_only(),
    invariant_02_memory_goes_with_the_last_alias,
    invariant_02_memory_goes_with_the_last_buffer_that_has_the_chunk,
    invariant_02_a_clone_of_the_allocation_keeps_the_memory,
    invariant_02_an_allocation_is_released_once: emulator_only(),
    invariant_11_close_returns_what_could_not_be_released: emulator_only(),
    invariant_11_a_failing_drop_tells_the_hook_and_does_not_panic: emulator_only(),
    invariant_11_a_panicking_hook_does_not_leave_the_drop: emulator_only(),
    invariant_11_a_forked_child_is_refused_and_its_drops_do_nothing,
    invariant_11_the_end_of_the_process_is_silent,
];

pub const ROLES: &[Role] = &[Role {
    name: "vmm-leaves-buffers-to-the-end",
    run: leave_buffers,
}];

fn invariant_01_addresses_are_freed_when_their_buffer_goes(
    context: &Context,
) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    // Three times what there is: fails if an earlier one is still reserved.
    for _ in 0..3 * 128 {
        let buffer = allocator.allocate_with_capacity(granularity, 1 << 40)?;
        assert_eq!(buffer.capacity(), 1 << 40);
    }
    Ok(())
}

fn invariant_01_a_reservation_is_freed_once_and_after_its_mappings(
    context: &Context,
) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let buffer = allocator.allocate_with_capacity(granularity, 8 * granularity)?;
    let grown = buffer.grow(3 * granularity)?;
    let moved = buffer.grow(2 * granularity)?;
    assert_ne!(moved.address(), buffer.address());
    let reservations = emulated::live().reservations;
    emulated::start_trace();
    drop(buffer);
    drop(moved);
    assert_eq!(
        emulated::live().reservations,
        reservations - 1,
        "only that of the moved one"
    );
    drop(grown);
    let calls: Vec<_> = emulated::take_trace()
        .into_iter()
        .filter(|call| ["cuMemUnmap", "cuMemAddressFree"].contains(&call.function))
        .collect();
    assert!(
        calls
            .iter()
            .all(|call| call.code == vmm_emulator::Code::SUCCESS),
        "{calls:?}"
    );
    let names: Vec<&str> = calls.iter().map(|call| call.function).collect();
    assert_eq!(
        names
            .iter()
            .filter(|name| **name == "cuMemAddressFree")
            .count(),
        2,
        "{names:?}"
    );
    assert_eq!(names.last(), Some(&"cuMemAddressFree"), "{names:?}");
    Ok(())
}

fn invariant_02_memory_goes_with_the_last_alias(context: &Context) -> Result<(), Failure> {
    context.leaves_nothing(|| {
        let (allocator, granularity) = exact(context)?;
        let before = context.snapshot()?;
        let buffer = allocator.allocate(16 * granularity)?;
        write_pattern(&buffer, 1)?;
        let full = context.snapshot()?;
        assert_eq!(full.free(), before.free() - 16 * granularity);
        let alias = buffer.alias();
        let slice = buffer.slice(granularity..2 * granularity)?;
        drop(buffer);
        context.assert_as(&full)?;
        expect_pattern(&alias, alias.len(), 1)?;
        drop(alias);
        context.assert_as(&full)?;
        drop(slice);
        context.assert_as(&before)
    })
}

fn invariant_02_memory_goes_with_the_last_buffer_that_has_the_chunk(
    context: &Context,
) -> Result<(), Failure> {
    context.leaves_nothing(|| {
        let (allocator, granularity) = exact(context)?;
        let free = || Ok::<_, Failure>(context.snapshot()?.free());
        let start = free()?;
        let buffer = allocator.allocate(4 * granularity)?;
        let grown = buffer.grow(6 * granularity)?;
        assert_eq!(
            start - free()?,
            6 * granularity,
            "the chunk is shared, not copied"
        );
        drop(buffer);
        assert_eq!(start - free()?, 6 * granularity);
        let shrunk = grown.shrink(4 * granularity)?;
        assert_eq!(start - free()?, 6 * granularity);
        drop(grown);
        assert_eq!(
            start - free()?,
            4 * granularity,
            "the tail went with its last buffer"
        );
        drop(shrunk);
        assert_eq!(free()?, start);
        Ok(())
    })
}

fn invariant_02_a_clone_of_the_allocation_keeps_the_memory(
    context: &Context,
) -> Result<(), Failure> {
    context.leaves_nothing(|| {
        let (allocator, granularity) = exact(context)?;
        let buffer = allocator.allocate(granularity)?;
        write_pattern(&buffer, 2)?;
        let chunk = buffer.chunks().next().map(|chunk| chunk.allocation.clone());
        let chunk = chunk.ok_or_else(|| Failure::new("a buffer without a chunk"))?;
        let options = vmm::MapOptions::default();
        drop(buffer);
        let again =
            vmm::Buffer::from_allocations(&context.device()?, vec![chunk], granularity, &options)?;
        expect_pattern(&again, granularity, 2)
    })
}

fn invariant_02_an_allocation_is_released_once(context: &Context) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let buffer = allocator.allocate_with_capacity(granularity, 8 * granularity)?;
    let others = [
        buffer.alias(),
        buffer.grow(2 * granularity)?,
        buffer.grow(3 * granularity)?,
    ];
    emulated::start_trace();
    drop(buffer);
    drop(others);
    let released: Vec<_> = emulated::take_trace()
        .into_iter()
        .filter(|call| call.function == "cuMemRelease")
        .collect();
    assert_eq!(released.len(), 3, "{released:?}");
    assert!(
        released
            .iter()
            .all(|call| call.code == vmm_emulator::Code::SUCCESS),
        "{released:?}"
    );
    Ok(())
}

fn invariant_11_close_returns_what_could_not_be_released(context: &Context) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let hook = count_hook(context)?;
    for function in ["cuMemUnmap", "cuMemRelease", "cuMemAddressFree"] {
        let buffer = allocator.allocate(granularity)?;
        let failing = emulated::fail_all(Calls::Of(function), CUresult::CUDA_ERROR_UNKNOWN);
        let Err(error) = buffer.close() else {
            return Err(Failure::new(format!(
                "{function} failed and nobody said so"
            )));
        };
        assert!(failing.fired() > 0);
        assert!(error.to_string().contains(function), "{error}");
        assert_eq!(error.errors()[0].code(), Some(CUresult::CUDA_ERROR_UNKNOWN));
    }
    assert_eq!(hook.load(Ordering::Relaxed), 0, "told twice");
    allocator.allocate(granularity)?.close()?;
    Ok(())
}

fn invariant_11_a_failing_drop_tells_the_hook_and_does_not_panic(
    context: &Context,
) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let hook = count_hook(context)?;
    for (number, function) in ["cuMemUnmap", "cuMemRelease", "cuMemAddressFree"]
        .iter()
        .enumerate()
    {
        let buffer = allocator.allocate(granularity)?;
        let failing = emulated::fail_all(Calls::Of(function), CUresult::CUDA_ERROR_UNKNOWN);
        drop(buffer);
        assert!(failing.fired() > 0);
        assert!(hook.load(Ordering::Relaxed) > number, "{function}");
    }
    let told = hook.load(Ordering::Relaxed);
    let failing = emulated::fail_all(Calls::Of("cuMemUnmap"), CUresult::CUDA_ERROR_DEINITIALIZED);
    drop(allocator.allocate(granularity)?);
    assert!(failing.fired() > 0);
    assert_eq!(
        hook.load(Ordering::Relaxed),
        told,
        "the end of the process is silent"
    );
    Ok(())
}

fn invariant_11_a_panicking_hook_does_not_leave_the_drop(context: &Context) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    context.driver()?.on_release_error(|_| panic!("on purpose"));
    let buffer = allocator.allocate(granularity)?;
    let _failing = emulated::fail_all(Calls::Of("cuMemUnmap"), CUresult::CUDA_ERROR_UNKNOWN);
    drop(buffer);
    Ok(())
}

fn count_hook(context: &Context) -> Result<Arc<AtomicUsize>, Failure> {
    let told = Arc::new(AtomicUsize::new(0));
    let counter = told.clone();
    context.driver()?.on_release_error(move |_| {
        counter.fetch_add(1, Ordering::Relaxed);
    });
    Ok(told)
}

fn invariant_11_a_forked_child_is_refused_and_its_drops_do_nothing(
    context: &Context,
) -> Result<(), Failure> {
    unsafe extern "C" {
        fn fork() -> i32;
        fn _exit(status: i32) -> !;
    }
    let (allocator, granularity) = exact(context)?;
    let hook = count_hook(context)?;
    let buffer = allocator.allocate(2 * granularity)?;
    let kept = buffer.alias();
    write_pattern(&buffer, 3)?;
    let other = allocator.allocate(granularity)?;
    let mut asleep = Some(other.sleep().map_err(|f| f.error)?);
    let before = context.snapshot()?;
    // SAFETY: the child of this process, which has no other threads that hold locks of its own,
    // calls only what is under test and `_exit`.
    let child = unsafe { fork() };
    if child == 0 {
        let forked = |result: Result<(), vmm::Error>| matches!(result, Err(error) if error.kind() == ErrorKind::Forked);
        let refused = forked(allocator.allocate(granularity).map(drop))
            && forked(buffer.grow(3 * granularity).map(drop))
            && forked(buffer.read(0, &mut [0; 8]))
            && forked(match asleep.take() {
                Some(asleep) => asleep.wake().map(drop).map_err(|f| f.error),
                None => Ok(()),
            });
        drop(buffer);
        drop(kept);
        drop(allocator);
        let silent = hook.load(Ordering::Relaxed) == 0;
        let status = i32::from(!refused) + 2 * i32::from(!silent);
        // SAFETY: ends the child at once.
        unsafe { _exit(status) };
    }
    let pid = rustix::process::Pid::from_raw(child).ok_or_else(|| Failure::new("fork failed"))?;
    let (_, status) = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty())?
        .ok_or_else(|| Failure::new("the child did not end"))?;
    assert_eq!(
        status.exit_status(),
        Some(0),
        "1: not refused, 2: not silent, else it crashed"
    );
    context.assert_as(&before)?;
    expect_pattern(&buffer, buffer.len(), 3)?;
    drop((buffer, kept, asleep));
    assert_eq!(hook.load(Ordering::Relaxed), 0);
    Ok(())
}

fn invariant_11_the_end_of_the_process_is_silent(context: &Context) -> Result<(), Failure> {
    let mut peer = context.peer("vmm-leaves-buffers-to-the-end")?;
    peer.expect("allocated")?;
    peer.finish()
}

fn leave_buffers(context: &Context, mut link: Link) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    context.driver()?.on_release_error(|error| {
        eprintln!("told at the end: {error}");
        std::process::abort();
    });
    std::mem::forget(allocator.allocate(granularity)?);
    let kept = allocator.allocate(granularity)?;
    std::thread::spawn(move || {
        // Still held when the process ends under it.
        let _kept = kept;
        std::thread::park();
    });
    link.say("allocated")
}
