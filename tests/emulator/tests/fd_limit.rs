//! At the process's limit of descriptors the driver cannot list which ones are open, and asks for one
//! after the other. What it does not see it does not take for closed.

mod common;

use common::{DEVICE, POSIX_FD, SIZE, limit, prop};
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, getrlimit};
use vmm_emulator::Config;
use vmm_sys::*;

/// Opens files until none can be opened any more.
fn use_up() -> Vec<OwnedFd> {
    let open = || rustix::fs::open("/dev/null", OFlags::RDONLY, Mode::empty()).ok();
    std::iter::from_fn(open).collect()
}

#[test]
fn memory_of_an_exported_descriptor_is_charged_also_at_the_limit_of_descriptors() {
    let emulator = Config::new().install().unwrap();
    let driver = emulator.driver().unwrap();
    let prop = CUmemAllocationProp {
        requestedHandleTypes: POSIX_FD,
        ..prop(DEVICE)
    };
    let used = || {
        let (mut free, mut total) = (0, 0);
        // SAFETY: pointers to locals.
        unsafe { driver.cuMemGetInfo(&mut free, &mut total) }.unwrap();
        let snapshot = emulator.snapshot();
        (total - free, snapshot.bytes, snapshot.exported_fds)
    };
    let (mut context, mut handle, mut fd) = (std::ptr::null_mut(), 0, -1_i32);
    // SAFETY: pointers to locals, handles of this driver, and a descriptor that becomes ours.
    let exported = unsafe {
        driver.cuInit(0).unwrap();
        driver.cuDevicePrimaryCtxRetain(&mut context, 0).unwrap();
        driver.cuCtxSetCurrent(context).unwrap();
        driver.cuMemCreate(&mut handle, SIZE, &prop, 0).unwrap();
        let kind = POSIX_FD;
        driver
            .cuMemExportToShareableHandle((&raw mut fd).cast(), handle, kind, 0)
            .unwrap();
        driver.cuMemRelease(handle).unwrap();
        OwnedFd::from_raw_fd(fd)
    };
    assert_eq!(used(), (SIZE, SIZE as u64, 1));
    let hard = getrlimit(Resource::Nofile).maximum;

    // The soft limit alone: the driver has room above it.
    limit(Resource::Nofile, 100, hard);
    let fillers = use_up();
    assert_eq!(used(), (SIZE, SIZE as u64, 1));
    let copy = rustix::io::fcntl_dupfd_cloexec(&exported, 0);
    assert!(copy.is_err(), "the program's limit is as before");
    drop(fillers);

    // The hard one too: nobody has room.
    limit(Resource::Nofile, 100, Some(100));
    let fillers = use_up();
    assert_eq!(used(), (SIZE, SIZE as u64, 1), "it was not forgotten");
    drop(exported);
    let mut fillers = Vec::from_iter(fillers.into_iter().chain(use_up()));
    // Before Linux 6.2 nobody can tell how many are open, and what may be is charged.
    let tells = rustix::fs::stat("/proc/self/fd").unwrap().st_size > 0;
    let left = usize::from(!tells);
    let closed = (left * SIZE, (left * SIZE) as u64, left);
    assert_eq!(used(), closed, "and seen to be closed");

    // Memory that is known here takes no further one when it is imported.
    fillers.truncate(fillers.len() - 3);
    let mut again = 0;
    // SAFETY: pointers to locals, handles of this driver, and a descriptor that becomes ours.
    let exported = unsafe {
        driver.cuMemCreate(&mut handle, SIZE, &prop, 0).unwrap();
        driver
            .cuMemExportToShareableHandle((&raw mut fd).cast(), handle, POSIX_FD, 0)
            .unwrap();
        OwnedFd::from_raw_fd(fd)
    };
    fillers.extend(use_up());
    assert_eq!(used(), (SIZE, SIZE as u64, 1));
    let import = |again: &mut u64| {
        let number = exported.as_raw_fd() as usize as *mut std::ffi::c_void;
        // SAFETY: a pointer to a local, and a descriptor that stays open.
        unsafe { driver.cuMemImportFromShareableHandle(again, number, POSIX_FD) }
    };
    import(&mut again).unwrap();
}
