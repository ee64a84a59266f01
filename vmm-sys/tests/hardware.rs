//! What only a real driver can prove. Without one these fail:
//! `cargo test -p vmm-sys --test hardware -- --ignored`.

use std::ffi::{c_char, c_int};

use vmm_sys::{CUcontext, CUdevice, CUresult, Driver, LoadOptions, Resolved};

fn missing(driver: &Driver) -> Vec<Resolved> {
    driver.symbols().filter(|symbol| !symbol.found).collect()
}

#[test]
#[ignore = "needs a GPU"]
fn every_symbol_that_the_driver_should_have_resolves() {
    for options in [
        LoadOptions::new(),
        LoadOptions::new().per_thread_default_stream(true),
    ] {
        let driver = options.load().unwrap();
        assert!(!driver.is_emulator());
        let version = driver.version();
        let lost: Vec<_> = missing(&driver)
            .into_iter()
            .filter(|resolved| resolved.symbol.tag as i32 <= version)
            .collect();
        assert!(lost.is_empty(), "{options:?}: CUDA {version}: {lost:?}");
    }
}

#[test]
#[ignore = "needs a GPU"]
fn the_names_of_codes_are_those_of_the_driver() {
    let driver = Driver::load().unwrap();
    let mut compared = 0;
    for code in (0..1000).map(CUresult) {
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: the out pointer is a live local.
        if unsafe { driver.cuGetErrorName(code, &mut text) }.is_err() {
            continue; // A code that this driver does not know.
        }
        // SAFETY: the driver's names are constants.
        let theirs = unsafe { std::ffi::CStr::from_ptr(text) };
        assert_eq!(code.name(), theirs.to_str().ok(), "{}", code.0);
        compared += 1;
    }
    assert!(compared > 80, "only {compared} codes");
}

#[test]
#[ignore = "needs a GPU"]
fn a_copy_through_either_default_stream_brings_back_what_was_set() {
    for options in [
        LoadOptions::new(),
        LoadOptions::new().per_thread_default_stream(true),
    ] {
        let driver = options.load().unwrap();
        let (mut device, mut context): (CUdevice, CUcontext) = (0, std::ptr::null_mut());
        let (mut address, mut read) = (0, [0_u8; 4096]);
        let null = std::ptr::null_mut();
        // SAFETY: out pointers are live locals, sizes are those of the allocation and the array, and
        // what is made is destroyed once, at the end.
        unsafe {
            driver.cuInit(0).unwrap();
            driver.cuDeviceGet(&mut device, 0).unwrap();
            driver
                .cuDevicePrimaryCtxRetain(&mut context, device)
                .unwrap();
            driver.cuCtxPushCurrent(context).unwrap();
            driver.cuMemAlloc(&mut address, read.len()).unwrap();
            driver
                .cuMemsetD8Async(address, 7, read.len(), null)
                .unwrap();
            driver
                .cuMemcpyDtoHAsync(read.as_mut_ptr().cast(), address, read.len(), null)
                .unwrap();
            driver.cuStreamSynchronize(null).unwrap();
            driver.cuMemFree(address).unwrap();
            driver.cuCtxPopCurrent(&mut context).unwrap();
            driver.cuDevicePrimaryCtxRelease(device).unwrap();
        }
        assert!(read.iter().all(|&byte| byte == 7), "{options:?}");
    }
}

#[test]
#[ignore = "needs a GPU"]
fn the_version_is_what_the_driver_says() {
    let driver = Driver::load().unwrap();
    let mut version: c_int = 0;
    // SAFETY: the out pointer is a live local.
    unsafe { driver.cuDriverGetVersion(&mut version) }.unwrap();
    assert_eq!(driver.version(), version);
}
