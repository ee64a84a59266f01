//! Copies and fills.

use super::{In, Out, api};
use crate::abi::{DevicePtr, MemLocation};
use crate::code::{Code, Result};
use crate::copy::{Action, Side, Work};
use crate::core::Locked;
use crate::fault;
use crate::host_span::HostSpan;
use crate::queue::Task;
use std::ffi::{c_uchar, c_uint, c_ushort, c_void};
use std::time::{Duration, Instant};

api! {
    fn cuMemGetInfo as "cuMemGetInfo"(free: Out<usize>, total: Out<usize>) |mut core| {
        let (left, all) = core.memory_info()?;
        free.set(usize::try_from(left).unwrap_or(usize::MAX))?;
        total.set(usize::try_from(all).unwrap_or(usize::MAX))
    }

    fn cuMemcpyHtoD as "cuMemcpyHtoD"(to: DevicePtr, from: In<c_void>, len: usize) |core| {
        now(core, to_device(to, from, len)?, None)
    }

    fn cuMemcpyDtoH as "cuMemcpyDtoH"(to: Out<c_void>, from: DevicePtr, len: usize) |core| {
        now(core, to_host(to, from, len)?, None)
    }

    fn cuMemcpyDtoD as "cuMemcpyDtoD"(to: DevicePtr, from: DevicePtr, len: usize) |core| {
        soon(core, "cuMemcpyDtoD", between(to, from, len))
    }

    fn cuMemcpy as "cuMemcpy"(to: DevicePtr, from: DevicePtr, len: usize) |core| {
        let action = unified(&core, to, from, len)?;
        now(core, action, None)
    }

    fn cuMemcpyPeer as "cuMemcpyPeer"(to: DevicePtr, to_context: u64, from: DevicePtr, from_context: u64, len: usize) |core| {
        core.contexts.get(to_context)?;
        core.contexts.get(from_context)?;
        soon(core, "cuMemcpyPeer", between(to, from, len))
    }

    fn cuMemcpyHtoDAsync as "cuMemcpyHtoDAsync"(to: DevicePtr, from: In<c_void>, len: usize, stream: u64) |core| {
        later(core, "cuMemcpyHtoDAsync", to_device(to, from, len)?, stream)
    }

    fn cuMemcpyDtoHAsync as "cuMemcpyDtoHAsync"(to: Out<c_void>, from: DevicePtr, len: usize, stream: u64) |core| {
        later(core, "cuMemcpyDtoHAsync", to_host(to, from, len)?, stream)
    }

    fn cuMemcpyDtoDAsync as "cuMemcpyDtoDAsync"(to: DevicePtr, from: DevicePtr, len: usize, stream: u64) |core| {
        later(core, "cuMemcpyDtoDAsync", between(to, from, len), stream)
    }

    fn cuMemcpyAsync as "cuMemcpyAsync"(to: DevicePtr, from: DevicePtr, len: usize, stream: u64) |core| {
        let action = unified(&core, to, from, len)?;
        later(core, "cuMemcpyAsync", action, stream)
    }

    fn cuMemcpyPeerAsync as "cuMemcpyPeerAsync"(
        to: DevicePtr, to_context: u64, from: DevicePtr, from_context: u64, len: usize, stream: u64
    ) |core| {
        core.contexts.get(to_context)?;
        core.contexts.get(from_context)?;
        later(core, "cuMemcpyPeerAsync", between(to, from, len), stream)
    }

    fn cuMemsetD8 as "cuMemsetD8"(to: DevicePtr, value: c_uchar, count: usize) |core| {
        let action = fill(&core, to, &[value], count)?;
        soon(core, "cuMemsetD8", action)
    }

    fn cuMemsetD16 as "cuMemsetD16"(to: DevicePtr, value: c_ushort, count: usize) |core| {
        let action = fill(&core, to, &value.to_ne_bytes(), count)?;
        soon(core, "cuMemsetD16", action)
    }

    fn cuMemsetD32 as "cuMemsetD32"(to: DevicePtr, value: c_uint, count: usize) |core| {
        let action = fill(&core, to, &value.to_ne_bytes(), count)?;
        soon(core, "cuMemsetD32", action)
    }

    fn cuMemsetD8Async as "cuMemsetD8Async"(to: DevicePtr, value: c_uchar, count: usize, stream: u64) |core| {
        let action = fill(&core, to, &[value], count)?;
        later(core, "cuMemsetD8Async", action, stream)
    }

    fn cuMemsetD16Async as "cuMemsetD16Async"(to: DevicePtr, value: c_ushort, count: usize, stream: u64) |core| {
        let action = fill(&core, to, &value.to_ne_bytes(), count)?;
        later(core, "cuMemsetD16Async", action, stream)
    }

    fn cuMemsetD32Async as "cuMemsetD32Async"(to: DevicePtr, value: c_uint, count: usize, stream: u64) |core| {
        let action = fill(&core, to, &value.to_ne_bytes(), count)?;
        later(core, "cuMemsetD32Async", action, stream)
    }

    // The ABI of CUDA 2.0, with sizes and device addresses of 32 bits: no address of ours fits.
    fn cuMemcpyHtoD_v1 as "cuMemcpyHtoD"(to: c_uint, from: In<c_void>, len: c_uint) |core| {
        now(core, to_device(to.into(), from, narrow(len)?)?, None)
    }

    fn cuMemcpyDtoH_v1 as "cuMemcpyDtoH"(to: Out<c_void>, from: c_uint, len: c_uint) |core| {
        now(core, to_host(to, from.into(), narrow(len)?)?, None)
    }

    fn cuMemcpyDtoD_v1 as "cuMemcpyDtoD"(to: c_uint, from: c_uint, len: c_uint) |core| {
        now(core, between(to.into(), from.into(), narrow(len)?), None)
    }

    fn cuMemsetD8_v1 as "cuMemsetD8"(to: c_uint, value: c_uchar, count: c_uint) |core| {
        let action = fill(&core, to.into(), &[value], narrow(count)?)?;
        now(core, action, None)
    }

    fn cuMemGetInfo_v1 as "cuMemGetInfo"(free: Out<c_uint>, total: Out<c_uint>) |mut core| {
        let (left, all) = core.memory_info()?;
        free.set(c_uint::try_from(left).unwrap_or(c_uint::MAX))?;
        total.set(c_uint::try_from(all).unwrap_or(c_uint::MAX))
    }
}

fn narrow(len: c_uint) -> Result<usize> {
    usize::try_from(len).map_err(|_| Code::INVALID_VALUE)
}

/// Memory of the program that a C function was given.
fn host(address: u64, len: u64) -> Result<HostSpan> {
    // SAFETY: the caller of the C function vouches for the memory until the work is over.
    unsafe { HostSpan::new(address, len) }
}

fn to_device(to: DevicePtr, from: In<c_void>, len: usize) -> Result<Action> {
    if len == 0 {
        return Ok(Action::Nothing);
    }
    let from = Side::Host(host(from.address(), len as u64)?);
    Ok(Action::Copy {
        to: Side::Device(to),
        from,
        len: len as u64,
    })
}

fn to_host(to: Out<c_void>, from: DevicePtr, len: usize) -> Result<Action> {
    if len == 0 {
        return Ok(Action::Nothing);
    }
    let to = Side::Host(host(to.address(), len as u64)?);
    Ok(Action::Copy {
        to,
        from: Side::Device(from),
        len: len as u64,
    })
}

fn between(to: DevicePtr, from: DevicePtr, len: usize) -> Action {
    if len == 0 {
        return Action::Nothing;
    }
    Action::Copy {
        to: Side::Device(to),
        from: Side::Device(from),
        len: len as u64,
    }
}

/// Under unified addressing the address says which side it is on.
fn unified(core: &Locked, to: DevicePtr, from: DevicePtr, len: usize) -> Result<Action> {
    if len == 0 {
        return Ok(Action::Nothing);
    }
    let side = |address: DevicePtr| match core.space.reservation_at(address) {
        Some(_) => Ok(Side::Device(address)),
        None => host(address, len as u64).map(Side::Host),
    };
    Ok(Action::Copy {
        to: side(to)?,
        from: side(from)?,
        len: len as u64,
    })
}

fn fill(core: &Locked, to: DevicePtr, value: &[u8], count: usize) -> Result<Action> {
    let len = (count as u64)
        .checked_mul(value.len() as u64)
        .ok_or(Code::INVALID_VALUE)?;
    if !to.is_multiple_of(value.len() as u64) {
        return Err(Code::INVALID_VALUE);
    }
    if len == 0 {
        return Ok(Action::Nothing);
    }
    match core.pinned_at(to) {
        Some((start, memory)) if len > memory.size - (to - start) => Err(Code::INVALID_VALUE),
        Some(_) => Ok(Action::Copy {
            to: Side::Host(host(to, len)?),
            from: Side::Staged(repeated(value, len)?),
            len,
        }),
        None => Ok(Action::Fill {
            to,
            len,
            pattern: value.to_vec(),
        }),
    }
}

fn repeated(value: &[u8], len: u64) -> Result<Vec<u8>> {
    let len = usize::try_from(len).map_err(|_| Code::INVALID_VALUE)?;
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(len)
        .map_err(|_| Code::OUT_OF_MEMORY)?;
    bytes.extend(value.iter().copied().cycle().take(len));
    Ok(bytes)
}

/// A blocking call runs on the legacy stream, behind what that waits for.
fn now(mut core: Locked, action: Action, stream: Option<u64>) -> Result {
    let (context, location) = core.current()?;
    let work = Work::new(context, location, action, &core.space);
    let stream = core.stream(stream.unwrap_or(0))?;
    core.no_capture_on(stream)?;
    core.check_work(&work)?;
    core = wait_for(core, stream)?;
    work.perform(&core.space)
}

/// What only touches device memory is queued on the legacy stream: the call does not wait for it,
/// although its name does not say so. Memory of the host is waited for.
fn soon(mut core: Locked, function: &str, action: Action) -> Result {
    let (context, location) = core.current()?;
    let work = Work::new(context, location, action, &core.space);
    let stream = core.stream(0)?;
    core.no_capture_on(stream)?;
    core.usable(context)?;
    core.check_work(&work)?;
    let waits = core.is_in_host_memory(&work);
    submit(core, function, work, stream, waits)
}

fn later(mut core: Locked, function: &str, action: Action, stream: u64) -> Result {
    // A stream brings its context along; only the default streams need a current one.
    let stream = core.stream(stream)?;
    let context = core.streams.get(stream)?.context;
    let work = Work::new(context, core.location_of(context)?, action, &core.space);
    let recorded = core.is_recorded(stream)?;
    core.check_work(&work)?;
    if recorded && !matches!(work.action, Action::Nothing) {
        return core.add_captured(stream);
    }
    // As with a real driver, a copy to pageable memory is done when the call returns.
    let waits = work.writes_host() && !core.is_pinned_target(&work);
    submit(core, function, work, stream, waits)
}

/// Gives work that was found right to a stream, and waits for it where that is how the call is.
fn submit(mut core: Locked, function: &str, mut work: Work, stream: u64, waits: bool) -> Result {
    if matches!(work.action, Action::Nothing) {
        return Ok(());
    }
    let context = work.context;
    let latency = fault::latency(function);
    if latency == Duration::ZERO && !core.streams.is_held() && !core.streams.is_busy(stream)? {
        core.perform_on_stream(&work);
        return Ok(());
    }
    if !waits {
        work.stage()?;
    }
    let now = Instant::now();
    let step = core
        .streams
        .enqueue(stream, Task::Work(work), latency, now)?;
    if waits {
        core = core.wait_for(&[step]);
        return core.usable(context);
    }
    Ok(())
}

/// Waits, then says whether the stream's context is still usable.
pub(super) fn wait_for(mut core: Locked, stream: u64) -> Result<Locked> {
    let context = core.streams.get(stream)?.context;
    let steps = core.streams.awaited_by(stream)?;
    core = core.wait_for(&steps);
    core.usable(context)?;
    Ok(core)
}

impl crate::core::Core {
    /// Bytes of the current device that are free, and all of them.
    fn memory_info(&mut self) -> Result<(u64, u64)> {
        let (_, location) = self.current()?;
        let config = &self.device(location.id)?.config;
        let (uuid, all) = (config.uuid, config.memory);
        Ok((all.saturating_sub(self.memory.used(uuid)), all))
    }

    /// The answer of a blocking call, and of queueing.
    fn check_work(&mut self, work: &Work) -> Result {
        let checked = work.check(&self.space);
        if checked.is_err() && work.meets_no_memory(&self.space) {
            self.misuse.use_after_unmap += 1;
        }
        checked
    }

    /// Whether what a copy or fill writes to is memory of the host, also at a device address.
    fn is_in_host_memory(&self, work: &Work) -> bool {
        let target = match &work.action {
            Action::Copy {
                to: Side::Host(_), ..
            } => return true,
            Action::Copy {
                to: Side::Device(to),
                ..
            }
            | Action::Fill { to, .. } => *to,
            _ => return false,
        };
        self.space.at(target).is_some_and(|(_, mapping)| {
            mapping.physical.record.location.kind != MemLocation::DEVICE
        })
    }

    /// Whether a copy's host side is memory that `cuMemAllocHost` and the like know.
    fn is_pinned_target(&self, work: &Work) -> bool {
        let Some(address) = work.host_target() else {
            return false;
        };
        self.pinned_at(address).is_some()
            || self.space.reservation_at(address).is_some_and(|_| {
                self.space.at(address).is_some_and(|(_, mapping)| {
                    mapping.physical.record.location.kind != MemLocation::DEVICE
                })
            })
    }
}
