//! Contexts.

use super::List;
use crate::rig::{G, code, d, setup, value};
use std::ptr::null_mut;
use vmm_sys::*;

pub fn add(list: &mut List) {
    list.add(
        "context.none current",
        "cuCtxGetCurrent without a context",
        |r| {
            let mut context = 1 as CUcontext;
            Ok(value(
                d!(r, cuCtxGetCurrent(&mut context))
                    .map(|()| format!("null: {}", context.is_null())),
            ))
        },
    );
    list.add(
        "context.pop none",
        "cuCtxPopCurrent without a context",
        |r| Ok(code(d!(r, cuCtxPopCurrent(&mut null_mut())))),
    );
    list.add("context.push null", "cuCtxPushCurrent of null", |r| {
        Ok(code(d!(r, cuCtxPushCurrent(null_mut()))))
    });
    list.add(
        "context.set null",
        "cuCtxSetCurrent of null without a context",
        |r| Ok(code(d!(r, cuCtxSetCurrent(null_mut())))),
    );
    list.add(
        "context.device none",
        "cuCtxGetDevice without a context",
        |r| Ok(code(d!(r, cuCtxGetDevice(&mut 0)))),
    );
    list.add(
        "context.synchronize none",
        "cuCtxSynchronize without a context",
        |r| Ok(code(d!(r, cuCtxSynchronize()))),
    );
    list.add(
        "context.memory info none",
        "cuMemGetInfo without a context",
        |r| Ok(code(d!(r, cuMemGetInfo(&mut 0, &mut 0)))),
    );
    list.add(
        "context.stream none",
        "cuStreamCreate without a context",
        |r| Ok(code(d!(r, cuStreamCreate(&mut null_mut(), 0)))),
    );
    list.add(
        "context.event none",
        "cuEventCreate without a context",
        |r| Ok(code(d!(r, cuEventCreate(&mut null_mut(), 0)))),
    );
    list.add(
        "context.default stream none",
        "cuStreamSynchronize of the default stream without a context",
        |r| Ok(code(d!(r, cuStreamSynchronize(null_mut())))),
    );
    list.add(
        "context.priorities none",
        "cuCtxGetStreamPriorityRange without a context",
        |r| Ok(code(d!(r, cuCtxGetStreamPriorityRange(&mut 0, &mut 0)))),
    );
    list.add(
        "context.allocate none",
        "cuMemAlloc without a context",
        |r| Ok(code(d!(r, cuMemAlloc(&mut 0, G)))),
    );
    list.add(
        "context.allocate host none",
        "cuMemAllocHost without a context",
        |r| Ok(code(d!(r, cuMemAllocHost(&mut null_mut(), 4096)))),
    );
    list.add(
        "context.retain twice",
        "whether cuDevicePrimaryCtxRetain twice gives the same context",
        |r| {
            let mut context = null_mut();
            setup(d!(r, cuDevicePrimaryCtxRetain(&mut context, 0)))?;
            setup(d!(r, cuDevicePrimaryCtxRelease(0)))?;
            Ok(format!("same: {}", context == r.context()))
        },
    );
    list.add(
        "context.retain bad",
        "cuDevicePrimaryCtxRetain of device 99",
        |r| Ok(code(d!(r, cuDevicePrimaryCtxRetain(&mut null_mut(), 99)))),
    );
    list.add(
        "context.retain null",
        "cuDevicePrimaryCtxRetain to a null pointer",
        |r| Ok(code(d!(r, cuDevicePrimaryCtxRetain(null_mut(), 0)))),
    );
    list.add(
        "context.release bad",
        "cuDevicePrimaryCtxRelease of device 99",
        |r| Ok(code(d!(r, cuDevicePrimaryCtxRelease(99)))),
    );
    list.add(
        "context.state",
        "cuDevicePrimaryCtxGetState of a retained context",
        |r| {
            let (mut flags, mut active) = (77, 77);
            Ok(value(
                d!(r, cuDevicePrimaryCtxGetState(0, &mut flags, &mut active))
                    .map(|()| format!("active {active}")),
            ))
        },
    );
    list.add(
        "context.push pop",
        "push, get current, pop, get current",
        |r| {
            setup(d!(r, cuCtxPushCurrent(r.context())))?;
            let (mut inside, mut popped, mut after) = (null_mut(), null_mut(), null_mut());
            setup(d!(r, cuCtxGetCurrent(&mut inside)))?;
            setup(d!(r, cuCtxPopCurrent(&mut popped)))?;
            setup(d!(r, cuCtxGetCurrent(&mut after)))?;
            Ok(format!(
                "inside {}, popped {}, after null {}",
                inside == r.context(),
                popped == r.context(),
                after.is_null()
            ))
        },
    );
    list.add(
        "context.pop to null",
        "cuCtxPopCurrent to a null pointer",
        |r| {
            setup(d!(r, cuCtxPushCurrent(r.context())))?;
            let popped = code(d!(r, cuCtxPopCurrent(null_mut())));
            let mut after = null_mut();
            setup(d!(r, cuCtxGetCurrent(&mut after)))?;
            Ok(format!(
                "{popped}, then current is null: {}",
                after.is_null()
            ))
        },
    );
    list.add(
        "context.set replaces",
        "push, set null, get current, pop",
        |r| {
            setup(d!(r, cuCtxPushCurrent(r.context())))?;
            setup(d!(r, cuCtxSetCurrent(null_mut())))?;
            let mut after = null_mut();
            setup(d!(r, cuCtxGetCurrent(&mut after)))?;
            Ok(format!(
                "null: {}, pop {}",
                after.is_null(),
                code(d!(r, cuCtxPopCurrent(&mut null_mut())))
            ))
        },
    );
    list.add(
        "context.device",
        "cuCtxGetDevice with the context of device 0",
        |r| {
            r.current()?;
            let mut device = 77;
            Ok(value(d!(r, cuCtxGetDevice(&mut device)).map(|()| device)))
        },
    );
    list.add(
        "context.synchronize",
        "cuCtxSynchronize of an idle context",
        |r| {
            r.current()?;
            Ok(code(d!(r, cuCtxSynchronize())))
        },
    );
    list.alone("context.released", "retain once, make current, release: state, current, use", |r| {
        r.current()?;
        setup(d!(r, cuDevicePrimaryCtxRelease(0)))?;
        let (mut flags, mut active, mut current) = (0, 77, null_mut());
        setup(d!(r, cuDevicePrimaryCtxGetState(0, &mut flags, &mut active)))?;
        let get = code(d!(r, cuCtxGetCurrent(&mut current)));
        Ok(format!(
            "active {active}; get current {get}, the same {}; synchronize {}; memory info {}; stream {}; release again {}",
            current == r.context(),
            code(d!(r, cuCtxSynchronize())),
            code(d!(r, cuMemGetInfo(&mut 0, &mut 0))),
            code(d!(r, cuStreamCreate(&mut null_mut(), 0))),
            code(d!(r, cuDevicePrimaryCtxRelease(0))),
        ))
    });
    list.alone(
        "context.revived",
        "retain, release, retain: whether the context is the same and usable",
        |r| {
            let before = r.context();
            setup(d!(r, cuDevicePrimaryCtxRelease(0)))?;
            let mut again = null_mut();
            setup(d!(r, cuDevicePrimaryCtxRetain(&mut again, 0)))?;
            setup(d!(r, cuCtxSetCurrent(again)))?;
            Ok(format!(
                "same {}; memory info {}",
                before == again,
                code(d!(r, cuMemGetInfo(&mut 0, &mut 0)))
            ))
        },
    );
    list.alone(
        "context.memory survives",
        "memory mapped before the last release of the context, read after a new retain",
        |r| {
            r.current()?;
            let address = r.mapped(&[G], 3)?;
            setup(d!(r, cuMemsetD8(address, 0x5a, G)))?;
            setup(d!(r, cuDevicePrimaryCtxRelease(0)))?;
            let mut again = null_mut();
            setup(d!(r, cuDevicePrimaryCtxRetain(&mut again, 0)))?;
            setup(d!(r, cuCtxSetCurrent(again)))?;
            let mut byte = [0_u8; 4];
            let read = code(d!(r, cuMemcpyDtoH(byte.as_mut_ptr().cast(), address, 4)));
            Ok(format!(
                "read {read}, bytes {byte:x?}; unmap {}",
                code(r.unmap(address, G))
            ))
        },
    );
    list.alone(
        "context.second",
        "cuCtxCreate, current, cuCtxDestroy, current",
        |r| {
            let mut made = null_mut();
            let created = code(d!(r, cuCtxCreate(&mut made, 0, 0)));
            let mut current = null_mut();
            setup(d!(r, cuCtxGetCurrent(&mut current)))?;
            let was = current == made;
            let destroyed = code(d!(r, cuCtxDestroy(made)));
            setup(d!(r, cuCtxGetCurrent(&mut current)))?;
            Ok(format!(
                "create {created}, current {was}; destroy {destroyed}, current null {}",
                current.is_null()
            ))
        },
    );
    list.alone(
        "context.destroy primary",
        "cuCtxDestroy of the primary context",
        |r| Ok(code(d!(r, cuCtxDestroy(r.context())))),
    );
    list.alone("context.set flags", "cuCtxCreate with flags 0x1000", |r| {
        Ok(code(d!(r, cuCtxCreate(&mut null_mut(), 0x1000, 0))))
    });
}
