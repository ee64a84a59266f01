//! Devices.

use super::{In, Out, api};
use crate::abi::Device;
use crate::code::Code;
use crate::device;
use std::ffi::{c_char, c_int};

api! {
    fn cuDeviceGetCount as "cuDeviceGetCount"(count: Out<c_int>) |core| {
        count.set(c_int::try_from(core.devices.len()).unwrap_or(c_int::MAX))
    }

    fn cuDeviceGet as "cuDeviceGet"(device: Out<Device>, ordinal: c_int) |core| {
        device.check()?;
        core.device(ordinal)?;
        device.set(ordinal)
    }

    fn cuDeviceGetName as "cuDeviceGetName"(name: Out<c_char>, len: c_int, device: Device) |core| {
        name.check()?;
        let text = core.device(device)?.config.name.as_bytes();
        put_text(name, len, text)
    }

    fn cuDeviceGetUuid as "cuDeviceGetUuid"(uuid: Out<[u8; 16]>, device: Device) |core| {
        uuid.check()?;
        uuid.set(core.device(device)?.config.uuid)
    }

    fn cuDeviceTotalMem as "cuDeviceTotalMem"(bytes: Out<usize>, device: Device) |core| {
        bytes.check()?;
        bytes.set(usize::try_from(core.device(device)?.config.memory).unwrap_or(usize::MAX))
    }

    fn cuDeviceGetAttribute as "cuDeviceGetAttribute"(value: Out<c_int>, attribute: c_int, device: Device) |core| {
        value.check()?;
        let found = device::attribute(core.device(device)?, &core.config, attribute);
        value.set(found.ok_or(Code::INVALID_VALUE)?)
    }

    fn cuDeviceComputeCapability as "cuDeviceComputeCapability"(major: Out<c_int>, minor: Out<c_int>, device: Device) |core| {
        let found = |number| device::attribute(core.device(device)?, &core.config, number).ok_or(Code::INVALID_VALUE);
        major.set(found(75)?)?;
        minor.set(found(76)?)
    }

    fn cuDeviceCanAccessPeer as "cuDeviceCanAccessPeer"(can: Out<c_int>, device: Device, peer: Device) |core| {
        can.check()?;
        core.device(device)?;
        core.device(peer)?;
        let index = |ordinal: c_int| usize::try_from(ordinal).unwrap_or(usize::MAX);
        can.set(c_int::from(device != peer && core.may_access(index(device), index(peer))))
    }

    fn cuDeviceGetPCIBusId as "cuDeviceGetPCIBusId"(text: Out<c_char>, len: c_int, device: Device) |core| {
        text.check()?;
        put_text(text, len, bus_id(core.device(device)?.machine_index).as_bytes())
    }

    fn cuDeviceGetByPCIBusId as "cuDeviceGetByPCIBusId"(device: Out<Device>, text: In<c_char>) |core| {
        let mut wanted = String::new();
        for index in 0..32 {
            // A `char` has a sign on x86-64 and none on aarch64.
            match text.at(index)?.to_ne_bytes() {
                [0] => break,
                [byte] => wanted.push(char::from(byte).to_ascii_lowercase()),
            }
        }
        let parts: Vec<&str> = wanted.split([':', '.']).collect();
        let is_id = matches!(parts.len(), 3 | 4)
            && parts.iter().all(|part| u32::from_str_radix(part, 16).is_ok());
        if !is_id {
            return Err(Code::INVALID_VALUE);
        }
        let full = if wanted.matches(':').count() == 1 { format!("0000:{wanted}") } else { wanted };
        let found = core.devices.iter().position(|device| bus_id(device.machine_index) == full);
        device.set(found.and_then(|index| c_int::try_from(index).ok()).ok_or(Code::INVALID_DEVICE)?)
    }
}

fn bus_id(machine_index: usize) -> String {
    format!("0000:{:02x}:00.0", machine_index + 1)
}

/// As much of the text as there is room for, always ended.
fn put_text(to: Out<c_char>, len: c_int, text: &[u8]) -> crate::code::Result {
    let room = usize::try_from(len)
        .ok()
        .and_then(|len| len.checked_sub(1))
        .ok_or(Code::INVALID_VALUE)?;
    let bytes = text.iter().take(room);
    let end = bytes.len();
    for (index, byte) in bytes.enumerate() {
        to.at(index).set(c_char::from_ne_bytes([*byte]))?;
    }
    to.at(end).set(0)
}
