//! The library has every function of the table and of `cuda.h`, under the name that a real one
//! exports, and refuses what it does not do.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, c_int, c_void};
use std::ptr::null_mut;
use std::sync::Mutex;
use vmm_emulator::{Calls, Code, Config, Emulator, exported, get_proc_address};
use vmm_sys::{CUresult, SYMBOLS};

/// Name, version and exported name of every form that the emulator does not do.
macro_rules! list {
    ($($name:ident $tag:literal $export:ident;)*) => {
        const MISSING: &[(&str, c_int, &str)] = &[$((stringify!($name), $tag, stringify!($export)),)*];
    };
}

vmm_emulator::for_each_missing!(list);

/// The newest version of the list.
const NEWEST: c_int = 13_050;

/// None of them looks at its arguments.
type Refused = unsafe extern "C" fn() -> Code;

fn emulator() -> Emulator {
    static ONE: Mutex<Option<Emulator>> = Mutex::new(None);
    *ONE.lock()
        .unwrap()
        .get_or_insert_with(|| Config::new().driver_version(NEWEST).install().unwrap())
}

/// The function and the `CUdriverProcAddressQueryResult`.
fn find(name: &str, version: c_int, flags: u64) -> (Option<Refused>, u32) {
    let name = CString::new(name).unwrap();
    let mut function = null_mut();
    let mut status = vmm_sys::CUdriverProcAddressQueryResult(9);
    // SAFETY: a C string and pointers to locals.
    let code =
        unsafe { get_proc_address(name.as_ptr(), &mut function, version, flags, &mut status) };
    assert_eq!(code, CUresult::CUDA_SUCCESS);
    // SAFETY: null, or a function of the emulator; only those of the list are called.
    let function = unsafe { std::mem::transmute::<*mut c_void, Option<Refused>>(function) };
    (function, status.0)
}

fn call(name: &str, version: c_int, flags: u64) -> Code {
    let (function, status) = find(name, version, flags);
    assert_eq!(status, 0, "{name} at {version}");
    // SAFETY: one of the list.
    unsafe { function.unwrap()() }
}

fn flags(export: &str) -> u64 {
    match export.ends_with("_ptds") || export.ends_with("_ptsz") {
        true => 2,
        false => 1,
    }
}

#[test]
fn every_symbol_of_the_table_is_exported_and_resolves() {
    let names: BTreeSet<&str> = exported().collect();
    assert_eq!(names.len(), exported().count(), "a name is exported twice");
    let lacking: Vec<&str> = SYMBOLS
        .iter()
        .map(|symbol| symbol.export)
        .filter(|export| !names.contains(export))
        .collect();
    assert!(lacking.is_empty(), "not exported: {lacking:?}");
    let driver = emulator().driver().unwrap();
    let lacking: Vec<_> = driver
        .symbols()
        .filter(|resolved| !resolved.found)
        .map(|resolved| resolved.symbol.export)
        .collect();
    assert!(lacking.is_empty(), "not resolved: {lacking:?}");
}

#[test]
fn what_the_emulator_does_not_do_is_found_and_refused_and_counted() {
    let emulator = emulator();
    let refuse_all = |expected| {
        for (name, tag, export) in MISSING {
            assert_eq!(call(name, *tag, flags(export)), expected, "{export}");
        }
    };
    refuse_all(Code::NOT_INITIALIZED);
    let driver = emulator.driver().unwrap();
    // SAFETY: no obligations.
    unsafe { driver.cuInit(0) }.unwrap();
    refuse_all(Code::NOT_SUPPORTED);
    let mut calls: BTreeMap<&str, u64> = BTreeMap::new();
    for (name, ..) in MISSING {
        *calls.entry(name).or_default() += 2;
    }
    for (name, count) in calls {
        assert_eq!(emulator.calls(name), count, "{name}");
    }

    let failure = emulator.fail_nth(Calls::Of("cuMemcpy2D"), 2, Code::OUT_OF_MEMORY);
    let copy = || call("cuMemcpy2D", 3020, 1);
    let full = Code::OUT_OF_MEMORY;
    assert_eq!(
        [copy(), copy(), copy()],
        [Code::NOT_SUPPORTED, full, Code::NOT_SUPPORTED]
    );
    drop(failure);

    static ANSWERS: Mutex<Vec<Code>> = Mutex::new(Vec::new());
    unsafe extern "C" fn inside(_: *mut c_void) {
        let answers = [
            call("cuMemcpy2D", 3020, 1),
            call("cuStreamAddCallback", 5000, 1),
        ];
        ANSWERS.lock().unwrap().extend(answers);
    }
    let (mut context, mut stream) = (null_mut(), null_mut());
    // SAFETY: pointers to locals, objects of this driver, and a function that needs no data.
    unsafe {
        driver.cuDevicePrimaryCtxRetain(&mut context, 0).unwrap();
        driver.cuCtxSetCurrent(context).unwrap();
        driver.cuStreamCreate(&mut stream, 0).unwrap();
        driver
            .cuLaunchHostFunc(stream, Some(inside), null_mut())
            .unwrap();
        driver.cuStreamSynchronize(stream).unwrap();
    }
    assert_eq!(
        *ANSWERS.lock().unwrap(),
        [Code::NOT_PERMITTED, Code::NOT_SUPPORTED]
    );
}

#[test]
fn a_function_is_found_from_its_first_version_on() {
    emulator();
    assert_eq!(find("cuArrayCreate", 1990, 1), (None, 2));
    assert_eq!(find("cuArrayCreate", 2000, 1).1, 0);
    assert_eq!(find("cuArrayCreate_v2", 12_000, 1), (None, 1));
    assert_eq!(find("cuGraphInstantiate", 12_000, 1).1, 0);
    // The forms for per-thread streams of functions older than CUDA 7.0 came with it.
    assert_eq!(find("cuMemcpy2D", 3020, 2), (None, 2));
    assert_eq!(find("cuMemcpy2D", 7000, 2).1, 0);
    assert_eq!(find("cuArrayCreate", 3020, 2).1, 0);
    // A later form is another function.
    assert_ne!(
        find("cuArrayCreate", 3010, 1),
        find("cuArrayCreate", 3020, 1)
    );
}
