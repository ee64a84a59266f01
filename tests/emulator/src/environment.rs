//! `VMM_EMULATOR_*`: the configuration of the shared object.

use crate::code::Code;
use crate::config::{Config, ConfiguredFailure, DeviceConfig, Fabric, Peers};
use crate::symbols::check_function;
use std::ffi::c_int;
use std::time::Duration;

impl Config {
    /// The defaults, changed by the `VMM_EMULATOR_*` variables (see `docs/emulator.md`).
    ///
    /// # Errors
    /// One sentence that names the variable and what it should look like.
    pub fn from_env() -> Result<Self, String> {
        let mut config = Self::new();
        refuse_unknown()?;
        if let Some(count) = read("DEVICES", "a number", |text| text.parse().ok())? {
            config = config.devices(count);
        }
        if let Some(bytes) = read("MEMORY", "a size such as 8G", size)? {
            config = config.memory(bytes);
        }
        if let Some(version) = read("DRIVER_VERSION", "a number such as 12040", |text| {
            text.parse().ok()
        })? {
            config = config.driver_version(version);
        }
        if let Some(bytes) = read("GRANULARITY", "a size such as 2M", size)? {
            config = config.granularity(bytes);
        }
        if let Some(fabric) = read("FABRIC", "available, unavailable or not-permitted", fabric)? {
            config = config.fabric(fabric);
        }
        if let Some(peers) = read("PEERS", "all, none or pairs such as 0>1,1>0", peers)? {
            config = config.peers(peers);
        }
        if let Some(values) = read("ATTRIBUTES", "numbers such as 103=0,128=1", |text| {
            list(text, attribute)
        })? {
            config = values
                .into_iter()
                .fold(config, |config, (attribute, value)| {
                    config.attribute(attribute, value)
                });
        }
        if let Some(uuids) = read("UUIDS", "one GPU-… per device", |text| list(text, uuid))? {
            set(&mut config, "UUIDS", uuids, |device, uuid| {
                device.uuid = uuid
            })?;
        }
        if let Some(names) = read("NAMES", "names separated by commas", |text| {
            list(text, |name| (!name.is_empty()).then(|| name.to_owned()))
        })? {
            set(&mut config, "NAMES", names, |device, name| {
                device.name = name
            })?;
        }
        if let Some(latencies) = read(
            "LATENCY",
            "functions of the driver such as cuMemCreate=1ms,cuMemMap=50us",
            |text| list(text, latency),
        )? {
            config.latencies = latencies;
        }
        if let Some(failures) = read(
            "FAIL",
            "function of the driver, nth call, code, such as cuMemMap:3:2 or, with all after, cuMemMap:3+:2,",
            |text| list(text, failure),
        )? {
            config.failures = failures;
        }
        config.host_touch = read("HOST_TOUCH", "0 or 1", flag)?.unwrap_or(false);
        config.report = read("REPORT", "0 or 1", flag)?.unwrap_or(false);
        Ok(config)
    }
}

/// A mistyped variable would change nothing, and nobody would know.
fn refuse_unknown() -> Result<(), String> {
    const KNOWN: &[&str] = &[
        "DEVICES",
        "MEMORY",
        "DRIVER_VERSION",
        "GRANULARITY",
        "FABRIC",
        "PEERS",
        "ATTRIBUTES",
        "UUIDS",
        "NAMES",
        "LATENCY",
        "FAIL",
        "HOST_TOUCH",
        "REPORT",
    ];
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let unknown = names
        .filter_map(|name| name.strip_prefix("VMM_EMULATOR_").map(str::to_owned))
        .find(|name| !KNOWN.contains(&name.as_str()));
    match unknown {
        Some(name) => Err(format!("VMM_EMULATOR_{name}: there is no such variable")),
        None => Ok(()),
    }
}

fn read<T>(
    name: &str,
    wanted: &str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, String> {
    let variable = format!("VMM_EMULATOR_{name}");
    match std::env::var(&variable) {
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(error) => Err(format!("{variable}: {error}")),
        Ok(text) => match parse(text.trim()) {
            Some(value) => Ok(Some(value)),
            None => Err(format!("{variable}={text}: {wanted} expected")),
        },
    }
}

fn set<T>(
    config: &mut Config,
    name: &str,
    values: Vec<T>,
    change: impl Fn(&mut DeviceConfig, T),
) -> Result<(), String> {
    let (given, devices) = (values.len(), config.devices.len());
    if given != devices {
        return Err(format!(
            "VMM_EMULATOR_{name}: one per device expected; {given} given, {devices} devices"
        ));
    }
    for (device, value) in config.devices.iter_mut().zip(values) {
        change(device, value);
    }
    Ok(())
}

fn list<T>(text: &str, parse: impl Fn(&str) -> Option<T>) -> Option<Vec<T>> {
    text.split(',').map(|entry| parse(entry.trim())).collect()
}

fn size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match text.strip_prefix(digits)? {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn fabric(text: &str) -> Option<Fabric> {
    match text {
        "available" => Some(Fabric::Available),
        "unavailable" => Some(Fabric::Unavailable),
        "not-permitted" => Some(Fabric::NotPermitted),
        _ => None,
    }
}

fn peers(text: &str) -> Option<Peers> {
    match text {
        "all" => Some(Peers::All),
        "none" => Some(Peers::None),
        pairs => list(pairs, |pair| {
            let (from, to) = pair.split_once('>')?;
            Some((from.parse().ok()?, to.parse().ok()?))
        })
        .map(Peers::Pairs),
    }
}

fn attribute(text: &str) -> Option<(c_int, c_int)> {
    let (attribute, value) = text.split_once('=')?;
    Some((attribute.parse().ok()?, value.parse().ok()?))
}

fn uuid(text: &str) -> Option<[u8; 16]> {
    let hex: String = text
        .strip_prefix("GPU-")?
        .chars()
        .filter(|c| *c != '-')
        .collect();
    let mut uuid = [0; 16];
    if hex.len() != 32 || !hex.is_ascii() {
        return None;
    }
    for (index, byte) in uuid.iter_mut().enumerate() {
        *byte = u8::from_str_radix(hex.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(uuid)
}

fn latency(text: &str) -> Option<(String, Duration)> {
    let (function, time) = text.split_once('=')?;
    check_function(function).ok()?;
    let digits = time.trim_end_matches(|c: char| !c.is_ascii_digit());
    let number = digits.parse().ok()?;
    let latency = match time.strip_prefix(digits)? {
        "us" => Duration::from_micros(number),
        "ms" => Duration::from_millis(number),
        "s" => Duration::from_secs(number),
        _ => return None,
    };
    Some((function.to_owned(), latency))
}

fn failure(text: &str) -> Option<ConfiguredFailure> {
    let (function, rest) = text.split_once(':')?;
    let (nth, code) = rest.split_once(':')?;
    check_function(function).ok()?;
    Some(ConfiguredFailure {
        function: function.to_owned(),
        nth: nth.strip_suffix('+').unwrap_or(nth).parse().ok()?,
        once: !nth.ends_with('+'),
        code: Code(code.parse().ok()?),
    })
}

fn flag(text: &str) -> Option<bool> {
    match text {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}
