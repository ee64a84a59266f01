//! The C types of the driver ABI that the emulator reads and writes.
//!
//! They are written down here, and not taken from `vmm-sys`, so that a mistake in either shows as
//! a difference between two programs that must agree.

use std::ffi::{c_int, c_uchar, c_uint, c_ushort, c_void};

/// The numbers of `CUdevice_attribute`.
pub(crate) const DEVICE_ATTRIBUTES: std::ops::RangeInclusive<c_int> = 1..=161;

pub(crate) type Device = c_int;
pub(crate) type DevicePtr = u64;

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemLocation {
    pub kind: c_int,
    pub id: c_int,
}

impl MemLocation {
    pub const DEVICE: c_int = 1;
    pub const HOST: c_int = 2;
    pub const HOST_NUMA: c_int = 3;
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AllocFlags {
    pub compression: c_uchar,
    pub gpu_direct_rdma: c_uchar,
    pub usage: c_ushort,
    pub reserved: [c_uchar; 4],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemAllocationProp {
    pub kind: c_int,
    pub handle_types: c_int,
    pub location: MemLocation,
    pub win32_meta: *mut c_void,
    pub flags: AllocFlags,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemAccessDesc {
    pub location: MemLocation,
    pub flags: c_int,
}

pub(crate) const ALLOCATION_PINNED: c_int = 1;

pub(crate) const HANDLE_POSIX_FD: c_int = 1;
pub(crate) const HANDLE_WIN32: c_int = 2;
pub(crate) const HANDLE_WIN32_KMT: c_int = 4;
pub(crate) const HANDLE_FABRIC: c_int = 8;

pub(crate) const ACCESS_NONE: c_int = 0;
pub(crate) const ACCESS_READ: c_int = 1;
pub(crate) const ACCESS_READ_WRITE: c_int = 3;

pub(crate) const STREAM_LEGACY: u64 = 1;
pub(crate) const STREAM_PER_THREAD: u64 = 2;
pub(crate) const STREAM_NON_BLOCKING: c_uint = 1;

pub(crate) const QUERY_FOUND: c_int = 0;
pub(crate) const QUERY_UNKNOWN: c_int = 1;
pub(crate) const QUERY_TAG_TOO_LOW: c_int = 2;

// The layouts that C expects on every 64-bit Linux.
const _: () = {
    assert!(size_of::<MemLocation>() == 8);
    assert!(size_of::<MemAllocationProp>() == 32);
    assert!(size_of::<MemAccessDesc>() == 12);
};
