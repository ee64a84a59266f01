//! Before `cuInit`, and in a forked child after it.

use super::List;
use crate::rig::{Called, DEVICE, FD, G, Rig, code, d, setup};
use std::ffi::c_int;
use std::ptr::{null, null_mut};
use vmm_sys::*;

type Ask = fn(&mut Rig) -> Called;

/// Calls that any state of the driver answers.
const CALLS: &[(&str, Ask)] = &[
    ("cuDeviceGetCount", |r| d!(r, cuDeviceGetCount(&mut 0))),
    ("cuDeviceGet", |r| d!(r, cuDeviceGet(&mut 0, 0))),
    ("cuDeviceGetAttribute", |r| {
        d!(r, cuDeviceGetAttribute(&mut 0, CUdevice_attribute(102), 0))
    }),
    ("cuDeviceGetUuid", |r| {
        d!(r, cuDeviceGetUuid(&mut CUuuid::default(), 0))
    }),
    ("cuDevicePrimaryCtxRetain", |r| {
        d!(r, cuDevicePrimaryCtxRetain(&mut null_mut(), 0))
    }),
    ("cuDevicePrimaryCtxGetState", |r| {
        d!(r, cuDevicePrimaryCtxGetState(0, &mut 0, &mut 0))
    }),
    ("cuCtxGetCurrent", |r| {
        d!(r, cuCtxGetCurrent(&mut null_mut()))
    }),
    ("cuCtxSetCurrent", |r| d!(r, cuCtxSetCurrent(null_mut()))),
    ("cuCtxPopCurrent", |r| {
        d!(r, cuCtxPopCurrent(&mut null_mut()))
    }),
    ("cuCtxSynchronize", |r| d!(r, cuCtxSynchronize())),
    ("cuMemGetAllocationGranularity", |r| {
        let prop = r.prop(DEVICE, 0, FD);
        let option = CUmemAllocationGranularity_flags(0);
        d!(r, cuMemGetAllocationGranularity(&mut 0, &prop, option))
    }),
    ("cuMemCreate", |r| {
        let prop = r.prop(DEVICE, 0, FD);
        d!(r, cuMemCreate(&mut 0, G, &prop, 0))
    }),
    ("cuMemRelease", |r| d!(r, cuMemRelease(0))),
    ("cuMemAddressReserve", |r| {
        d!(r, cuMemAddressReserve(&mut 0, G, 0, 0, 0))
    }),
    ("cuMemAddressFree", |r| d!(r, cuMemAddressFree(0, G))),
    ("cuMemMap", |r| d!(r, cuMemMap(0, G, 0, 0, 0))),
    ("cuMemUnmap", |r| d!(r, cuMemUnmap(0, G))),
    ("cuMemSetAccess", |r| r.access(0, G, DEVICE, 0, 3)),
    ("cuMemGetAccess", |r| r.get_access(0, DEVICE, 0).map(drop)),
    ("cuMemExportToShareableHandle", |r| r.export(0).map(drop)),
    ("cuMemImportFromShareableHandle", |r| r.import(0).map(drop)),
    ("cuMemRetainAllocationHandle", |r| {
        d!(r, cuMemRetainAllocationHandle(&mut 0, null_mut()))
    }),
    ("cuMemGetAllocationPropertiesFromHandle", |r| {
        d!(
            r,
            cuMemGetAllocationPropertiesFromHandle(&mut CUmemAllocationProp::default(), 0)
        )
    }),
    ("cuMemGetInfo", |r| d!(r, cuMemGetInfo(&mut 0, &mut 0))),
    ("cuMemcpyHtoD", |r| d!(r, cuMemcpyHtoD(0, null(), 0))),
    ("cuMemsetD8", |r| d!(r, cuMemsetD8(0, 0, 0))),
    ("cuStreamCreate", |r| {
        d!(r, cuStreamCreate(&mut null_mut(), 0))
    }),
    ("cuStreamSynchronize", |r| {
        d!(r, cuStreamSynchronize(null_mut()))
    }),
    ("cuStreamIsCapturing", |r| {
        d!(
            r,
            cuStreamIsCapturing(null_mut(), &mut CUstreamCaptureStatus(0))
        )
    }),
    ("cuThreadExchangeStreamCaptureMode", |r| {
        r.exchange(2).map(drop)
    }),
    ("cuEventCreate", |r| {
        d!(r, cuEventCreate(&mut null_mut(), 0))
    }),
    ("cuPointerGetAttribute", |r| {
        let mut kind = 0_u32;
        d!(
            r,
            cuPointerGetAttribute((&raw mut kind).cast(), CUpointer_attribute(2), 0)
        )
    }),
];

pub fn add(list: &mut List) {
    list.early(
        "early.cuDriverGetVersion",
        "cuDriverGetVersion before cuInit",
        |r| Ok(code(d!(r, cuDriverGetVersion(&mut 0)))),
    );
    list.early(
        "early.cuGetErrorName",
        "cuGetErrorName of 1 before cuInit",
        |r| Ok(code(d!(r, cuGetErrorName(CUresult(1), &mut null())))),
    );
    list.early(
        "early.cuInit flags",
        "cuInit with flags 1 before any other cuInit",
        |r| Ok(code(d!(r, cuInit(1)))),
    );
    for &(name, ask) in CALLS {
        list.early(
            format!("early.{name}"),
            format!("{name} before cuInit"),
            move |r| Ok(code(ask(r))),
        );
    }
    for &(name, ask) in CALLS {
        list.add(
            format!("forked.{name}"),
            format!("{name} in a forked child of an initialised process"),
            move |r| in_child(r, ask),
        );
    }
    list.add(
        "forked.cuInit",
        "cuInit in a forked child of an initialised process",
        |r| in_child(r, |r| d!(r, cuInit(0))),
    );
    list.add(
        "forked.cuDriverGetVersion",
        "cuDriverGetVersion in a forked child of an initialised process",
        |r| in_child(r, |r| d!(r, cuDriverGetVersion(&mut 0))),
    );
    list.add(
        "forked.cuMemRelease live",
        "cuMemRelease of the parent's handle in a forked child, then in the parent",
        |r| {
            let handle = r.memory(G)?;
            let child = in_child(r, |r| d!(r, cuMemRelease(handle)))?;
            Ok(format!("child {child}; parent {}", code(r.release(handle))))
        },
    );
    list.add("init.again", "cuInit a second time", |r| {
        Ok(code(d!(r, cuInit(0))))
    });
    list.add("init.flags", "cuInit with flags 1 after cuInit", |r| {
        Ok(code(d!(r, cuInit(1))))
    });
    list.add("init.ready", "cuDeviceGetCount after cuInit", |r| {
        let mut count = 0;
        setup(d!(r, cuDeviceGetCount(&mut count)))?;
        Ok(format!("at least one device: {}", count > 0))
    });
}

unsafe extern "C" {
    fn fork() -> c_int;
    fn _exit(status: c_int) -> !;
}

/// Asks in a forked child; the code comes back as bytes through a pipe.
fn in_child(rig: &mut Rig, ask: impl Fn(&mut Rig) -> Called) -> Result<String, String> {
    let (reader, writer) = rustix::pipe::pipe().map_err(|error| error.to_string())?;
    // SAFETY: the child only asks, writes and exits.
    let child = unsafe { fork() };
    if child == 0 {
        let number = match ask(rig) {
            Ok(()) => 0,
            Err(error) => error.code().map_or(u32::MAX, |code| code.0),
        };
        let _ = rustix::io::write(&writer, &number.to_le_bytes());
        // SAFETY: ends the child without running what the parent will run at its exit.
        unsafe { _exit(0) };
    }
    drop(writer);
    let mut bytes = [0; 4];
    let read = rustix::io::read(&reader, &mut bytes).map_err(|error| error.to_string())?;
    if let Some(pid) = rustix::process::Pid::from_raw(child) {
        let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
    }
    if read == 4 {
        Ok(crate::rig::name_of(CUresult(u32::from_le_bytes(bytes))))
    } else {
        Ok("the child crashed".into())
    }
}
