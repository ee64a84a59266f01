//! Whether GPU memory can be shared between processes on this machine, and if not, why not.
//!
//! It looks at the machine and the driver, and then really does it: on every GPU that it sees it
//! hands a buffer to a second process, which is this program executed again. Only that decides the
//! exit status; everything else is there to name the cause.

mod device;
mod driver;
mod environment;
mod exchange;
mod finding;
mod print;

use std::io::IsTerminal;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use lexopt::prelude::*;

use finding::Report;

const HELP: &str = "\
vmm-doctor [--driver auto|cuda|PATH] [--json]

Says whether GPU memory can be shared between processes on this machine, by doing it on every GPU
that is visible, and names the cause where it fails.

  --driver auto   libcuda.so.1, or what VMM_LIBCUDA names (default)
  --driver cuda   libcuda.so.1, whatever VMM_LIBCUDA names
  --driver PATH   the CUDA driver library at PATH, which contains a slash
  --json          one JSON object instead of the table: works, emulator, version, devices, findings
  -h, --help      this text
  -V, --version   the version

Exit status: 0 when sharing works on every visible GPU, 1 when it does not, 2 for a wrong option.
";

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|word| word == exchange::ROLE) {
        return exchange::importer(arguments);
    }
    let json = match options() {
        Ok(Task::Examine { json }) => json,
        Ok(Task::Say(text)) => {
            print::to_stdout(&text);
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            print::to_stderr(&format!(
                "error: {error} (vmm-doctor --help says what there is)\n"
            ));
            return ExitCode::from(2);
        }
    };
    let report = examine(!json && std::io::stderr().is_terminal());
    print::to_stdout(&if json {
        print::json(&report)
    } else {
        print::table(&report)
    });
    match report.works() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

enum Task {
    Examine { json: bool },
    Say(String),
}

fn options() -> Result<Task, lexopt::Error> {
    let mut parser = lexopt::Parser::from_env();
    let (mut json, mut driver) = (false, "auto".to_owned());
    while let Some(argument) = parser.next()? {
        match argument {
            Long("json") => json = true,
            Long("driver") => driver = parser.value()?.string()?,
            Short('h') | Long("help") => return Ok(Task::Say(HELP.into())),
            Short('V') | Long("version") => {
                return Ok(Task::Say(format!(
                    "vmm-doctor {}\n",
                    env!("CARGO_PKG_VERSION")
                )));
            }
            other => return Err(other.unexpected()),
        }
    }
    match driver.as_str() {
        "auto" => {}
        "cuda" => choose_library(None, json)?,
        path if path.contains('/') => choose_library(Some(path), json)?,
        other => {
            let wanted = "expected auto, cuda, or a path that contains a slash";
            return Err(format!("--driver {other}: {wanted}").into());
        }
    }
    Ok(Task::Examine { json })
}

/// Starts over with `VMM_LIBCUDA` as it was asked for, so that this process and those that it
/// starts load the same library.
fn choose_library(path: Option<&str>, json: bool) -> Result<(), lexopt::Error> {
    let mut again = Command::new(exchange::this_program());
    match path {
        Some(path) => again.env("VMM_LIBCUDA", path),
        None => again.env_remove("VMM_LIBCUDA"),
    };
    if json {
        again.arg("--json");
    }
    Err(format!(
        "could not start again with another driver: {}",
        again.exec()
    )
    .into())
}

fn examine(show_progress: bool) -> Report {
    let (driver_section, driver) = driver::examine();
    let emulator = driver.as_ref().is_some_and(vmm::Driver::is_emulator);
    let mut sections = vec![environment::examine(emulator), driver_section];
    let mut devices = Vec::new();
    for device in driver.iter().flat_map(vmm::Driver::devices) {
        if show_progress {
            print::to_stderr(&format!("\r\x1b[Klooking at {device}"));
        }
        let (section, works) = device::examine(&device);
        sections.push(section);
        devices.push((device.to_string(), works));
    }
    if show_progress {
        print::to_stderr("\r\x1b[K");
    }
    Report {
        emulator,
        devices,
        sections,
    }
}
