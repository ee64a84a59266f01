//! Contexts.

use super::{Out, api};
use crate::abi::Device;
use crate::code::{Code, Result};
use crate::context;
use crate::core::{Core, Locked};
use crate::host_function;
use std::ffi::{c_int, c_uint, c_void};

const KNOWN_FLAGS: c_uint = 0xff;

api! {
    fn cuDevicePrimaryCtxRetain as "cuDevicePrimaryCtxRetain"(context: Out<u64>, device: Device) |mut core| {
        context.check()?;
        let index = index_of(&core, device)?;
        context.set(core.contexts.retain_primary(index))
    }

    fn cuDevicePrimaryCtxRelease as "cuDevicePrimaryCtxRelease"(device: Device) |mut core| {
        let index = index_of(&core, device)?;
        if let Some(last) = core.contexts.primary_with_one_reference(index) {
            core = core.finish(last);
        }
        if let Some(gone) = core.contexts.release_primary(index)? {
            core.drop_context(gone);
        }
        Ok(())
    }

    fn cuDevicePrimaryCtxReset as "cuDevicePrimaryCtxReset"(device: Device) |mut core| {
        let index = index_of(&core, device)?;
        if let Some(primary) = core.contexts.primary_id(index) {
            core = core.finish(primary);
        }
        if let Some(gone) = core.contexts.reset_primary(index) {
            core.drop_context(gone);
        }
        Ok(())
    }

    fn cuDevicePrimaryCtxSetFlags as "cuDevicePrimaryCtxSetFlags"(device: Device, flags: c_uint) |mut core| {
        let index = index_of(&core, device)?;
        if flags & !KNOWN_FLAGS != 0 {
            return Err(Code::INVALID_VALUE);
        }
        core.contexts.set_primary_flags(index, flags);
        Ok(())
    }

    fn cuDevicePrimaryCtxGetState as "cuDevicePrimaryCtxGetState"(device: Device, flags: Out<c_uint>, active: Out<c_int>) |mut core| {
        let index = index_of(&core, device)?;
        let (set, is_active) = core.contexts.primary_state(index);
        flags.set(set)?;
        active.set(c_int::from(is_active))
    }

    fn cuCtxCreate as "cuCtxCreate"(context: Out<u64>, flags: c_uint, device: Device) |mut core| {
        create(&mut core, context, flags, device)
    }

    fn cuCtxCreate_v3 as "cuCtxCreate"(context: Out<u64>, _affinity: *mut c_void, count: c_int, flags: c_uint, device: Device) |mut core| {
        if count != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        create(&mut core, context, flags, device)
    }

    fn cuCtxCreate_v4 as "cuCtxCreate"(context: Out<u64>, params: *mut c_void, flags: c_uint, device: Device) |mut core| {
        if !params.is_null() {
            return Err(Code::NOT_SUPPORTED);
        }
        create(&mut core, context, flags, device)
    }

    fn cuCtxDestroy as "cuCtxDestroy"(context: u64) |mut core| {
        core.contexts.check_created(context)?;
        core = core.finish(context);
        core.contexts.destroy(context)?;
        core.drop_context(context);
        Ok(())
    }

    fn cuCtxGetCurrent as "cuCtxGetCurrent"(context: Out<u64>) |_| {
        context.set(context::top().unwrap_or(0))?;
        match host_function::is_inside() {
            true => Err(Code::NOT_PERMITTED),
            false => Ok(()),
        }
    }

    fn cuCtxSetCurrent as "cuCtxSetCurrent"(context: u64) |core| {
        if context != 0 {
            core.contexts.check_known(context)?;
        }
        context::pop();
        if context != 0 {
            context::push(context)?;
        }
        Ok(())
    }

    fn cuCtxPushCurrent as "cuCtxPushCurrent"(context: u64) |core| {
        if context == 0 {
            return Err(Code::INVALID_VALUE);
        }
        core.contexts.check_known(context)?;
        context::push(context)
    }

    fn cuCtxPopCurrent as "cuCtxPopCurrent"(context: Out<u64>) |_| {
        let popped = context::pop().ok_or(Code::INVALID_CONTEXT)?;
        context.set_if_wanted(popped);
        Ok(())
    }

    fn cuCtxGetDevice as "cuCtxGetDevice"(device: Out<Device>) |core| {
        let context = context::top().ok_or(Code::INVALID_CONTEXT)?;
        device.set(core.location_of(context)?.id)
    }

    fn cuCtxGetDevice_v2 as "cuCtxGetDevice"(device: Out<Device>, context: u64) |core| {
        let context = given_or_current(&core, context)?;
        device.set(core.location_of(context)?.id)
    }

    fn cuCtxGetFlags as "cuCtxGetFlags"(flags: Out<c_uint>) |core| {
        let context = context::top().ok_or(Code::INVALID_CONTEXT)?;
        flags.set(core.contexts.get(context)?.flags)
    }

    fn cuCtxGetApiVersion as "cuCtxGetApiVersion"(context: u64, version: Out<c_uint>) |core| {
        core.contexts.get(given_or_current(&core, context)?)?;
        version.set(3020)
    }

    fn cuCtxGetStreamPriorityRange as "cuCtxGetStreamPriorityRange"(least: Out<c_int>, greatest: Out<c_int>) |core| {
        core.current()?;
        least.set_if_wanted(0);
        greatest.set_if_wanted(0);
        Ok(())
    }

    fn cuCtxSynchronize as "cuCtxSynchronize"() |core| {
        let (context, _) = core.current()?;
        synchronize(core, context)
    }

    fn cuCtxSynchronize_v2 as "cuCtxSynchronize"(context: u64) |core| {
        let context = given_or_current(&core, context)?;
        synchronize(core, context)
    }

    fn cuCtxEnablePeerAccess as "cuCtxEnablePeerAccess"(peer: u64, flags: c_uint) |mut core| {
        let (current, here) = core.current()?;
        let there = core.contexts.named(peer)?.device;
        if flags != 0 || current == peer {
            return Err(Code::INVALID_VALUE);
        }
        if !core.may_access(usize::try_from(here.id).unwrap_or(usize::MAX), there) {
            return Err(Code::PEER_ACCESS_UNSUPPORTED);
        }
        if core.enabled_peers.contains(&(current, there)) {
            return Err(Code::PEER_ACCESS_ALREADY_ENABLED);
        }
        core.enabled_peers.push((current, there));
        Ok(())
    }

    fn cuCtxDisablePeerAccess as "cuCtxDisablePeerAccess"(peer: u64) |mut core| {
        let (current, _) = core.current()?;
        let there = core.contexts.named(peer)?.device;
        let enabled = core.enabled_peers.iter().position(|entry| *entry == (current, there));
        core.enabled_peers.swap_remove(enabled.ok_or(Code::PEER_ACCESS_NOT_ENABLED)?);
        Ok(())
    }
}

impl Locked {
    fn drop_context(&mut self, context: u64) {
        self.drop_streams(context);
        self.drop_linear(context);
        self.drop_pinned(context);
        self.enabled_peers.retain(|entry| entry.0 != context);
    }
}

fn create(core: &mut Core, context: Out<u64>, flags: c_uint, device: Device) -> Result {
    context.check()?;
    let index = index_of(core, device)?;
    if flags & !KNOWN_FLAGS != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let made = core.contexts.create(index, flags, false);
    if let Err(full) = context::push(made) {
        core.contexts.destroy(made)?;
        return Err(full);
    }
    context.set(made)
}

fn synchronize(mut core: Locked, context: u64) -> Result {
    core.usable(context)?;
    core.no_capture_in(context)?;
    core = core.finish(context);
    core.usable(context)
}

fn given_or_current(core: &Core, context: u64) -> Result<u64> {
    if context == 0 {
        return context::top().ok_or(Code::INVALID_CONTEXT);
    }
    core.contexts.check_known(context)?;
    Ok(context)
}

fn index_of(core: &Core, device: Device) -> Result<usize> {
    core.device(device)?;
    usize::try_from(device).map_err(|_| Code::INVALID_DEVICE)
}
