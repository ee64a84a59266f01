//! The program: lists the cases, and runs each in a process of its own.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use rustix::process::{Pid, Signal};

use crate::context::wait_for;
use crate::driver::{self, Choice};
use crate::emulated::{self, Misuse};
use crate::{Case, Context, Failure, peer, selftest};

/// Runs the suite as the arguments say; the whole of `main`.
///
/// `--driver emulator|cuda|PATH` (or `VMM_TEST_DRIVER`) chooses the driver, the emulator by
/// default. Everything else is as `cargo test` has it: filters, `--exact`, `--list`,
/// `--test-threads`, ...
pub fn main() -> ExitCode {
    let mut arguments = std::env::args();
    let program = arguments.next().unwrap_or_default();
    let mut arguments: Vec<String> = arguments.collect();
    match arguments.first().map(String::as_str) {
        Some(peer::ARGUMENT) => {
            arguments.remove(0);
            report(
                "peer",
                peer::run(&crate::all_roles(), arguments.into_iter()),
            )
        }
        Some(CASE) => {
            arguments.remove(0);
            report("case", run_case(arguments))
        }
        Some(PROBE) => report("probe", print_probe(arguments.get(1))),
        _ => match supervise(program, arguments) {
            Ok(code) => code,
            Err(message) => {
                eprintln!("error: {message}");
                ExitCode::FAILURE
            }
        },
    }
}

const CASE: &str = "--case";
const PROBE: &str = "--probe";

/// What a case's process prints when the case has returned: an exit in the middle of it with
/// status 0 is no success.
const PASSED: &str = "the case returned without a failure";

fn report(what: &str, result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{what} failed: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// `--probe DRIVER` prints the driver and its devices, and fails where there is none.
fn print_probe(choice: Option<&String>) -> Result<(), Failure> {
    let choice = choice.ok_or_else(|| Failure::new("expected a driver"))?;
    let (text, devices) = driver::probe(&Choice::parse(choice).map_err(Failure::new)?)?;
    println!("{text}");
    println!("devices: {devices}");
    Ok(())
}

/// Asks another process for the driver in words and the number of devices: the process that runs
/// the cases never loads a driver, so that nothing of it is inherited by any.
fn probe(choice: &Choice) -> Result<(String, usize), String> {
    let wrong = |what: String| format!("driver `{choice}`: {what}");
    let program = std::env::current_exe().map_err(|error| wrong(error.to_string()))?;
    let output = Command::new(program)
        .args([PROBE, &choice.to_string()])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| wrong(error.to_string()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let described = text.trim_end().rsplit_once("\ndevices: ");
    match described {
        Some((text, devices)) if output.status.success() => {
            Ok((text.to_owned(), devices.parse().unwrap_or(0)))
        }
        _ => Err(wrong(
            String::from_utf8_lossy(&output.stderr)
                .trim_end()
                .to_owned(),
        )),
    }
}

fn cases() -> Vec<Case> {
    let mut cases = crate::all_cases();
    if std::env::var_os(selftest::VARIABLE).is_some() {
        cases.extend_from_slice(selftest::CASES);
    }
    cases
}

fn run_case(arguments: Vec<String>) -> Result<(), Failure> {
    let [name, choice] = arguments.as_slice() else {
        return Err(Failure::new("expected the name of a case and a driver"));
    };
    let choice = Choice::parse(choice).map_err(Failure::new)?;
    let case = cases()
        .into_iter()
        .find(|case| case.name() == name)
        .ok_or_else(|| Failure::new(format!("no case is named `{name}`")))?;
    let on_emulator = choice == Choice::Emulator;
    (case.run)(&Context::for_case(choice, &case))?;
    let misuse = if on_emulator {
        emulated::misuse()
    } else {
        Misuse::default()
    };
    if misuse != Misuse::default() && !case.misuses {
        return Err(Failure::new(format!("the driver was misused: {misuse}")));
    }
    println!("{PASSED}");
    Ok(())
}

const HELP: &str = "\
Every case over every layer, each in a process of its own. Beside libtest's options, which follow:

  --driver emulator|cuda|PATH  what the cases run on; the emulator by default, or VMM_TEST_DRIVER
  --probe DRIVER               only say what that driver is, and fail where there is none
";

fn supervise(program: String, arguments: Vec<String>) -> Result<ExitCode, String> {
    if arguments
        .iter()
        .any(|word| word == "--help" || word == "-h")
    {
        println!("{HELP}");
    }
    let (choice, arguments) = take_driver(arguments)?;
    let mut arguments = Arguments::from_iter(std::iter::once(program).chain(arguments));
    let (description, devices) = probe(&choice)?;
    let on_hardware = choice != Choice::Emulator;
    if on_hardware && arguments.test_threads.is_none() {
        // Free memory is counted for the whole device: two cases at once would disturb each other.
        arguments.test_threads = Some(1);
    }
    let root = rustix::process::geteuid().is_root();
    let (listed, left_out): (Vec<Case>, Vec<Case>) = cases()
        .into_iter()
        .partition(|case| case.is_listed(on_hardware, devices, root));
    if !arguments.list {
        println!("{description}");
        let for_root = left_out.iter().filter(|case| case.as_root).count();
        let for_emulator = left_out.iter().filter(|case| case.emulator_only).count();
        if on_hardware {
            let (left, others) = (left_out.len(), for_emulator + for_root);
            println!(
                "not listed: {for_emulator} cases that only the emulator can run, {} for more devices",
                left.saturating_sub(others)
            );
        }
        if !root {
            println!("not listed: {for_root} cases that only root can run");
        }
    }
    let trials = listed
        .into_iter()
        .map(|case| {
            let choice = choice.clone();
            Trial::test(case.name(), move || {
                run_in_a_process(&case, &choice).map_err(Failed::from)
            })
        })
        .collect();
    Ok(libtest_mimic::run(&arguments, trials).exit_code())
}

/// Takes `--driver` out of the arguments, since the rest are for libtest's own parser.
fn take_driver(arguments: Vec<String>) -> Result<(Choice, Vec<String>), String> {
    let mut chosen = std::env::var(driver::VARIABLE).ok();
    let mut rest = Vec::new();
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        if argument == "--driver" {
            chosen = Some(arguments.next().ok_or("--driver wants a value")?);
        } else if let Some(value) = argument.strip_prefix("--driver=") {
            chosen = Some(value.to_owned());
        } else {
            rest.push(argument);
        }
    }
    let choice = chosen.map_or(Ok(Choice::Emulator), |text| Choice::parse(&text))?;
    Ok((choice, rest))
}

fn run_in_a_process(case: &Case, choice: &Choice) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|error| format!("own path: {error}"))?;
    let mut child = Command::new(program)
        .args([CASE, case.name(), &choice.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|error| format!("starting a process for the case: {error}"))?;
    let output = child.stdout.take().map(drain);
    let errors = child.stderr.take().map(drain);
    let ended = wait_for(case.timeout, || child.try_wait().transpose());
    // Also ends the peers that a crashed or hung case left behind; they hold the pipes.
    kill_group(&mut child);
    let text = |reader: Option<std::thread::JoinHandle<String>>| {
        reader
            .and_then(|reader| reader.join().ok())
            .unwrap_or_default()
    };
    let (output, errors) = (text(output), text(errors));
    let verdict = match ended {
        None => format!("killed: not done after {} s", case.timeout.as_secs()),
        Some(Err(error)) => format!("waiting for the case's process: {error}"),
        Some(Ok(status)) if !status.success() => format!("the case's process ended with {status}"),
        Some(Ok(_)) if output.lines().next_back() != Some(PASSED) => {
            "the case's process ended with status 0 before the case returned".to_owned()
        }
        Some(Ok(_)) => return Ok(()),
    };
    Err(format!("{verdict}\n{output}{errors}"))
}

fn drain(mut pipe: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read before an error is still worth showing.
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn kill_group(child: &mut Child) {
    if let Some(group) = Pid::from_raw(child.id() as i32) {
        // Fails when nobody is left in the group, which is the usual case.
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
    }
    let _ = wait_for(Duration::from_secs(5), || child.try_wait().transpose());
}
