//! What each variable changes. The emulator is one per process, so each case is a process of its
//! own, with this environment and no other.

mod common;

use common::code;
use libtest_mimic::{Arguments, Failed, Trial};
use std::env;
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use vmm_sys::*;

const SIZE: usize = 2 << 20;
const POSIX_FD: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
const FABRIC: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC;
/// The UUID of the second device, unless another is given.
const SECOND: &str = "GPU-766d6d2d-656d-756c-6174-6f7200000001";
/// Set in the process of a case: its name.
const CASE: &str = "VMM_TEST_CASE";

type Case = (&'static str, &'static [(&'static str, &'static str)], fn());

const CASES: &[Case] = &[
    ("no_variable_one_device_of_16_gib_under_13_0", &[], defaults),
    (
        "devices_have_names_and_uuids_of_their_own",
        &[("VMM_EMULATOR_DEVICES", "3")],
        devices,
    ),
    (
        "names_and_uuids_as_given",
        &[
            ("VMM_EMULATOR_DEVICES", "2"),
            ("VMM_EMULATOR_NAMES", "left,right"),
            (
                "VMM_EMULATOR_UUIDS",
                "GPU-00000000-0000-0000-0000-000000000007,GPU-00000000-0000-0000-0000-000000000008",
            ),
        ],
        names,
    ),
    (
        "memory_ends_at_its_size",
        &[("VMM_EMULATOR_MEMORY", "8M")],
        memory,
    ),
    (
        "granularity_decides_which_sizes_are_taken",
        &[("VMM_EMULATOR_GRANULARITY", "4M")],
        granularity,
    ),
    (
        "driver_version_decides_which_symbols_are_there",
        &[("VMM_EMULATOR_DRIVER_VERSION", "12000")],
        version,
    ),
    (
        "attributes_as_given",
        &[("VMM_EMULATOR_ATTRIBUTES", "103=0,75=7")],
        attributes,
    ),
    (
        "a_device_without_virtual_memory_management",
        &[("VMM_EMULATOR_ATTRIBUTES", "102=0")],
        no_vmm,
    ),
    (
        "peers_as_given",
        &[("VMM_EMULATOR_DEVICES", "2"), ("VMM_EMULATOR_PEERS", "0>1")],
        peers,
    ),
    (
        "fabric_available",
        &[("VMM_EMULATOR_FABRIC", "available")],
        fabric_available,
    ),
    (
        "fabric_unavailable",
        &[("VMM_EMULATOR_FABRIC", "unavailable")],
        fabric_unavailable,
    ),
    (
        "fabric_not_permitted",
        &[("VMM_EMULATOR_FABRIC", "not-permitted")],
        fabric_not_permitted,
    ),
    (
        "the_second_call_fails_as_asked",
        &[("VMM_EMULATOR_FAIL", "cuMemCreate:2:2")],
        fail,
    ),
    (
        "a_call_takes_as_long_as_asked",
        &[("VMM_EMULATOR_LATENCY", "cuMemCreate=30ms")],
        latency,
    ),
    (
        "the_host_touches_device_memory_when_asked",
        &[("VMM_EMULATOR_HOST_TOUCH", "1")],
        host_touch,
    ),
    ("what_is_alive_at_exit_is_printed_when_asked", &[], report),
    (
        "memory_of_a_hidden_device_is_refused_and_of_a_visible_one_taken",
        &[("VMM_EMULATOR_DEVICES", "2")],
        visible,
    ),
];

fn main() -> ExitCode {
    if let Ok(name) = env::var(CASE) {
        match CASES.iter().find(|(case, _, _)| *case == name) {
            Some((_, _, run)) => run(),
            None if name == "leak" => leak(),
            None => import(&name),
        }
        return ExitCode::SUCCESS;
    }
    let arguments = Arguments::from_args();
    let trials = CASES
        .iter()
        .map(|(name, variables, _)| Trial::test(*name, || in_a_process(name, variables)))
        .collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn in_a_process(name: &str, variables: &[(&str, &str)]) -> Result<(), Failed> {
    let output = Command::new(env::current_exe()?)
        .env_clear()
        .env(CASE, name)
        .envs(variables.iter().copied())
        .output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned().into()),
    }
}

fn started() -> Driver {
    let driver = vmm_emulator::driver().unwrap();
    // SAFETY: no obligations.
    unsafe { driver.cuInit(0) }.unwrap();
    driver
}

fn prop(device: i32, types: CUmemAllocationHandleType) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        location: CUmemLocation::new(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, device),
        requestedHandleTypes: types,
        ..Default::default()
    }
}

fn create(
    driver: &Driver,
    device: i32,
    size: usize,
    types: CUmemAllocationHandleType,
) -> Result<CUmemGenericAllocationHandle, CUresult> {
    let mut handle = 0;
    // SAFETY: pointers to locals.
    match code(unsafe { driver.cuMemCreate(&mut handle, size, &prop(device, types), 0) }) {
        CUresult::CUDA_SUCCESS => Ok(handle),
        code => Err(code),
    }
}

fn count(driver: &Driver) -> i32 {
    let mut count = 0;
    // SAFETY: a pointer to a local.
    unsafe { driver.cuDeviceGetCount(&mut count) }.unwrap();
    count
}

fn identity(driver: &Driver, device: i32) -> (String, [u8; 16]) {
    let mut name = [0_u8; 64];
    let mut uuid = CUuuid { bytes: [0; 16] };
    // SAFETY: pointers to locals, with the length of the name.
    unsafe {
        driver
            .cuDeviceGetName(name.as_mut_ptr().cast(), 64, device)
            .unwrap();
        driver.cuDeviceGetUuid(&mut uuid, device).unwrap();
    }
    let name = name.split(|byte| *byte == 0).next().unwrap();
    let uuid = uuid.bytes.map(|byte| byte.to_ne_bytes()[0]);
    (String::from_utf8(name.to_vec()).unwrap(), uuid)
}

fn total(driver: &Driver) -> usize {
    let mut total = 0;
    // SAFETY: a pointer to a local.
    unsafe { driver.cuDeviceTotalMem(&mut total, 0) }.unwrap();
    total
}

fn attribute(driver: &Driver, number: u32) -> i32 {
    let mut value = -1;
    // SAFETY: a pointer to a local.
    unsafe { driver.cuDeviceGetAttribute(&mut value, CUdevice_attribute(number as _), 0) }.unwrap();
    value
}

fn granule(driver: &Driver) -> usize {
    let mut granule = 0;
    let none = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
    let minimum = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: pointers to locals.
    unsafe { driver.cuMemGetAllocationGranularity(&mut granule, &prop(0, none), minimum) }.unwrap();
    granule
}

fn defaults() {
    let driver = started();
    assert_eq!((count(&driver), driver.version()), (1, 13000));
    assert_eq!((total(&driver), granule(&driver)), (16 << 30, 2 << 20));
    // Compression and GPUDirect RDMA, whose flags are granted.
    assert_eq!((attribute(&driver, 107), attribute(&driver, 110)), (1, 1));
}

fn devices() {
    let driver = started();
    assert_eq!(count(&driver), 3);
    let seen: Vec<_> = (0..3).map(|device| identity(&driver, device)).collect();
    for (ordinal, (name, uuid)) in seen.iter().enumerate() {
        assert_eq!(*name, format!("Software emulator {ordinal}"));
        assert_eq!(seen.iter().filter(|other| other.1 == *uuid).count(), 1);
    }
}

fn names() {
    let driver = started();
    for (device, name, last) in [(0, "left", 7), (1, "right", 8)] {
        let mut uuid = [0; 16];
        uuid[15] = last;
        assert_eq!(identity(&driver, device), (name.to_owned(), uuid));
    }
}

fn memory() {
    let driver = started();
    assert_eq!(total(&driver), 8 << 20);
    for _ in 0..4 {
        create(&driver, 0, SIZE, POSIX_FD).unwrap();
    }
    let full = create(&driver, 0, SIZE, POSIX_FD);
    assert_eq!(full, Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
}

fn granularity() {
    let driver = started();
    assert_eq!(granule(&driver), 4 << 20);
    let half = create(&driver, 0, SIZE, POSIX_FD);
    assert_eq!(half, Err(CUresult::CUDA_ERROR_INVALID_VALUE));
    create(&driver, 0, 4 << 20, POSIX_FD).unwrap();
}

fn version() {
    let driver = started();
    assert_eq!(driver.version(), 12000);
    for resolved in driver.symbols() {
        let symbol = resolved.symbol;
        assert_eq!(resolved.found, symbol.tag <= 12000, "{symbol:?}");
    }
    // The first came with CUDA 11.3, the other with 12.1.
    for (name, known) in [
        (c"cuFlushGPUDirectRDMAWrites", true),
        (c"cuCoredumpGetAttribute", false),
    ] {
        let mut function = std::ptr::null_mut();
        let mut status = CUdriverProcAddressQueryResult(9);
        // SAFETY: a C string and pointers to locals.
        let answer = unsafe {
            vmm_emulator::get_proc_address(name.as_ptr(), &mut function, 12009, 0, &mut status)
        };
        assert_eq!(answer, CUresult::CUDA_SUCCESS);
        assert_eq!((!function.is_null(), status.0), (known, u32::from(!known)));
    }
}

fn attributes() {
    let driver = started();
    assert_eq!((attribute(&driver, 103), attribute(&driver, 75)), (0, 7));
    // A device that says that it cannot export does not.
    let refused = create(&driver, 0, SIZE, POSIX_FD);
    assert_eq!(refused, Err(CUresult::CUDA_ERROR_NOT_SUPPORTED));
    create(&driver, 0, SIZE, CUmemAllocationHandleType(0)).unwrap();
}

fn no_vmm() {
    let driver = started();
    let refused = create(&driver, 0, SIZE, CUmemAllocationHandleType(0));
    assert_eq!(refused, Err(CUresult::CUDA_ERROR_NOT_SUPPORTED));
}

fn peers() {
    let driver = started();
    let reaches = |from, to| {
        let mut answer = -1;
        // SAFETY: a pointer to a local.
        unsafe { driver.cuDeviceCanAccessPeer(&mut answer, from, to) }.unwrap();
        answer
    };
    assert_eq!((reaches(0, 1), reaches(1, 0)), (1, 0));
    let access = |owner, user| {
        let handle = create(&driver, owner, SIZE, POSIX_FD).unwrap();
        let mut address = 0;
        let access = CUmemAccessDesc {
            location: prop(user, POSIX_FD).location,
            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: pointers to locals, a handle and an address of this driver.
        unsafe {
            driver
                .cuMemAddressReserve(&mut address, SIZE, 0, 0, 0)
                .unwrap();
            driver.cuMemMap(address, SIZE, 0, handle, 0).unwrap();
            code(driver.cuMemSetAccess(address, SIZE, &access, 1))
        }
    };
    assert_eq!(access(1, 0), CUresult::CUDA_SUCCESS);
    assert_ne!(access(0, 1), CUresult::CUDA_SUCCESS);
}

fn fabric_available() {
    let driver = started();
    assert_eq!(attribute(&driver, 128), 1);
    let handle = create(&driver, 0, SIZE, FABRIC).unwrap();
    let (mut bytes, mut imported) = ([0_u8; 64], 0);
    // SAFETY: a fabric handle is 64 bytes; the handle is this driver's.
    unsafe {
        driver
            .cuMemExportToShareableHandle(bytes.as_mut_ptr().cast(), handle, FABRIC, 0)
            .unwrap();
        driver
            .cuMemImportFromShareableHandle(&mut imported, bytes.as_mut_ptr().cast(), FABRIC)
            .unwrap();
    }
    assert_ne!(imported, handle);
}

fn fabric_unavailable() {
    let driver = started();
    assert_eq!(attribute(&driver, 128), 0);
    let refused = create(&driver, 0, SIZE, FABRIC);
    assert_eq!(refused, Err(CUresult::CUDA_ERROR_NOT_SUPPORTED));
}

fn fabric_not_permitted() {
    let driver = started();
    assert_eq!(attribute(&driver, 128), 1);
    let refused = create(&driver, 0, SIZE, FABRIC);
    assert_eq!(refused, Err(CUresult::CUDA_ERROR_NOT_PERMITTED));
}

fn fail() {
    let driver = started();
    create(&driver, 0, SIZE, POSIX_FD).unwrap();
    let second = create(&driver, 0, SIZE, POSIX_FD);
    assert_eq!(second, Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
    create(&driver, 0, SIZE, POSIX_FD).unwrap();
}

fn latency() {
    let driver = started();
    let start = Instant::now();
    create(&driver, 0, SIZE, POSIX_FD).unwrap();
    assert!(start.elapsed() >= Duration::from_millis(30));
}

fn host_touch() {
    let driver = started();
    let handle = create(&driver, 0, SIZE, POSIX_FD).unwrap();
    let (mut address, mut seen) = (0, 0_u8);
    let access = CUmemAccessDesc {
        location: prop(0, POSIX_FD).location,
        flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    let mut context = std::ptr::null_mut();
    // SAFETY: pointers to locals, a handle and an address of this driver, which lets the host at
    // the memory.
    unsafe {
        driver.cuDevicePrimaryCtxRetain(&mut context, 0).unwrap();
        driver.cuCtxSetCurrent(context).unwrap();
        driver
            .cuMemAddressReserve(&mut address, SIZE, 0, 0, 0)
            .unwrap();
        driver.cuMemMap(address, SIZE, 0, handle, 0).unwrap();
        driver.cuMemSetAccess(address, SIZE, &access, 1).unwrap();
        (address as *mut u8).write_volatile(77);
        driver
            .cuMemcpyDtoH((&raw mut seen).cast(), address, 1)
            .unwrap();
    }
    assert_eq!(seen, 77);
}

fn report() {
    let printed = |value| {
        let output = Command::new(env::current_exe().unwrap())
            .env(CASE, "leak")
            .env("VMM_EMULATOR_REPORT", value)
            .output()
            .unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(printed("0"), "");
    let report = printed("1");
    for wanted in ["handles 2 (references 2)", "allocations 2 (4194304 bytes)"] {
        assert!(report.contains(wanted), "{report}");
    }
}

/// Ends with two allocations alive.
fn leak() {
    let driver = started();
    for _ in 0..2 {
        create(&driver, 0, SIZE, POSIX_FD).unwrap();
    }
}

/// Exports memory of the second device to processes that see it or do not; the descriptor is
/// their standard input.
fn visible() {
    let driver = started();
    let handle = create(&driver, 1, SIZE, POSIX_FD).unwrap();
    for (list, wanted) in [
        ("0", "hidden"),
        ("1", "first"),
        ("1,0", "first"),
        ("0,1", "second"),
        (SECOND, "first"),
    ] {
        let mut fd = -1;
        // SAFETY: a pointer to a local, a handle of this driver; the descriptor is new and ours.
        let fd = unsafe {
            driver
                .cuMemExportToShareableHandle((&raw mut fd).cast(), handle, POSIX_FD, 0)
                .unwrap();
            OwnedFd::from_raw_fd(fd)
        };
        let status = Command::new(env::current_exe().unwrap())
            .env(CASE, wanted)
            .env("CUDA_VISIBLE_DEVICES", list)
            .stdin(Stdio::from(fd))
            .status()
            .unwrap();
        assert!(status.success(), "CUDA_VISIBLE_DEVICES={list}");
    }
}

/// Imports standard input, where the memory's device is as `wanted` says.
fn import(wanted: &str) {
    let driver = started();
    let mut handle = 0;
    // SAFETY: a pointer to a local; an open descriptor, passed by its value.
    let answer = code(unsafe {
        driver.cuMemImportFromShareableHandle(&mut handle, std::ptr::null_mut(), POSIX_FD)
    });
    let ordinal = match wanted {
        "hidden" => {
            assert_eq!(answer, CUresult::CUDA_ERROR_INVALID_DEVICE);
            return;
        }
        "first" => 0,
        "second" => 1,
        other => panic!("no case is called {other}"),
    };
    assert_eq!(answer, CUresult::CUDA_SUCCESS);
    let mut prop = CUmemAllocationProp::default();
    // SAFETY: a pointer to a local, a handle of this driver.
    unsafe { driver.cuMemGetAllocationPropertiesFromHandle(&mut prop, handle) }.unwrap();
    assert_eq!(prop.location.id(), ordinal);
    assert_eq!(identity(&driver, ordinal).0, "Software emulator 1");
}
