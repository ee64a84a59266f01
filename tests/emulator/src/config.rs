//! What machine the emulator pretends to be: a builder, and the same from the environment.

use crate::abi::DEVICE_ATTRIBUTES;
use crate::calls::Calls;
use crate::code::Code;
use crate::names::check_function;
use std::collections::BTreeSet;
use std::ffi::c_int;
use std::time::Duration;

/// A machine has no more.
const MOST_DEVICES: usize = 64;
/// Beyond it a point in time could not be told.
pub(crate) const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// Calls that are to fail from the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConfiguredFailure {
    pub function: String,
    pub nth: u64,
    /// This call alone, not every one after it.
    pub once: bool,
    pub code: Code,
}

/// One emulated GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceConfig {
    /// What `cuDeviceGetName` answers; begins with `Software emulator` unless changed.
    pub name: String,
    /// What `cuDeviceGetUuid` answers. Processes share memory of a device by it.
    pub uuid: [u8; 16],
    /// Bytes of memory, a multiple of the granularity; allocations beyond it answer
    /// `OUT_OF_MEMORY`.
    pub memory: u64,
    /// Attribute numbers with the values to answer instead of the emulator's own.
    pub attributes: Vec<(c_int, c_int)>,
}

impl DeviceConfig {
    /// The device that has this place on the emulated machine by default.
    pub fn new(ordinal: usize) -> Self {
        let mut uuid = *b"vmm-emulator\0\0\0\0";
        if let Some(tail) = uuid.last_chunk_mut::<4>() {
            *tail = u32::try_from(ordinal).unwrap_or(u32::MAX).to_be_bytes();
        }
        Self {
            name: format!("Software emulator {ordinal}"),
            uuid,
            memory: 16 << 30,
            attributes: Vec::new(),
        }
    }
}

/// What becomes of fabric handles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fabric {
    /// Fabric handles work between processes of one user on this host.
    Available,
    /// The attribute says no and creating answers `NOT_SUPPORTED`.
    Unavailable,
    /// The attribute says yes and creating answers `NOT_PERMITTED`: no IMEX channel device.
    NotPermitted,
}

/// Which device may use another one's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peers {
    /// Every device every other one.
    All,
    /// None.
    None,
    /// Only these pairs of machine ordinals: the first may use the second's memory.
    Pairs(Vec<(usize, usize)>),
}

/// The emulated machine. The default is one device of 16 GiB under driver 13.0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    pub(crate) devices: Vec<DeviceConfig>,
    pub(crate) driver_version: c_int,
    pub(crate) granularity: u64,
    pub(crate) fabric: Fabric,
    pub(crate) peers: Peers,
    pub(crate) visible: Option<String>,
    pub(crate) host_touch: bool,
    pub(crate) report: bool,
    pub(crate) latencies: Vec<(String, Duration)>,
    pub(crate) failures: Vec<ConfiguredFailure>,
}

impl Default for Config {
    fn default() -> Self {
        Self::new()
    }
}

impl Config {
    /// One device of 16 GiB, driver 13.0, 2 MiB granularity, fabric handles not permitted.
    /// `CUDA_VISIBLE_DEVICES` is read from the environment.
    pub fn new() -> Self {
        Self {
            devices: vec![DeviceConfig::new(0)],
            driver_version: 13_000,
            granularity: 2 << 20,
            fabric: Fabric::NotPermitted,
            peers: Peers::All,
            visible: std::env::var("CUDA_VISIBLE_DEVICES").ok(),
            host_touch: false,
            report: false,
            latencies: Vec::new(),
            failures: Vec::new(),
        }
    }

    /// As many devices, 64 at most, each with a UUID and a name of its own.
    pub fn devices(mut self, count: usize) -> Self {
        // One too many is enough to be refused by.
        self.devices = (0..count.min(MOST_DEVICES + 1))
            .map(DeviceConfig::new)
            .collect();
        self
    }

    /// Changes one device; one that is not there is left out silently.
    pub fn device(mut self, ordinal: usize, change: impl FnOnce(&mut DeviceConfig)) -> Self {
        if let Some(device) = self.devices.get_mut(ordinal) {
            change(device);
        }
        self
    }

    /// Bytes of memory of every device, a multiple of the granularity.
    pub fn memory(mut self, bytes: u64) -> Self {
        for device in &mut self.devices {
            device.memory = bytes;
        }
        self
    }

    /// What `cuDriverGetVersion` answers; functions that came later are not there.
    pub fn driver_version(mut self, version: c_int) -> Self {
        self.driver_version = version;
        self
    }

    /// Granularity in bytes, a power of two that is a multiple of the host's page size.
    pub fn granularity(mut self, bytes: u64) -> Self {
        self.granularity = bytes;
        self
    }

    /// What becomes of fabric handles.
    pub fn fabric(mut self, fabric: Fabric) -> Self {
        self.fabric = fabric;
        self
    }

    /// Which device may use another one's memory.
    pub fn peers(mut self, peers: Peers) -> Self {
        self.peers = peers;
        self
    }

    /// `CUDA_VISIBLE_DEVICES` as given here instead of the environment's; `None` shows all.
    pub fn visible(mut self, list: Option<&str>) -> Self {
        self.visible = list.map(str::to_owned);
        self
    }

    /// An attribute of every device, by its number.
    pub fn attribute(mut self, attribute: c_int, value: c_int) -> Self {
        for device in &mut self.devices {
            device.attributes.retain(|entry| entry.0 != attribute);
            device.attributes.push((attribute, value));
        }
        self
    }

    /// Lets the host touch device memory through its device address, as no real GPU does: for
    /// programs whose kernels run on the host.
    pub fn host_touch(mut self, on: bool) -> Self {
        self.host_touch = on;
        self
    }

    /// Prints what is alive when the process exits.
    pub fn report_at_exit(mut self, on: bool) -> Self {
        self.report = on;
        self
    }

    /// How long a function takes, at most a day. For one that only queues work on a stream it is
    /// the work that takes so long.
    pub fn latency(mut self, function: &str, latency: Duration) -> Self {
        self.latencies.retain(|entry| entry.0 != function);
        self.latencies.push((function.to_owned(), latency));
        self
    }

    /// The `nth` call of a function, counted from 1, answers `code` and does nothing.
    pub fn fail_nth(self, function: &str, nth: u64, code: Code) -> Self {
        self.fail(function, nth, true, code)
    }

    /// The `nth` call of a function and every one after it answer `code` and do nothing.
    pub fn fail_from(self, function: &str, nth: u64, code: Code) -> Self {
        self.fail(function, nth, false, code)
    }

    fn fail(mut self, function: &str, nth: u64, once: bool, code: Code) -> Self {
        self.failures.push(ConfiguredFailure {
            function: function.to_owned(),
            nth,
            once,
            code,
        });
        self
    }

    /// What makes no sense would change nothing, or something else, and nobody would know.
    pub(crate) fn check(&self) -> Result<(), String> {
        let page = rustix::param::page_size() as u64;
        if !self.granularity.is_power_of_two() || !self.granularity.is_multiple_of(page) {
            return Err(format!(
                "granularity {} is not a power of two above the page size {page}",
                self.granularity
            ));
        }
        if self.driver_version < 10_020 || self.driver_version % 10 != 0 {
            return Err(format!(
                "driver version {} is not 10020 or above, 1000 for a major and 10 for a minor step",
                self.driver_version
            ));
        }
        self.check_devices()?;
        self.check_calls()
    }

    fn check_devices(&self) -> Result<(), String> {
        if self.devices.len() > MOST_DEVICES {
            return Err(format!("more than {MOST_DEVICES} devices"));
        }
        let uuids: BTreeSet<_> = self.devices.iter().map(|device| device.uuid).collect();
        if uuids.len() < self.devices.len() {
            return Err("two devices have one UUID".to_owned());
        }
        for (ordinal, device) in self.devices.iter().enumerate() {
            if device.memory == 0 || !device.memory.is_multiple_of(self.granularity) {
                return Err(format!(
                    "device {ordinal} has {} bytes of memory, not one or more times the \
                     granularity {}",
                    device.memory, self.granularity
                ));
            }
        }
        let set = self.devices.iter().flat_map(|device| &device.attributes);
        for (attribute, value) in set {
            if !DEVICE_ATTRIBUTES.contains(attribute) {
                return Err(format!(
                    "attribute {attribute}={value}: the numbers are {} to {}",
                    DEVICE_ATTRIBUTES.start(),
                    DEVICE_ATTRIBUTES.end()
                ));
            }
        }
        let there = 0..self.devices.len();
        match &self.peers {
            Peers::All | Peers::None => Ok(()),
            Peers::Pairs(pairs) => pairs.iter().try_for_each(|(from, to)| {
                match there.contains(from) && there.contains(to) {
                    true => Ok(()),
                    false => Err(format!("peers {from}>{to}: there is no such device")),
                }
            }),
        }
    }

    fn check_calls(&self) -> Result<(), String> {
        for (function, latency) in &self.latencies {
            check_function(function)?;
            if *latency > LONGEST {
                return Err(format!("{function}: {latency:?} is longer than a day"));
            }
        }
        for failure in &self.failures {
            Calls::Of(&failure.function).check(failure.nth, failure.code)?;
        }
        let mut seen = BTreeSet::new();
        let mut calls = self
            .failures
            .iter()
            .map(|failure| (&failure.function, failure.nth));
        match calls.find(|call| !seen.insert(*call)) {
            Some((function, nth)) => Err(format!("{function}: call {nth} is to fail in two ways")),
            None => Ok(()),
        }
    }
}
