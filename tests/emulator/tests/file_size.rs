//! The program's bound for the size of its files is none for memory, and ends nobody.

mod common;

use common::{DEVICE, SIZE, limit, map, prop};
use rustix::process::{Resource, getrlimit};
use vmm_emulator::Config;
use vmm_sys::*;

#[test]
fn memory_is_made_and_written_whatever_the_bound_of_files() {
    let driver = Config::new().install().unwrap().driver().unwrap();
    let (mut context, mut handle) = (std::ptr::null_mut(), 0);
    // SAFETY: pointers to locals.
    unsafe {
        driver.cuInit(0).unwrap();
        driver.cuDevicePrimaryCtxRetain(&mut context, 0).unwrap();
        driver.cuCtxSetCurrent(context).unwrap();
    }
    let bytes = vec![7_u8; SIZE];
    // SAFETY: memory of that size.
    let copy = |address| unsafe { driver.cuMemcpyHtoD(address, bytes.as_ptr().cast(), SIZE) };
    // SAFETY: a pointer to a local.
    let mut create = || unsafe { driver.cuMemCreate(&mut handle, SIZE, &prop(DEVICE), 0) };

    let hard = getrlimit(Resource::Fsize).maximum;
    limit(Resource::Fsize, 100_000, hard);
    let address = map(&driver, DEVICE);
    copy(address).unwrap();
    // SAFETY: memory of that size.
    unsafe { driver.cuMemsetD8(address, 1, SIZE) }.unwrap();
    let after = getrlimit(Resource::Fsize);
    assert_eq!((after.current, after.maximum), (Some(100_000), hard));

    // The hard one too: there is no way, but an answer.
    limit(Resource::Fsize, 100_000, Some(100_000));
    let code = |called: Result<(), Error>| called.unwrap_err().code();
    for _ in 0..2 {
        let full = Some(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        assert_eq!(code(create()), full);
        let failed = Some(CUresult::CUDA_ERROR_OPERATING_SYSTEM);
        assert_eq!(code(copy(address)), failed);
    }
}
