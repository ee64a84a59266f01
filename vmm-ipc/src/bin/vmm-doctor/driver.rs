//! The driver: whether it loads, what it is, and which symbols it lacks.

use vmm::sys::{self, LoadErrorKind};
use vmm::{Driver, ErrorKind};

use crate::finding::{Finding, Section};

/// Loads and initialises the driver; without one the findings say why.
pub fn examine() -> (Section, Option<Driver>) {
    let mut findings = vec![which()];
    let driver = load(&mut findings);
    let section = Section {
        name: "driver".into(),
        title: "Driver".into(),
        findings,
    };
    (section, driver)
}

fn which() -> Finding {
    // An empty one names nothing, as for `vmm-sys`.
    match std::env::var_os("VMM_LIBCUDA").filter(|path| !path.is_empty()) {
        Some(path) => Finding::note("library", format!("{} (VMM_LIBCUDA)", path.display())),
        None => Finding::note("library", "libcuda.so.1, by the system's search path"),
    }
}

fn load(findings: &mut Vec<Finding>) -> Option<Driver> {
    let sys = match sys::Driver::load() {
        Ok(sys) => sys,
        Err(error) => {
            findings.push(Finding::problem("load", &error, load_advice(error.kind())));
            return None;
        }
    };
    let version = sys.version();
    let words = format!("CUDA {}.{}", version / 1000, version % 1000 / 10);
    findings.push(match sys.is_emulator() {
        true => Finding::note(
            "version",
            format!("{words}, software emulator: no GPU is used"),
        ),
        false => Finding::ok("version", words),
    });
    findings.push(symbols(&sys));
    let driver = match Driver::new(sys) {
        Ok(driver) => driver,
        Err(error) => {
            let advice = match error.kind() {
                ErrorKind::NoDevice => {
                    "see CUDA_VISIBLE_DEVICES and the device files above; \
                                        `nvidia-smi -L` lists what the driver knows"
                }
                _ => init_advice(error.code().map(|code| code.0)),
            };
            findings.push(Finding::problem("initialise", error, advice));
            return None;
        }
    };
    findings.push(match driver.device_count() {
        0 => Finding::problem(
            "GPUs",
            "none is visible to this process",
            "see CUDA_VISIBLE_DEVICES and the device files above",
        ),
        count => Finding::ok("GPUs", format!("{count} visible")),
    });
    Some(driver)
}

fn symbols(sys: &sys::Driver) -> Finding {
    let all = sys.symbols().len();
    let missing: Vec<String> = sys
        .symbols()
        .filter_map(|symbol| Some(format!("{}: {}", symbol.symbol.name, symbol.why_not()?)))
        .collect();
    match missing.as_slice() {
        [] => Finding::ok("symbols", format!("all {all} found")),
        // Loading fails without the ones that sharing needs.
        _ => Finding::note(
            "symbols",
            format!("{} of {all} are optional and not there", missing.len()),
        )
        .advise(missing.join("; ")),
    }
}

fn load_advice(kind: &LoadErrorKind) -> &'static str {
    match kind {
        kind if kind.is_driver_absent() => {
            "install NVIDIA's driver; in a container start it with the GPU (`--gpus all`); under \
             WSL2 add /usr/lib/wsl/lib to LD_LIBRARY_PATH"
        }
        LoadErrorKind::LibraryNotFound { .. } => {
            "look at the path that --driver or VMM_LIBCUDA names, or leave it out"
        }
        LoadErrorKind::Stub => {
            "the toolkit's stub came before the driver: take its folder off LD_LIBRARY_PATH"
        }
        LoadErrorKind::NotADriver { .. } => "name the driver's libcuda.so.1, or unset VMM_LIBCUDA",
        LoadErrorKind::TooOld { .. } | LoadErrorKind::MissingSymbols { .. } => {
            "update the driver (and, in a container, that of its host)"
        }
        _ => "the library does not behave like NVIDIA's driver: reinstall it",
    }
}

fn init_advice(code: Option<u32>) -> &'static str {
    match code {
        Some(34) => "the toolkit's stub came before the driver: take it off LD_LIBRARY_PATH",
        Some(802) => "the system is not ready: start nvidia-fabricmanager, and wait until it runs",
        Some(803) => {
            "library and kernel module are of different versions: reboot after an update, and \
             mount the host's library into the container"
        }
        Some(804) => {
            "a compatibility package for data centre GPUs is on the library path: take it off \
             LD_LIBRARY_PATH"
        }
        _ => {
            "see the device files above, `nvidia-smi` and `dmesg`: the kernel module is missing, or \
             this process may not use it"
        }
    }
}
