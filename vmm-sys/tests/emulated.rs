//! The emulator as the drivers of CUDA 10.2, 11.3, 12.0 and 13.0: what resolves, what is missing,
//! and what a call of it answers, for every symbol. The emulator is one per process, so each case
//! is a process of its own.

#[path = "common/calls.rs"]
mod calls;
mod common;

use std::env;
use std::ffi::{CString, c_void};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Failed, Trial};
use vmm_emulator::{Config, get_proc_address};
use vmm_sys::{CUdevice, CUresult, Driver, ErrorKind, SYMBOLS};

const VERSIONS: [i32; 4] = [10020, 11030, 12000, 13000];
/// Set in the process of a case: the driver's version and the door.
const CASE: &str = "VMM_SYS_EMULATED";

fn main() -> ExitCode {
    if let Ok(case) = env::var(CASE) {
        check(&case);
        return ExitCode::SUCCESS;
    }
    let arguments = Arguments::from_args();
    let mut trials = Vec::new();
    for version in VERSIONS {
        for door in ["function", "library"] {
            let case = format!("{version}-{door}");
            let name = format!("cuda_{version}_by_{door}_has_what_came_with_it_or_before");
            trials.push(Trial::test(name, move || in_a_process(&case)));
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn in_a_process(case: &str) -> Result<(), Failed> {
    let output = Command::new(env::current_exe()?).env(CASE, case).output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned().into()),
    }
}

fn check(case: &str) {
    let (version, door) = case.split_once('-').unwrap();
    let version = version.parse().unwrap();
    Config::new().driver_version(version).install().unwrap();
    let driver = match door {
        // SAFETY: the emulator is a driver, and part of this program.
        "function" => unsafe { Driver::from_get_proc_address(get_proc_address) },
        // SAFETY: the library leads to the emulator, and keeps its slots while it is loaded.
        _ => unsafe { Driver::load_from(library(version)) },
    }
    .unwrap();
    assert_eq!(driver.version(), version);
    // The library of 10.2 exports the table only, and so not the private name.
    assert_eq!(driver.is_emulator(), door == "function" || version >= 11030);
    let mut missing = 0;
    for resolved in driver.symbols() {
        let symbol = resolved.symbol;
        let since = symbol.tag;
        assert_eq!(resolved.found, since as i32 <= version, "{symbol:?}");
        if resolved.found {
            assert_eq!(resolved.why_not(), None);
            continue;
        }
        missing += 1;
        assert!(resolved.why_not().unwrap().contains("it came with CUDA"));
        // SAFETY: the driver lacks it.
        let answer = unsafe { calls::call(&driver, symbol.method) };
        let error = answer.expect("every symbol has a method").unwrap_err();
        let kind = ErrorKind::Missing {
            since,
            driver_version: version,
        };
        assert_eq!((error.symbol(), error.kind()), (symbol.name, kind));
        let digits = |number: i32| format!("{}.{}", number / 1000, number % 1000 / 10);
        let text = format!(
            "the driver has no {}, which came with CUDA {}: it implements {}",
            symbol.name,
            digits(since as i32),
            digits(version)
        );
        assert_eq!(error.to_string(), text);
    }
    let newest = SYMBOLS.iter().map(|symbol| symbol.tag as i32).max();
    assert_eq!(missing == 0, newest <= Some(version));
    answers(&driver);
}

/// What resolved is the emulator's.
fn answers(driver: &Driver) {
    let (mut count, mut device): (i32, CUdevice) = (0, 0);
    // SAFETY: the out pointers are live locals.
    let refused = unsafe {
        driver.cuInit(0).unwrap();
        driver.cuDeviceGetCount(&mut count).unwrap();
        driver.cuDeviceGet(&mut device, count)
    };
    assert_eq!(count, 1);
    let code = refused.unwrap_err().code();
    assert_eq!(code, Some(CUresult::CUDA_ERROR_INVALID_DEVICE));
}

/// A `libcuda.so.1` of this version that leads to the emulator of this process. It exports what a
/// driver of that version is found by, each as a jump through a slot.
fn library(version: i32) -> PathBuf {
    let exports: Vec<(&str, &str, i32)> = match version {
        12000.. => vec![("cuGetProcAddress_v2", "cuGetProcAddress", 12000)],
        11030.. => vec![("cuGetProcAddress", "cuGetProcAddress", 11030)],
        _ => SYMBOLS
            .iter()
            .map(|symbol| (symbol.export, symbol.name, symbol.tag as i32))
            .filter(|&(_, _, tag)| tag <= version)
            .collect(),
    };
    let mut source = format!(
        "__attribute__((visibility(\"hidden\"))) void *slots[{}];\n\
         void set(int slot, void *function) {{ slots[slot] = function; }}\n__asm__(\".text\\n\"\n",
        exports.len()
    );
    for (slot, (export, ..)) in exports.iter().enumerate() {
        let offset = slot * 8;
        let jump = match env::consts::ARCH {
            "aarch64" => format!(
                "adrp x16, slots\\n add x16, x16, :lo12:slots\\n ldr x16, [x16, #{offset}]\\n br x16"
            ),
            _ => format!("jmp *slots+{offset}(%rip)"),
        };
        let head = format!(".globl {export}\\n.type {export}, %function\\n{export}:");
        let _ = writeln!(source, "\"{head} {jump}\\n\"");
    }
    source.push_str(");\n");
    let path = common::compile(&format!("emulated-{version}"), &source);
    fill(&path, &exports);
    path
}

fn fill(path: &Path, exports: &[(&str, &str, i32)]) {
    // SAFETY: the library was made above, and its initialisers do nothing.
    let library = unsafe { libloading::Library::new(path) }.unwrap();
    // SAFETY: that is the type of `set`.
    let set = unsafe { library.get::<unsafe extern "C" fn(i32, *mut c_void)>(b"set") }.unwrap();
    for (slot, &(_, name, tag)) in exports.iter().enumerate() {
        let name = CString::new(name).unwrap();
        let mut function = std::ptr::null_mut();
        let status = std::ptr::null_mut();
        // SAFETY: a C string, a live local, and no status.
        let code = unsafe { get_proc_address(name.as_ptr(), &mut function, tag, 1, status) };
        assert_eq!(code, CUresult::CUDA_SUCCESS);
        assert!(!function.is_null(), "{name:?}");
        // SAFETY: there are as many slots as exports.
        unsafe { set(i32::try_from(slot).unwrap(), function) };
    }
    // Kept, for the slots live in it.
    std::mem::forget(library);
}
