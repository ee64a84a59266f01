//! Functions by name, tag and flags; error names.

use super::List;
use crate::rig::{Rig, code, d};
use std::collections::BTreeSet;
use std::ffi::CStr;
use std::ptr::{null, null_mut};
use vmm_sys::*;

const NAMES: &[(&str, i32)] = &[
    ("cuInit", 2000),
    ("cuDeviceGetUuid", 9020),
    ("cuDevicePrimaryCtxRetain", 7000),
    ("cuMemGetAllocationGranularity", 10020),
    ("cuMemCreate", 10020),
    ("cuMemRelease", 10020),
    ("cuMemAddressReserve", 10020),
    ("cuMemAddressFree", 10020),
    ("cuMemMap", 10020),
    ("cuMemUnmap", 10020),
    ("cuMemSetAccess", 10020),
    ("cuMemGetAccess", 10020),
    ("cuMemExportToShareableHandle", 10020),
    ("cuMemImportFromShareableHandle", 10020),
    ("cuMemGetAllocationPropertiesFromHandle", 10020),
    ("cuMemRetainAllocationHandle", 11000),
    ("cuMemGetHandleForAddressRange", 11070),
    ("cuMemcpyHtoD", 2000),
    ("cuMemsetD8", 2000),
    ("cuMemcpy", 4000),
    ("cuStreamIsCapturing", 10000),
    ("cuThreadExchangeStreamCaptureMode", 10010),
    ("cuPointerGetAttributes", 7000),
    ("cuMulticastCreate", 12010),
    ("cuCtxSynchronize", 2000),
];

/// Names with forms of several versions.
const FORMS: &[(&str, i32, i32)] = &[
    ("cuMemcpyHtoD", 2000, 3020),
    ("cuMemGetInfo", 2000, 3020),
    ("cuMemsetD8", 2000, 3020),
    ("cuCtxSynchronize", 2000, 13000),
    ("cuCtxGetDevice", 2000, 13000),
    ("cuStreamGetCaptureInfo", 10010, 11030),
    ("cuMemCreate", 10020, 12000),
    ("cuDevicePrimaryCtxRetain", 7000, 12000),
    ("cuGetProcAddress", 11030, 12000),
];

/// Each form of each function that the emulator knows by name alone, with its first version.
macro_rules! rest {
    ($($name:ident $tag:literal $export:ident;)*) => {
        const REST: &[(&str, i32, &str)] = &[$((stringify!($name), $tag, stringify!($export)),)*];
    };
}

vmm_emulator::for_each_missing!(rest);

const CODES: &[u32] = &[
    0, 1, 2, 3, 4, 34, 46, 100, 101, 200, 201, 202, 205, 206, 208, 211, 217, 304, 400, 401, 500,
    600, 700, 704, 705, 709, 719, 800, 801, 802, 803, 900, 901, 902, 903, 904, 905, 906, 907, 908,
    999,
];

pub fn add(list: &mut List) {
    for &(name, tag) in NAMES {
        list.add(
            format!("symbol.{name} at {tag}"),
            format!("cuGetProcAddress of {name} at {tag}"),
            move |r| Ok(r.find(Some(name), tag, 0)),
        );
        list.add(
            format!("symbol.{name} at {}", tag - 10),
            format!("cuGetProcAddress of {name} below its first tag"),
            move |r| Ok(r.find(Some(name), tag - 10, 0)),
        );
    }
    for &(name, one, other) in FORMS {
        list.add(
            format!("symbol.{name} forms {one} {other}"),
            format!("whether {name} at {one} and at {other} are different functions"),
            move |r| Ok(format!("different: {}", r.differ(name, one, other))),
        );
    }
    let versions: BTreeSet<i32> = REST.iter().map(|row| row.1).collect();
    for version in versions {
        list.add(
            format!("symbol.rest of {version}"),
            format!("functions and forms of {version} that are not there, or not new"),
            move |r| Ok(unlike(r, version)),
        );
    }
    for (what, tag) in [
        ("0", 0),
        ("-1", -1),
        ("13999", 13_999),
        ("14000", 14_000),
        ("99000", 99_000),
    ] {
        list.add(
            format!("symbol.tag {what}"),
            format!("cuGetProcAddress of cuMemCreate at {what}"),
            move |r| Ok(r.find(Some("cuMemCreate"), tag, 0)),
        );
    }
    for flags in [1_u64, 2, 3, 4] {
        list.add(
            format!("symbol.flags {flags}"),
            format!("cuGetProcAddress of cuMemcpyHtoD at 12000 with flags {flags}"),
            move |r| Ok(r.find(Some("cuMemcpyHtoD"), 12_000, flags)),
        );
    }
    list.add(
        "symbol.unknown",
        "cuGetProcAddress of cuNoSuchFunction at 12000",
        |r| Ok(r.find(Some("cuNoSuchFunction"), 12_000, 0)),
    );
    list.add(
        "symbol.exported name",
        "cuGetProcAddress of cuMemcpyHtoD_v2, a name of the library, at 12000",
        |r| Ok(r.find(Some("cuMemcpyHtoD_v2"), 12_000, 0)),
    );
    list.add(
        "symbol.empty",
        "cuGetProcAddress of an empty name at 12000",
        |r| Ok(r.find(Some(""), 12_000, 0)),
    );
    list.add(
        "symbol.null",
        "cuGetProcAddress of a null name at 12000",
        |r| Ok(r.find(None, 12_000, 0)),
    );
    for &number in CODES {
        list.add(
            format!("error.name {number}"),
            format!("cuGetErrorName of {number}"),
            move |r| {
                let mut text = null();
                let called = code(d!(r, cuGetErrorName(CUresult(number), &mut text)));
                Ok(format!("{called}, {}", read(text)))
            },
        );
        list.add(
            format!("error.text {number}"),
            format!("whether cuGetErrorString of {number} gives a text"),
            move |r| {
                let mut text = null();
                let called = code(d!(r, cuGetErrorString(CUresult(number), &mut text)));
                Ok(format!("{called}, text: {}", !text.is_null()))
            },
        );
    }
    for number in [5000, 987_654] {
        list.add(
            format!("error.name {number}"),
            format!("cuGetErrorName of {number}, no code"),
            move |r| {
                let mut text = c"before".as_ptr();
                let called = code(d!(r, cuGetErrorName(CUresult(number), &mut text)));
                Ok(format!("{called}, {}", read(text)))
            },
        );
    }
    list.add(
        "error.name null",
        "cuGetErrorName of 1 to a null pointer",
        |r| Ok(code(d!(r, cuGetErrorName(CUresult(1), null_mut())))),
    );
}

/// The functions whose form of this version `cuGetProcAddress` does not find, or finds at a lower
/// version too.
fn unlike(r: &Rig, version: i32) -> String {
    if version > r.driver.version() {
        return "of a later driver".into();
    }
    let mut unlike = Vec::new();
    for (name, _, export) in REST.iter().filter(|row| row.1 == version) {
        let per_thread = export.ends_with("_ptds") || export.ends_with("_ptsz");
        let flags = if per_thread { 2 } else { 1 };
        let here = r.address(name, version, flags);
        if here.is_null() {
            unlike.push(format!("no {export}"));
        } else if here == r.address(name, version - 10, flags) {
            unlike.push(format!("old {export}"));
        }
    }
    match unlike.is_empty() {
        true => "none".into(),
        false => unlike.join(", "),
    }
}

fn read(text: *const std::ffi::c_char) -> String {
    if text.is_null() {
        return "null".into();
    }
    // SAFETY: a text of the driver, or the case's own.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}
