//! `VMM_EMULATOR_*`: the configuration of the shared object.

use crate::code::Code;
use crate::config::{Config, ConfiguredFailure, DeviceConfig, Fabric, Peers};
use crate::names::check_function;
use std::collections::BTreeSet;
use std::ffi::c_int;
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

impl Config {
    /// The defaults, changed by the `VMM_EMULATOR_*` variables (see `docs/emulator.md`).
    ///
    /// # Errors
    /// One sentence that names the variable and what it should look like.
    pub fn from_env() -> Result<Self, String> {
        let mut config = Self::new();
        refuse_unknown()?;
        if let Some(count) = read("DEVICES", "a number", number)? {
            config = config.devices(count);
        }
        if let Some(bytes) = read("MEMORY", "a size such as 8G", size)? {
            config = config.memory(bytes);
        }
        if let Some(version) = read("DRIVER_VERSION", "a number such as 12040", number)? {
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
            once("ATTRIBUTES", &values)?;
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
            list(text, name)
        })? {
            set(&mut config, "NAMES", names, |device, name| {
                device.name = name
            })?;
        }
        if let Some(latencies) = read(
            "LATENCY",
            "functions and times such as cuMemCreate=1ms,cuMemMap=50us",
            |text| list(text, latency),
        )? {
            once("LATENCY", &latencies)?;
            config.latencies = latencies;
        }
        if let Some(failures) = read(
            "FAIL",
            "function, nth call, code, such as cuMemMap:3:2 or, with all after, cuMemMap:3+:2",
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

/// A value, or which part of the text is wrong.
type Parsed<T> = Result<T, String>;

fn read<T>(
    name: &str,
    wanted: &str,
    parse: impl FnOnce(&str) -> Parsed<T>,
) -> Result<Option<T>, String> {
    let variable = format!("VMM_EMULATOR_{name}");
    match std::env::var(&variable) {
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(error) => Err(format!("{variable}: {error}")),
        Ok(text) => match parse(text.trim()) {
            Ok(value) => Ok(Some(value)),
            Err(wrong) => Err(format!("{variable}={text}: {wrong}; {wanted} expected")),
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

/// Of two values for one thing neither is what was meant.
fn once<K: Ord + Display, T>(name: &str, values: &[(K, T)]) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    match values.iter().find(|(key, _)| !seen.insert(key)) {
        Some((key, _)) => Err(format!("VMM_EMULATOR_{name}: {key} has two values")),
        None => Ok(()),
    }
}

fn list<T>(text: &str, parse: impl Fn(&str) -> Parsed<T>) -> Parsed<Vec<T>> {
    text.split(',').map(|entry| parse(entry.trim())).collect()
}

fn number<T: FromStr>(text: &str) -> Parsed<T> {
    parse(text, "a number")
}

fn parse<T: FromStr>(text: &str, what: &str) -> Parsed<T> {
    text.parse().map_err(|_| is_not(text, what))
}

fn is_not(text: &str, what: &str) -> String {
    format!("`{text}` is not {what}")
}

fn size(text: &str) -> Parsed<u64> {
    with_unit(text)
        .and_then(|(number, unit)| {
            let shift = match unit {
                "" => 0,
                "K" => 10,
                "M" => 20,
                "G" => 30,
                "T" => 40,
                _ => return None,
            };
            number.checked_mul(1 << shift)
        })
        .ok_or_else(|| is_not(text, "bytes, nor a number of K, M, G or T"))
}

fn time(text: &str) -> Parsed<Duration> {
    with_unit(text)
        .and_then(|(number, unit)| match unit {
            "us" => Some(Duration::from_micros(number)),
            "ms" => Some(Duration::from_millis(number)),
            "s" => Some(Duration::from_secs(number)),
            _ => None,
        })
        .ok_or_else(|| is_not(text, "a number of us, ms or s"))
}

fn with_unit(text: &str) -> Option<(u64, &str)> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    Some((digits.parse().ok()?, text.strip_prefix(digits)?))
}

fn fabric(text: &str) -> Parsed<Fabric> {
    match text {
        "available" => Ok(Fabric::Available),
        "unavailable" => Ok(Fabric::Unavailable),
        "not-permitted" => Ok(Fabric::NotPermitted),
        other => Err(is_not(other, "one of them")),
    }
}

fn peers(text: &str) -> Parsed<Peers> {
    match text {
        "all" => Ok(Peers::All),
        "none" => Ok(Peers::None),
        pairs => list(pairs, |pair| {
            let (from, to) = split(pair, '>')?;
            Ok((number(from)?, number(to)?))
        })
        .map(Peers::Pairs),
    }
}

fn attribute(text: &str) -> Parsed<(c_int, c_int)> {
    let (attribute, value) = split(text, '=')?;
    Ok((number(attribute)?, number(value)?))
}

fn uuid(text: &str) -> Parsed<[u8; 16]> {
    let digits = text
        .strip_prefix("GPU-")
        .map(|digits| digits.replace('-', ""))
        .filter(|digits| digits.len() == 32 && digits.bytes().all(|c| c.is_ascii_hexdigit()));
    match digits.map(|digits| u128::from_str_radix(&digits, 16)) {
        Some(Ok(uuid)) => Ok(uuid.to_be_bytes()),
        _ => Err(is_not(text, "GPU- and 32 hexadecimal digits")),
    }
}

fn name(text: &str) -> Parsed<String> {
    match text {
        "" => Err("a name is empty".to_owned()),
        name => Ok(name.to_owned()),
    }
}

fn latency(text: &str) -> Parsed<(String, Duration)> {
    let (function, latency) = split(text, '=')?;
    check_function(function)?;
    Ok((function.to_owned(), time(latency)?))
}

fn failure(text: &str) -> Parsed<ConfiguredFailure> {
    let (function, rest) = split(text, ':')?;
    let (nth, code) = split(rest, ':')?;
    check_function(function)?;
    let first = nth.strip_suffix('+').unwrap_or(nth);
    Ok(ConfiguredFailure {
        function: function.to_owned(),
        nth: parse(first, "the number of a call")?,
        once: first == nth,
        code: Code(parse(code, "a code")?),
    })
}

fn split(text: &str, at: char) -> Parsed<(&str, &str)> {
    text.split_once(at)
        .ok_or_else(|| format!("`{text}` has no `{at}`"))
}

fn flag(text: &str) -> Parsed<bool> {
    match text {
        "0" => Ok(false),
        "1" => Ok(true),
        other => Err(is_not(other, "one of them")),
    }
}
