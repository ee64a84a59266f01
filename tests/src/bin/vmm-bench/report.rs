//! What was measured: a table for people, JSON for programs, and the plot.

use std::fmt::Write as _;
use std::path::Path;

use crate::case::Case;
use crate::contender::{BEST, CRATE, NAIVE};
use crate::stats::Summary;
use crate::{Measured, Result, plot};

pub struct Report {
    machine: String,
    absent: Vec<(&'static str, String)>,
    /// Chunks, and nanoseconds a chunk to encode and to decode.
    codec: Vec<(f64, f64, f64)>,
    cases: Vec<(&'static Case, Vec<Measured>)>,
}

/// What every contender times, with its heading.
const STEPS: &[(&str, &str)] = &[
    ("first", "first share"),
    ("second", "second share"),
    ("grow", "grow by 2 MiB"),
    ("grow_again", "grow by 2 MiB, once more at once"),
    ("importer_teardown", "teardown, importer"),
    ("teardown", "teardown, exporter"),
];

impl Report {
    pub fn new(
        machine: String,
        absent: Vec<(&'static str, String)>,
        codec: Vec<(f64, f64, f64)>,
    ) -> Self {
        Report {
            machine,
            absent,
            codec,
            cases: Vec::new(),
        }
    }

    pub fn add(&mut self, case: &'static Case, measured: Vec<Measured>) {
        self.cases.push((case, measured));
    }

    pub fn write(&self, folder: &Path) -> Result {
        std::fs::create_dir_all(folder)?;
        std::fs::write(folder.join("bench.json"), self.json())?;
        std::fs::write(folder.join("bench.md"), self.markdown())?;
        std::fs::write(
            folder.join("bench.svg"),
            plot::svg(&self.machine, &self.cases),
        )?;
        Ok(())
    }

    /// The contenders of the table that failed; a peer that fails is told of in the table alone.
    pub fn failures(&self) -> Vec<String> {
        let each = self.cases.iter().flat_map(|(case, measured)| {
            measured.iter().filter_map(|one| {
                let error = one.error.as_ref().filter(|_| !one.peer)?;
                Some(format!("{}, {}: {error}", case.name, one.label))
            })
        });
        each.collect()
    }

    pub fn markdown(&self) -> String {
        let mut text = format!(
            "{}\n\nMilliseconds: median (quartiles). The programs take turns, and one lives at a time.\n",
            self.machine
        );
        for (key, title) in STEPS {
            let with_peers = matches!(*key, "first" | "second");
            let labels = self.labels(with_peers);
            let _ = write!(text, "\n### {title}\n\n| buffer |");
            for label in &labels {
                let _ = write!(text, " {label} |");
            }
            text.push_str(" to naive | to best | rounds |\n|---|");
            text.push_str(&"---|".repeat(labels.len() + 3));
            text.push('\n');
            for (case, measured) in &self.cases {
                let _ = write!(text, "| {} |", case.name);
                for label in &labels {
                    let _ = write!(text, " {} |", cell(measured, label, key));
                }
                let goals = if *key == "first" {
                    case.goals
                } else {
                    (None, None)
                };
                let rounds = of(measured, CRATE, key).map_or(0, |summary| summary.rounds);
                let _ = writeln!(
                    text,
                    " {} | {} | {rounds} |",
                    ratio(measured, NAIVE, key, goals.0),
                    ratio(measured, BEST, key, goals.1)
                );
            }
        }
        text.push_str("\n### descriptor\n\n| chunks | encode, ns a chunk | decode, ns a chunk |\n|---|---|---|\n");
        for (chunks, encode, decode) in &self.codec {
            let _ = writeln!(text, "| {chunks} | {encode:.2} | {decode:.2} |");
        }
        for (label, why) in &self.absent {
            let _ = write!(text, "\n{label} is not in the table: {why}.\n");
        }
        for (case, measured) in &self.cases {
            for one in measured {
                if let Some(error) = &one.error {
                    let _ = write!(text, "\n{}, {}: {error}\n", case.name, one.label);
                }
            }
        }
        text
    }

    fn labels(&self, peers: bool) -> Vec<&'static str> {
        let first = self.cases.first();
        let measured = first.map_or(&[][..], |(_, measured)| measured);
        let wanted = measured.iter().filter(|one| peers || !one.peer);
        wanted.map(|one| one.label).collect()
    }

    fn json(&self) -> String {
        let mut text = format!(
            "{{\n  \"machine\": {},\n  \"unit\": \"microseconds\",\n  \"cases\": [",
            quoted(&self.machine)
        );
        for (index, (case, measured)) in self.cases.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let _ = write!(
                text,
                "{comma}\n    {{\"name\": {}, \"chunks\": {}, \"chunk_bytes\": {}, \"results\": [",
                quoted(case.name),
                case.chunks,
                case.size
            );
            for (index, one) in measured.iter().enumerate() {
                let comma = if index == 0 { "" } else { "," };
                let _ = write!(text, "{comma}\n      {{\"who\": {}", quoted(one.label));
                if let Some(error) = &one.error {
                    let _ = write!(text, ", \"error\": {}", quoted(error));
                }
                for key in one.samples.keys() {
                    if let Some(s) = one.samples.summary(key) {
                        let _ = write!(
                            text,
                            ", {}: {{\"rounds\": {}, \"least\": {:.1}, \"low\": {:.1}, \"median\": {:.1}, \"high\": {:.1}}}",
                            quoted(key),
                            s.rounds,
                            s.least,
                            s.low,
                            s.median,
                            s.high
                        );
                    }
                }
                text.push('}');
            }
            text.push_str("\n    ]}");
        }
        text.push_str("\n  ],\n  \"codec_ns_per_chunk\": [");
        for (index, (chunks, encode, decode)) in self.codec.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let _ = write!(
                text,
                "{comma}\n    {{\"chunks\": {chunks}, \"encode\": {encode:.3}, \"decode\": {decode:.3}}}"
            );
        }
        text.push_str("\n  ]\n}\n");
        text
    }
}

/// One case in a few lines, while the others are still to come.
pub fn lines(case: &Case, measured: &[Measured]) -> String {
    let mut text = case.name.to_owned();
    for one in measured {
        let _ = write!(text, "\n  {:<20}", one.label);
        for (key, title) in STEPS {
            if let Some(summary) = one.samples.summary(key) {
                let _ = write!(text, " {title} {}", milliseconds(summary.median));
            }
        }
        if let Some(error) = &one.error {
            let _ = write!(text, " {error}");
        }
    }
    text
}

pub fn of(measured: &[Measured], label: &str, key: &str) -> Option<Summary> {
    let one = measured.iter().find(|one| one.label == label)?;
    one.samples.summary(key)
}

fn cell(measured: &[Measured], label: &str, key: &str) -> String {
    of(measured, label, key).map_or_else(
        || "-".to_owned(),
        |s| {
            format!(
                "{} ({}–{})",
                milliseconds(s.median),
                milliseconds(s.low),
                milliseconds(s.high)
            )
        },
    )
}

/// The crate's median against another's, and what it is to be at most.
fn ratio(measured: &[Measured], other: &str, key: &str, goal: Option<f64>) -> String {
    let (Some(ours), Some(theirs)) = (of(measured, CRATE, key), of(measured, other, key)) else {
        return "-".to_owned();
    };
    let ratio = ours.median / theirs.median;
    match goal {
        None => format!("{ratio:.2}"),
        Some(goal) if ratio <= goal => format!("{ratio:.2} (goal {goal:.2}: reached)"),
        Some(goal) => format!("{ratio:.2} (goal {goal:.2}: missed)"),
    }
}

fn milliseconds(us: f64) -> String {
    let ms = us / 1e3;
    match ms {
        ms if ms < 10.0 => format!("{ms:.3}"),
        ms if ms < 100.0 => format!("{ms:.1}"),
        ms => format!("{ms:.0}"),
    }
}

fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}
