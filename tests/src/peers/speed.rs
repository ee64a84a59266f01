//! What the other GPU costs: copies through a mapping that it was given, against the driver's own
//! copy between two GPUs, and sharing with an importer that works on the other one.

use std::ptr::null_mut;
use std::time::{Duration, Instant};

use vmm::sys::CUcontext;
use vmm::{Access, Allocator, Device, Stream};
use vmm_ipc::{Channel, Exporter, ImportOptions, PeerPolicy};

use super::{allocator, device, expect};
use crate::driver::Choice;
use crate::{Case, Context, Failure, Link, cases};

pub const CASES: &[Case] = cases![
    a_copy_through_a_peer_mapping_is_as_fast_as_a_peer_copy: devices(2) timeout(120),
    an_importer_on_the_other_device_is_served_as_fast: devices(2) timeout(120),
];

/// On the emulator only what arrives is checked: what its copies take says nothing.
fn is_hardware(context: &Context) -> bool {
    *context.choice() != Choice::Emulator
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// A primary context as the driver's own copy wants it, given back when it goes.
struct Primary<'a> {
    sys: &'a vmm::sys::Driver,
    ordinal: i32,
    context: CUcontext,
}

impl<'a> Primary<'a> {
    fn retain(device: &'a Device) -> Result<Self, Failure> {
        let (sys, ordinal) = (device.driver().sys(), device.ordinal() as i32);
        let mut context = null_mut();
        // SAFETY: a pointer to a value of the right type; released in the drop.
        unsafe { sys.cuDevicePrimaryCtxRetain(&mut context, ordinal) }?;
        Ok(Primary {
            sys,
            ordinal,
            context,
        })
    }
}

impl Drop for Primary<'_> {
    fn drop(&mut self) {
        // SAFETY: retained in `retain`, once.
        let released = unsafe { self.sys.cuDevicePrimaryCtxRelease(self.ordinal) };
        released.expect("a context that was retained is released");
    }
}

fn a_copy_through_a_peer_mapping_is_as_fast_as_a_peer_copy(
    context: &Context,
) -> Result<(), Failure> {
    let (near, far) = (device(context, 0)?, device(context, 1)?);
    let (size, rounds) = match is_hardware(context) {
        true => (256 << 20, 20),
        false => (4 << 20, 2),
    };
    let on = |device: &Device, peer: &Device| {
        let builder = Allocator::builder(device).peer(peer, Access::ReadWrite);
        builder.build()?.allocate(size)
    };
    let (from, to) = (on(&near, &far)?, on(&far, &near)?);
    let (stream, sys) = (Stream::new(&near)?, near.driver().sys());
    let (here, there) = (Primary::retain(&near)?, Primary::retain(&far)?);
    let mapped = || Ok::<_, Failure>(from.copy_to_on(&stream, 0, &to, 0, size)?);
    let driver = || {
        let (to, from) = (to.address(), from.address());
        let (there, here) = (there.context, here.context);
        // SAFETY: both ranges are mapped and `size` long, and the round waits for the stream.
        Ok(unsafe { sys.cuMemcpyPeerAsync(to, there, from, here, size, stream.as_raw()) }?)
    };
    let mut times = [Vec::new(), Vec::new()];
    let copies: [&dyn Fn() -> Result<(), Failure>; 2] = [&mapped, &driver];
    for round in 0..rounds {
        for (copy, times) in copies.iter().zip(&mut times) {
            let value = round as u8 + 1;
            from.fill(0, size, value)?;
            to.fill(0, size, 0)?;
            from.synchronize()?;
            to.synchronize()?;
            let start = Instant::now();
            copy()?;
            stream.synchronize()?;
            times.push(start.elapsed());
            let mut ends = [0; 2];
            to.read(0, &mut ends[..1])?;
            to.read(size - 1, &mut ends[1..])?;
            assert_eq!(ends, [value; 2], "the copy did not arrive");
        }
    }
    let [mapped, driver] = times.map(median);
    let rate = |time: Duration| size as f64 / time.as_secs_f64() / 1e9;
    println!(
        "{} MiB: {:.0} GB/s through the mapping, {:.0} GB/s by cuMemcpyPeerAsync",
        size >> 20,
        rate(mapped),
        rate(driver)
    );
    assert!(!is_hardware(context) || mapped < 2 * driver);
    Ok(())
}

/// Imports as often as it is told, with access for the device that it is told.
pub fn working_importer(context: &Context, mut link: Link) -> Result<(), Failure> {
    let driver = context.driver()?;
    let mut channel = Channel::from_fd(link.take_data()?, PeerPolicy::SameUser)?;
    // Kept mapped on both, as a process has other memory.
    let _anchors = driver
        .devices()
        .iter()
        .map(|device| Allocator::builder(device).build()?.allocate(1))
        .collect::<Result<Vec<_>, _>>()?;
    loop {
        let ordinal = match link.hear()?.as_str() {
            "done" => return Ok(()),
            ordinal => ordinal.parse()?,
        };
        let worker = driver.device(ordinal)?;
        let options = ImportOptions::read_write().peer(&worker, Access::ReadWrite);
        let imported = options.receive(driver, &mut channel)?;
        super::fill_by(&worker, imported.buffer(), 0, ordinal as u8 + 51)?;
        drop(imported);
        link.say("written")?;
    }
}

fn an_importer_on_the_other_device_is_served_as_fast(context: &Context) -> Result<(), Failure> {
    let (near, far) = (device(context, 0)?, device(context, 1)?);
    let rounds = if is_hardware(context) { 40 } else { 3 };
    let allocator = allocator(&near, &[near.clone(), far])?;
    let buffer = allocator.allocate(allocator.granularity())?;
    let exporter = Exporter::new(&near)?;
    let mut peer = context.peer("peers::working importer")?;
    let mut channel = Channel::from_fd(peer.take_data()?, PeerPolicy::SameUser)?;
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..rounds {
        for (ordinal, times) in times.iter_mut().enumerate() {
            peer.tell(&ordinal.to_string())?;
            let start = Instant::now();
            exporter.share(&buffer, &mut channel)?;
            // The first of each makes the context.
            if round > 0 {
                times.push(start.elapsed());
            }
            peer.expect("written")?;
            expect(&buffer, &[ordinal as u8 + 51])?;
        }
    }
    peer.tell("done")?;
    peer.finish()?;
    let [same, other] = times.map(median);
    println!("one chunk: {same:?} to an importer on the same GPU, {other:?} to one on the other");
    assert!(!is_hardware(context) || other < 3 * same);
    Ok(())
}
