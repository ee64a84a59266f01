//! A driver whose memory, mappings and fabric handles are numbers, and whose bytes are nowhere.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use vmm::Driver;
use vmm_emulator::{Config, Fabric};
use vmm_sys::{
    CUdriverProcAddressQueryResult, CUmemAllocationProp, CUmemLocation, CUmemLocationType,
    CUresult, cuuint64_t,
};

/// The calls that are counted.
pub const CREATE: usize = 0;
pub const RELEASE: usize = 1;
pub const RESERVE: usize = 2;
pub const FREE: usize = 3;
pub const MAP: usize = 4;
pub const UNMAP: usize = 5;
pub const SET_ACCESS: usize = 6;
pub const EXPORT: usize = 7;
pub const IMPORT: usize = 8;
pub const COPY: usize = 9;
pub const KINDS: usize = 10;

thread_local! {
    // Each test for itself.
    static CALLS: [Cell<u64>; KINDS] = const { [const { Cell::new(0) }; KINDS] };
}

/// How often each was called on this thread.
pub fn calls() -> [u64; KINDS] {
    CALLS.with(|calls| std::array::from_fn(|kind| calls[kind].get()))
}

/// One call more; how many there were.
fn count(kind: usize) -> u64 {
    CALLS.with(|calls| {
        calls[kind].set(calls[kind].get() + 1);
        calls[kind].get()
    })
}

fn counted(kind: usize) -> CUresult {
    count(kind);
    CUresult::CUDA_SUCCESS
}

unsafe extern "C" fn create(handle: *mut u64, _: usize, _: *const c_void, _: u64) -> CUresult {
    // SAFETY: the caller's pointer is valid for a write.
    unsafe { handle.write(count(CREATE)) };
    CUresult::CUDA_SUCCESS
}

unsafe extern "C" fn reserve(at: *mut u64, _: usize, _: usize, _: u64, _: u64) -> CUresult {
    // SAFETY: the caller's pointer is valid for a write. Each range has 16 TiB of its own.
    unsafe { at.write(count(RESERVE) << 44) };
    CUresult::CUDA_SUCCESS
}

extern "C" fn release(_: u64) -> CUresult {
    counted(RELEASE)
}

extern "C" fn free(_: u64, _: usize) -> CUresult {
    counted(FREE)
}

extern "C" fn map(_: u64, _: usize, _: usize, _: u64, _: u64) -> CUresult {
    counted(MAP)
}

extern "C" fn unmap(_: u64, _: usize) -> CUresult {
    counted(UNMAP)
}

extern "C" fn set_access(_: u64, _: usize, _: *const c_void, _: usize) -> CUresult {
    counted(SET_ACCESS)
}

extern "C" fn copy(_: u64, _: u64, _: usize) -> CUresult {
    counted(COPY)
}

extern "C" fn fill(_: u64, _: u8, _: usize) -> CUresult {
    counted(COPY)
}

/// A fabric handle: the number, and zeros.
unsafe extern "C" fn export(to: *mut [u64; 8], handle: u64, _: c_int, _: u64) -> CUresult {
    // SAFETY: the caller's pointer is valid for the 64 bytes of a fabric handle, however aligned.
    unsafe { to.write_unaligned([handle, 0, 0, 0, 0, 0, 0, 0]) };
    counted(EXPORT)
}

unsafe extern "C" fn import(handle: *mut u64, from: *const [u64; 8], _: c_int) -> CUresult {
    // SAFETY: the caller's pointers are valid for a write, and for the 64 bytes of a fabric handle.
    unsafe { handle.write(from.read_unaligned()[0]) };
    counted(IMPORT)
}

unsafe extern "C" fn properties(to: *mut CUmemAllocationProp, _: u64) -> CUresult {
    let device = CUmemLocation::new(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, 0);
    let prop = CUmemAllocationProp {
        location: device,
        ..CUmemAllocationProp::default()
    };
    // SAFETY: the caller's pointer is valid for a write.
    unsafe { to.write(prop) };
    CUresult::CUDA_SUCCESS
}

unsafe extern "C" fn get_proc_address(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: cuuint64_t,
    status: *mut CUdriverProcAddressQueryResult,
) -> CUresult {
    // SAFETY: the caller's, which are the same.
    let result =
        unsafe { vmm_emulator::get_proc_address(symbol, function, version, flags, status) };
    // SAFETY: the caller gives a C string.
    let ours: *mut c_void = match unsafe { CStr::from_ptr(symbol) }.to_bytes() {
        b"cuMemCreate" => create as *mut c_void,
        b"cuMemRelease" => release as *mut c_void,
        b"cuMemAddressReserve" => reserve as *mut c_void,
        b"cuMemAddressFree" => free as *mut c_void,
        b"cuMemMap" => map as *mut c_void,
        b"cuMemUnmap" => unmap as *mut c_void,
        b"cuMemSetAccess" => set_access as *mut c_void,
        b"cuMemcpyDtoH" | b"cuMemcpyHtoD" => copy as *mut c_void,
        b"cuMemsetD8" => fill as *mut c_void,
        b"cuMemExportToShareableHandle" => export as *mut c_void,
        b"cuMemImportFromShareableHandle" => import as *mut c_void,
        b"cuMemGetAllocationPropertiesFromHandle" => properties as *mut c_void,
        _ => return result,
    };
    // SAFETY: the caller's pointer is valid for a write.
    unsafe { function.write(ours) };
    result
}

/// The emulator, except for that. Memory can be shared as fabric handles, which are no descriptors.
pub fn driver() -> Driver {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        let config = Config::new().granularity(4096);
        config.fabric(Fabric::Available).install().unwrap();
    });
    // SAFETY: answers as the emulator does; the functions put in have the types of theirs.
    let sys = unsafe { vmm_sys::Driver::from_get_proc_address(get_proc_address) }.unwrap();
    Driver::new(sys).unwrap()
}
