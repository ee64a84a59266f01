//! Which driver the suite runs on.

use std::fmt;
use std::path::PathBuf;

use crate::{Failure, emulated};

/// The environment variable that chooses the driver where `--driver` does not.
pub const VARIABLE: &str = "VMM_TEST_DRIVER";

/// The driver that was asked for. There is no automatic choice: a suite that runs on something
/// else than it was told proves nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The emulator, inside the test process.
    Emulator,
    /// The real driver, `libcuda.so.1`.
    Cuda,
    /// A driver library at this path.
    Path(PathBuf),
}

impl Choice {
    /// `emulator`, `cuda`, or a path that contains a slash.
    pub fn parse(text: &str) -> Result<Choice, String> {
        match text {
            "emulator" => Ok(Choice::Emulator),
            "cuda" => Ok(Choice::Cuda),
            path if path.contains('/') => Ok(Choice::Path(path.into())),
            other => Err(format!(
                "driver `{other}`: expected `emulator`, `cuda`, or a path that contains a slash"
            )),
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Emulator => f.write_str("emulator"),
            Choice::Cuda => f.write_str("cuda"),
            Choice::Path(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Loads the driver that was asked for. `devices` is how many the emulator pretends to have.
pub(crate) fn load(choice: &Choice, devices: usize) -> Result<vmm_sys::Driver, Failure> {
    match choice {
        Choice::Emulator => emulated::load(devices),
        Choice::Cuda => Ok(vmm_sys::Driver::load()?),
        // SAFETY: whoever names the path on the command line says that it is a CUDA driver.
        Choice::Path(path) => Ok(unsafe { vmm_sys::Driver::load_from(path) }?),
    }
}

/// The driver that the environment chooses, initialised: the emulator where it says nothing.
pub fn from_environment() -> Result<vmm::Driver, Failure> {
    let choice = match std::env::var(VARIABLE) {
        Ok(text) => Choice::parse(&text).map_err(Failure::new)?,
        Err(_) => Choice::Emulator,
    };
    Ok(vmm::Driver::new(load(&choice, 1)?)?)
}

/// The driver and its devices in words, one line each, and the number of devices. A driver without
/// a device is a failure.
pub(crate) fn probe(choice: &Choice) -> Result<(String, usize), Failure> {
    let driver = vmm::Driver::new(load(choice, 1)?)?;
    let version = driver.version();
    let mut text = format!("driver: CUDA {}.{}", version / 1000, version % 1000 / 10);
    if driver.is_emulator() {
        text.push_str(", software emulator");
    } else if let Ok(module) = std::fs::read_to_string("/sys/module/nvidia/version") {
        text.push_str(&format!(", NVIDIA {}", module.trim()));
    }
    let devices = driver.devices();
    if devices.is_empty() {
        return Err(Failure::new("the driver sees no device"));
    }
    for device in &devices {
        let memory = device.memory_info()?;
        text.push_str(&format!(
            "\ndevice {}: {}, {}, {} of {} MiB free",
            device.ordinal(),
            device.name(),
            device.uuid(),
            memory.free >> 20,
            memory.total >> 20
        ));
    }
    Ok((text, devices.len()))
}
