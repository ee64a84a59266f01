//! Runs the cases in processes that may crash, and puts the answers together.

use crate::rig::Rig;
use crate::{Options, cases};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// A case that takes longer has hung.
const PATIENCE: Duration = Duration::from_secs(60);

pub fn run(options: &Options) -> Result<(), String> {
    if let Some((from, count)) = options.from {
        return ask(options, from, count);
    }
    let all = cases::all();
    let mut answers = BTreeMap::new();
    let mut crashed = Vec::new();
    let mut at = 0;
    while at < all.len() {
        // A case that spoils its process for others has one of its own.
        let count = match all[at..].iter().position(|case| case.alone) {
            Some(0) => 1,
            Some(count) => count,
            None => all.len() - at,
        };
        let (answered, end) = ask_apart(options, at, count)?;
        let done = answered.len();
        for (name, answer) in answered {
            answers.insert(name, answer);
        }
        at += done;
        if done < count {
            crashed.push(format!("{}: {end}", all[at].name));
            at += 1;
        }
    }
    let mut table = String::new();
    for line in describe(options)? {
        let _ = writeln!(table, "# {line}");
    }
    for line in &crashed {
        let _ = writeln!(table, "# not recorded: {line}");
    }
    table.push_str("case\twords\tanswer\n");
    let words: BTreeMap<&str, &str> = all
        .iter()
        .map(|case| (case.name.as_str(), case.words.as_str()))
        .collect();
    for (name, answer) in answers.iter().filter(|(_, answer)| *answer != "-") {
        let _ = writeln!(
            table,
            "{name}\t{}\t{answer}",
            words.get(name.as_str()).unwrap_or(&"")
        );
    }
    match &options.out {
        Some(path) => {
            std::fs::write(path, table).map_err(|error| format!("{}: {error}", path.display()))
        }
        None => std::io::stdout()
            .write_all(table.as_bytes())
            .map_err(|error| error.to_string()),
    }
}

/// Asks some cases here; one line each, as soon as it is answered.
fn ask(options: &Options, from: usize, count: usize) -> Result<(), String> {
    let all = cases::all();
    let mut rig = Rig::load(&options.driver)?;
    for case in all.iter().skip(from).take(count) {
        let answer = if !case.name.starts_with(&options.only) {
            "-".to_owned()
        } else {
            if !case.early && !rig.ready() {
                rig.prepare()?;
            }
            let answer = (case.ask)(&mut rig);
            rig.clean();
            answer.unwrap_or_else(|setup| format!("setup failed: {setup}"))
        };
        println!("{}\t{answer}", case.name);
        std::io::stdout()
            .flush()
            .map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// The answers of a process of its own, and how it ended.
fn ask_apart(
    options: &Options,
    from: usize,
    count: usize,
) -> Result<(Vec<(String, String)>, String), String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut child = Command::new(program)
        .args([
            "--driver",
            &options.driver,
            "--only",
            &options.only,
            "--from",
        ])
        .args([from.to_string(), count.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let output = child.stdout.take().ok_or("no pipe")?;
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    let mut answers = Vec::new();
    let mut hung = false;
    while answers.len() < count {
        match receiver.recv_timeout(PATIENCE) {
            Ok(line) => {
                if let Some((name, answer)) = line.split_once('\t') {
                    answers.push((name.to_owned(), answer.to_owned()));
                }
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {
                hung = true;
                break;
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
    }
    if hung {
        child.kill().map_err(|error| error.to_string())?;
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    let end = match (hung, status.signal()) {
        (true, _) => "hangs".to_owned(),
        (_, Some(signal)) => format!("crashes the process with signal {signal}"),
        _ => format!("ends the process with {status}"),
    };
    if answers.is_empty() && !hung && status.signal().is_none() {
        return Err(format!("the driver cannot be asked: {status}"));
    }
    Ok((answers, end))
}

/// Which driver answered.
fn describe(options: &Options) -> Result<Vec<String>, String> {
    let mut rig = Rig::load(&options.driver)?;
    rig.prepare()?;
    let mut lines = vec![
        format!("device: {}", rig.device_name()),
        format!("CUDA driver version: {}", rig.driver.version()),
    ];
    if !rig.driver.is_emulator()
        && let Ok(version) = std::fs::read_to_string("/sys/module/nvidia/version")
    {
        lines.push(format!("NVIDIA driver: {}", version.trim()));
    }
    Ok(lines)
}
