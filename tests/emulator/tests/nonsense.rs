//! A configuration that makes no sense is refused, in words, and a failure that is asked for meets
//! the very first call. Each case is a process of its own: the emulator is one per process.

use std::process::Command;
use vmm_emulator::{Calls, Code, Config, InstallError, Peers};
use vmm_sys::*;

/// Set in the process of a case.
const CASE: &str = "VMM_TEST_CASE";
const ONE: &str = "GPU-00000000-0000-0000-0000-000000000001";

/// Variables that are refused, and what is said of them.
const REFUSED: &[(&[(&str, &str)], &str)] = &[
    (&[("MEMORY", "lots")], "VMM_EMULATOR_MEMORY"),
    (&[("TYPO", "1")], "VMM_EMULATOR_TYPO"),
    (&[("DEVICES", "65")], "64 devices"),
    (&[("DEVICES", "99999999999999999")], "64 devices"),
    (&[("NAMES", "left,right")], "VMM_EMULATOR_NAMES"),
    (&[("DEVICES", "2"), ("NAMES", "left")], "VMM_EMULATOR_NAMES"),
    (
        &[("DEVICES", "2"), ("NAMES", "left,")],
        "VMM_EMULATOR_NAMES",
    ),
    (&[("DEVICES", "2"), ("UUIDS", ONE)], "VMM_EMULATOR_UUIDS"),
    (
        &[
            ("DEVICES", "2"),
            (
                "UUIDS",
                "GPU-00000000-0000-0000-0000-000000000001,GPU-00000000-0000-0000-0000-000000000001",
            ),
        ],
        "one UUID",
    ),
    (&[("PEERS", "7>9")], "7>9"),
    (&[("DEVICES", "2"), ("PEERS", "0>1,1>2")], "1>2"),
    (&[("FAIL", "cuMemMap:0:2")], "from 1"),
    (&[("FAIL", "cuMemMap:1:0")], "no failure"),
    (
        &[("FAIL", "cuMemMap:+:2")],
        "`` is not the number of a call",
    ),
    (&[("FAIL", "cuMemMap:1:2:3")], "`2:3` is not a code"),
    (
        &[("FAIL", "cuInit:1:2,cuMemMap")],
        "VMM_EMULATOR_FAIL=cuInit:1:2,cuMemMap: `cuMemMap` has no `:`",
    ),
    (
        &[("FAIL", "cuMemMop:1:2")],
        "cuMemMop is no function of the driver",
    ),
    (
        &[("FAIL", "cuMemAlloc_v2:1:2")],
        "every form is called cuMemAlloc here",
    ),
    (
        &[("LATENCY", "cuInit=1s,cuInit=2d")],
        "`2d` is not a number of us, ms or s",
    ),
    (
        &[("LATENCY", "cuMemcpyAsync_ptsz=1s")],
        "every form is called cuMemcpyAsync here",
    ),
    (&[("ATTRIBUTES", "75=1,76")], "`76` has no `=`"),
    (
        &[("ATTRIBUTES", "1103=0")],
        "attribute 1103=0: the numbers are 1 to 161",
    ),
    (&[("ATTRIBUTES", "-1=3")], "attribute -1=3"),
    (&[("ATTRIBUTES", "103=0,103=1")], "103 has two values"),
    (
        &[("LATENCY", "cuInit=1s,cuInit=2s")],
        "cuInit has two values",
    ),
    (&[("FAIL", "cuInit:1:-5")], "-5 is no code"),
    (
        &[("FAIL", "cuInit:2:3,cuInit:2+:4")],
        "cuInit: call 2 is to fail in two ways",
    ),
    (&[("DRIVER_VERSION", "9020")], "driver version 9020"),
    (&[("DRIVER_VERSION", "12041")], "driver version 12041"),
    (&[("PEERS", "0>x")], "`x` is not a number"),
    (&[("MEMORY", "512")], "device 0 has 512 bytes of memory"),
    (&[("MEMORY", "0")], "device 0 has 0 bytes"),
    (&[("MEMORY", "3M")], "granularity 2097152"),
    (
        &[("MEMORY", "8M"), ("GRANULARITY", "16M")],
        "granularity 16777216",
    ),
    (
        &[("LATENCY", "cuMemsetD8Async=18446744073709551615s")],
        "longer than a day",
    ),
];

/// Runs a test of this file as a process with these variables: whether it passed, and what it said
/// on standard error.
fn apart(test: &str, case: &str, variables: &[(&str, &str)]) -> (bool, String) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", test])
        .env_clear()
        .env(CASE, case)
        .envs(
            variables
                .iter()
                .map(|(name, value)| (format!("VMM_EMULATOR_{name}"), value)),
        )
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.success(), said)
}

fn init(driver: &Driver) -> Option<CUresult> {
    // SAFETY: no obligations.
    unsafe { driver.cuInit(0) }
        .err()
        .map(|error| error.code().unwrap())
}

fn create(driver: &Driver) -> Option<CUresult> {
    let prop = CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        location: CUmemLocation::new(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, 0),
        ..Default::default()
    };
    // SAFETY: pointers to locals.
    let created = unsafe { driver.cuMemCreate(&mut 0, 2 << 20, &prop, 0) };
    created.err().map(|error| error.code().unwrap())
}

#[test]
fn variables_that_make_no_sense_fail_cuinit_in_words() {
    const NAME: &str = "variables_that_make_no_sense_fail_cuinit_in_words";
    if std::env::var_os(CASE).is_some() {
        let driver = vmm_emulator::driver().unwrap();
        assert_eq!(init(&driver), Some(CUresult::CUDA_ERROR_INVALID_VALUE));
        return;
    }
    for (variables, words) in REFUSED {
        let (passed, said) = apart(NAME, "refused", variables);
        assert!(passed && said.contains(words), "{variables:?}: {said}");
    }
}

#[test]
fn a_configuration_that_makes_no_sense_is_not_installed() {
    let twins = |config: Config| config.device(1, |second| second.uuid = *b"vmm-emulator\0\0\0\0");
    for config in [
        Config::new().devices(usize::MAX),
        twins(Config::new().devices(2)),
        Config::new().peers(Peers::Pairs(vec![(0, 1)])),
        Config::new().memory((8 << 20) + 1),
        Config::new()
            .devices(2)
            .device(1, |second| second.memory = 0),
        Config::new().attribute(162, 1),
        Config::new().driver_version(13_001),
        Config::new().fail_nth("cuMemMap", 0, Code::UNKNOWN),
        Config::new().fail_from("cuMemMap", 1, Code::SUCCESS),
        Config::new().fail_from("cuMemMop", 1, Code::UNKNOWN),
        Config::new().latency("cuMemMop", std::time::Duration::ZERO),
        Config::new().latency("cuMemMap", std::time::Duration::MAX),
    ] {
        let installed = config.clone().install();
        assert!(
            matches!(installed, Err(InstallError::Invalid(_))),
            "{config:?}"
        );
    }
}

#[test]
fn a_failure_that_makes_no_sense_is_not_taken() {
    let emulator = vmm_emulator::Emulator::current();
    let unknown = Code::UNKNOWN;
    let asked: [(&str, &dyn Fn()); 9] = [
        ("every form is called cuMemcpy2D here", &|| {
            emulator
                .fail_nth(Calls::Of("cuMemcpy2D_v2"), 1, unknown)
                .keep();
        }),
        ("calls are counted from 1", &|| {
            emulator.fail_nth(Calls::AnyHere, 0, unknown).keep();
        }),
        ("calls are counted from 1", &|| {
            emulator.fail_from(Calls::Of("cuMemMap"), 0, unknown).keep();
        }),
        ("0 is no failure", &|| {
            emulator
                .fail_nth(Calls::OfHere("cuMemMap"), 1, Code::SUCCESS)
                .keep();
        }),
        ("0 is no failure", &|| {
            emulator.fail_from(Calls::AnyHere, 1, Code::SUCCESS).keep();
        }),
        ("no function of the driver", &|| {
            emulator.fail_nth(Calls::Of("cuMemMop"), 1, unknown).keep();
        }),
        ("no function of the driver", &|| {
            emulator
                .fail_from(Calls::OfHere("cuMemMop"), 1, unknown)
                .keep();
        }),
        ("no function of the driver", &|| {
            emulator.latency("cuMemMop", std::time::Duration::ZERO);
        }),
        ("no function of the driver", &|| {
            emulator.calls("cuMemMop");
        }),
    ];
    for (index, (expected, ask)) in asked.into_iter().enumerate() {
        let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(ask));
        let said = refused.expect_err(&format!("request {index} was taken"));
        let said = said.downcast_ref::<String>().unwrap();
        assert!(said.contains(expected), "request {index}: {said}");
    }
    // Nothing of it is in force.
    let driver = vmm_emulator::driver().unwrap();
    // SAFETY: no pointer is involved.
    let mapped = unsafe { driver.cuMemMap(0, 0, 0, 0, 0) }.unwrap_err();
    let expected = [
        CUresult::CUDA_ERROR_NOT_INITIALIZED,
        CUresult::CUDA_ERROR_INVALID_VALUE,
    ];
    assert!(expected.contains(&mapped.code().unwrap()), "{mapped}");
}

#[test]
fn the_very_first_call_fails_as_asked() {
    const NAME: &str = "the_very_first_call_fails_as_asked";
    let gone = Some(CUresult::CUDA_ERROR_NO_DEVICE);
    let case = std::env::var(CASE).unwrap_or_default();
    match case.as_str() {
        "init" => {
            let driver = vmm_emulator::driver().unwrap();
            assert_eq!((init(&driver), init(&driver)), (gone, None));
        }
        "load" => {
            assert!(vmm_emulator::driver().is_err());
            assert_eq!(init(&vmm_emulator::driver().unwrap()), None);
        }
        "look up" => {
            let look_up = || {
                let mut found = std::ptr::null_mut();
                // SAFETY: a C string and a pointer to a local.
                unsafe {
                    let name = c"cuInit".as_ptr();
                    let status = std::ptr::null_mut();
                    vmm_emulator::get_proc_address(name, &mut found, 12_000, 0, status)
                }
            };
            assert_eq!((Some(look_up()), look_up().0), (gone, 0));
        }
        "builder" => {
            let emulator = Config::new()
                .fail_nth("cuInit", 1, Code::NO_DEVICE)
                .install()
                .unwrap();
            let driver = emulator.driver().unwrap();
            assert_eq!((init(&driver), init(&driver)), (gone, None));
        }
        _ => {
            for (case, asked) in [
                ("init", "cuInit:1:100"),
                ("load", "cuDriverGetVersion:1:100"),
                ("look up", "cuGetProcAddress:1:100"),
            ] {
                let (passed, said) = apart(NAME, case, &[("FAIL", asked)]);
                assert!(passed, "{asked}: {said}");
            }
            let (passed, said) = apart(NAME, "builder", &[]);
            assert!(passed, "{said}");
        }
    }
}

#[test]
fn a_call_and_every_one_after_it_fail_as_asked() {
    const NAME: &str = "a_call_and_every_one_after_it_fail_as_asked";
    let full = Some(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    let case = std::env::var(CASE).unwrap_or_default();
    if case.is_empty() {
        for (case, variables) in [
            ("environment", &[("FAIL", "cuMemCreate:2+:2")][..]),
            ("builder", &[]),
        ] {
            let (passed, said) = apart(NAME, case, variables);
            assert!(passed, "{case}: {said}");
        }
        return;
    }
    if case == "builder" {
        let config = Config::new().fail_from("cuMemCreate", 2, Code::OUT_OF_MEMORY);
        let _ = config.install().unwrap();
    }
    let driver = vmm_emulator::driver().unwrap();
    assert_eq!(init(&driver), None);
    let answers: Vec<_> = (0..4).map(|_| create(&driver)).collect();
    assert_eq!(answers, [None, full, full, full]);
}
