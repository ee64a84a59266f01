//! The report as a table for people and as JSON for programs.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};

use crate::finding::{Finding, Report, State};

/// Writes to the standard output. A reader that went away is no reason to fail.
pub fn to_stdout(text: &str) {
    let mut output = std::io::stdout().lock();
    let _ = output
        .write_all(text.as_bytes())
        .and_then(|()| output.flush());
}

/// Writes to the standard error.
pub fn to_stderr(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

pub fn table(report: &Report) -> String {
    let colours = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let findings = || report.sections.iter().flat_map(|section| &section.findings);
    let width = findings()
        .map(|finding| finding.subject.chars().count())
        .max();
    let width = width.unwrap_or(0);
    let columns = columns();
    let mut text = String::new();
    for section in &report.sections {
        let _ = writeln!(text, "{}", section.title);
        for finding in &section.findings {
            row(&mut text, finding, (width, columns), colours);
        }
        text.push('\n');
    }
    text.push_str(&verdict(report));
    text
}

/// How wide the table may be: as the terminal, or as `COLUMNS` says where there is none.
fn columns() -> usize {
    const PLEASANT: usize = 110;
    let terminal = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
    let stated = || std::env::var("COLUMNS").ok()?.parse().ok();
    terminal
        .map(|size| usize::from(size.ws_col))
        .or_else(stated)
        // A terminal that does not know says 0.
        .filter(|&columns| columns > 0)
        .map_or(PLEASANT, |columns| columns.clamp(40, PLEASANT))
}

fn row(text: &mut String, finding: &Finding, (width, columns): (usize, usize), colours: bool) {
    let state = match (colours, finding.state) {
        (false, state) => format!("{:<7}", state.name()),
        (true, State::Ok) => format!("\x1b[32m{:<7}\x1b[0m", "ok"),
        (true, State::Note) => format!("{:<7}", "note"),
        (true, State::Warning) => format!("\x1b[33m{:<7}\x1b[0m", "warning"),
        (true, State::Problem) => format!("\x1b[31m{:<7}\x1b[0m", "problem"),
    };
    let margin = " ".repeat(2 + 7 + 2 + width + 2);
    let found = wrap(&finding.found, margin.len(), &margin, columns);
    let _ = writeln!(text, "  {state}  {:<width$}  {found}", finding.subject);
    if let Some(advice) = &finding.advice {
        let advice = wrap(advice, margin.len() + 3, &format!("{margin}   "), columns);
        let _ = writeln!(text, "{margin}-> {advice}");
    }
}

/// Breaks `text`, which begins at `column`, between words so that lines end before `columns`; further
/// lines begin with `margin`.
fn wrap(text: &str, column: usize, margin: &str, columns: usize) -> String {
    let (mut lines, mut at) = (String::new(), column);
    for word in text.split(' ') {
        let length = word.chars().count();
        if at > column && at + 1 + length > columns {
            let _ = write!(lines, "\n{margin}");
            at = column;
        } else if at > column {
            lines.push(' ');
            at += 1;
        }
        lines.push_str(word);
        at += length;
    }
    lines
}

fn verdict(report: &Report) -> String {
    let of = report.devices.len();
    let working = report.devices.iter().filter(|(_, works)| *works).count();
    let emulator = match report.emulator {
        true => " (on the software emulator: this says nothing of a GPU)",
        false => "",
    };
    let mut text = match (working, of) {
        (_, 0) => "Sharing does not work: no GPU can be used here.\n".to_owned(),
        (1, 1) => format!("Sharing works on the one visible GPU{emulator}.\n"),
        (n, of) if n == of => format!("Sharing works on all {of} visible GPUs{emulator}.\n"),
        (n, of) => format!("Sharing works on {n} of {of} visible GPUs{emulator}.\n"),
    };
    if working < of || of == 0 {
        for section in &report.sections {
            let problems = section
                .findings
                .iter()
                .filter(|f| f.state == State::Problem);
            for problem in problems {
                let name = section.title.split(':').next().unwrap_or_default();
                let _ = writeln!(text, "  problem above: {name}, {}", problem.subject);
            }
        }
    }
    text
}

pub fn json(report: &Report) -> String {
    let mut text = format!(
        "{{\"version\":{},\"works\":{},\"emulator\":{},\"devices\":[",
        string(env!("CARGO_PKG_VERSION")),
        report.works(),
        report.emulator
    );
    separated(&mut text, &report.devices, |text, (device, works)| {
        let _ = write!(text, "{{\"device\":{},\"works\":{works}}}", string(device));
    });
    text.push_str("],\"findings\":[");
    let findings = report.sections.iter().flat_map(|section| {
        section
            .findings
            .iter()
            .map(|finding| (section.name.as_str(), finding))
    });
    separated(&mut text, findings, |text, (section, finding)| {
        let _ = write!(
            text,
            "{{\"section\":{},\"subject\":{},\"state\":{},\"found\":{},\"advice\":{}}}",
            string(section),
            string(&finding.subject),
            string(finding.state.name()),
            string(&finding.found),
            finding.advice.as_deref().map_or("null".into(), string)
        );
    });
    text.push_str("]}\n");
    text
}

fn separated<T>(
    text: &mut String,
    items: impl IntoIterator<Item = T>,
    mut each: impl FnMut(&mut String, T),
) {
    for (index, item) in items.into_iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        each(text, item);
    }
}

fn string(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            c if c.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", c as u32);
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}
