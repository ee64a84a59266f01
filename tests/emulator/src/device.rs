//! Devices as the program sees them: attributes, names, UUIDs, visibility.

use crate::abi::DEVICE_ATTRIBUTES;
use crate::config::{Config, DeviceConfig, Fabric};
use std::ffi::c_int;

/// One emulated GPU.
#[derive(Debug, Clone)]
pub(crate) struct Device {
    pub config: DeviceConfig,
    /// Its place among all devices of the machine, hidden ones included.
    pub machine_index: usize,
}

/// The devices that `CUDA_VISIBLE_DEVICES` leaves, in its order. As with the real driver, the
/// list ends at the first entry that names nothing.
pub(crate) fn visible(config: &Config) -> Vec<Device> {
    let all: Vec<Device> = config
        .devices
        .iter()
        .enumerate()
        .map(|(machine_index, config)| Device {
            config: config.clone(),
            machine_index,
        })
        .collect();
    let Some(wanted) = &config.visible else {
        return all;
    };
    let mut seen: Vec<Device> = Vec::new();
    for entry in wanted.split(',').map(str::trim) {
        let found = match entry.strip_prefix("GPU-") {
            Some(hex) => by_uuid_prefix(&all, hex),
            None => entry
                .parse::<usize>()
                .ok()
                .and_then(|ordinal| all.get(ordinal)),
        };
        let Some(device) = found else { break };
        if seen
            .iter()
            .any(|other| other.machine_index == device.machine_index)
        {
            return Vec::new();
        }
        seen.push(device.clone());
    }
    seen
}

fn by_uuid_prefix<'a>(all: &'a [Device], hex: &str) -> Option<&'a Device> {
    let wanted: String = hex
        .chars()
        .filter(|c| *c != '-')
        .collect::<String>()
        .to_ascii_lowercase();
    let mut matches = all.iter().filter(|device| {
        let uuid: String = device
            .config
            .uuid
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        !wanted.is_empty() && uuid.starts_with(&wanted)
    });
    let first = matches.next()?;
    matches.next().is_none().then_some(first)
}

/// `None` for a number that is no attribute.
pub(crate) fn attribute(device: &Device, config: &Config, attribute: c_int) -> Option<c_int> {
    if let Some((_, value)) = device
        .config
        .attributes
        .iter()
        .find(|entry| entry.0 == attribute)
    {
        return Some(*value);
    }
    let value = match attribute {
        1..=3 => 1024,
        4 => 64,
        5 => c_int::MAX,
        6 | 7 => 65_535,
        8 => 49_152,
        9 => 65_536,
        10 => 32,
        11 => c_int::MAX,
        12 | 82 => 65_536,
        13 => 1_000_000,
        14 => 512,
        15 | 18 => c_int::from(attribute == 15),
        16 => 1,
        19 | 31 | 32 | 41 | 78 => 1,
        33 => c_int::try_from(device.machine_index).unwrap_or(0) + 1,
        36 => 1_000_000,
        37 => 64,
        38 => 1 << 20,
        39 => 2048,
        40 => 1,
        75 => 9,
        76 => 0,
        81 => 65_536,
        // Managed memory, memory pools, launches and the like are not emulated.
        83 | 89 | 95 | 115 | 119 | 132 => 0,
        102 | 103 => 1,
        // Compression and GPUDirect RDMA, whose flags `cuMemCreate` grants.
        107 | 110 => 1,
        128 => c_int::from(config.fabric != Fabric::Unavailable),
        // The one host node that owns the device, and host memory under the same calls.
        134 => 0,
        131 => -1,
        141 | 145 => 1,
        attribute if DEVICE_ATTRIBUTES.contains(&attribute) => 0,
        _ => return None,
    };
    Some(value)
}
