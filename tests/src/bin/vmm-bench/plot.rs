//! The plot: the time of a first share against chunks and against bytes, both axes logarithmic.

use std::fmt::Write as _;

use crate::Measured;
use crate::case::Case;
use crate::stats::Summary;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 430.0;
const TOP: f64 = 60.0;
const BOTTOM: f64 = 330.0;
const COLOURS: &[&str] = &[
    "#c2410c", "#6b7280", "#1d4ed8", "#15803d", "#a21caf", "#0e7490",
];

type Cases = [(&'static Case, Vec<Measured>)];

pub fn svg(machine: &str, cases: &Cases) -> String {
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"20\" y=\"22\" font-size=\"15\">Time until another process has mapped a buffer</text>\n\
         <text x=\"20\" y=\"40\" fill=\"#555\">{}: medians and quartiles, milliseconds</text>\n",
        escape(machine)
    );
    let by_chunks = |case: &Case| (case.size == 2 << 20).then_some(case.chunks as f64);
    let by_bytes = |case: &Case| (case.chunks == 1).then_some(case.bytes() as f64);
    let labels: Vec<_> = cases.first().map_or_else(Vec::new, |(_, measured)| {
        measured.iter().map(|one| one.label).collect()
    });
    for (left, title, x) in [
        (
            65.0,
            "chunks of 2 MiB",
            &by_chunks as &dyn Fn(&Case) -> Option<f64>,
        ),
        (510.0, "bytes in one chunk", &by_bytes),
    ] {
        panel(&mut text, left, title, cases, &labels, x);
    }
    for (index, label) in labels.iter().enumerate() {
        let (x, y) = (
            65.0 + (index % 3) as f64 * 190.0,
            385.0 + (index / 3) as f64 * 22.0,
        );
        let _ = writeln!(
            text,
            "<line x1=\"{x}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke=\"{}\" stroke-width=\"2.5\"/>\
             <text x=\"{}\" y=\"{}\">{}</text>",
            y - 4.0,
            x + 24.0,
            y - 4.0,
            colour(index),
            x + 30.0,
            y,
            escape(label)
        );
    }
    text.push_str("</svg>\n");
    text
}

fn panel(
    text: &mut String,
    left: f64,
    title: &str,
    cases: &Cases,
    labels: &[&'static str],
    x: &dyn Fn(&Case) -> Option<f64>,
) {
    let right = left + 370.0;
    let lines: Vec<Vec<(f64, Summary)>> = labels
        .iter()
        .map(|label| {
            let points = cases.iter().filter_map(|(case, measured)| {
                Some((x(case)?, crate::report::of(measured, label, "first")?))
            });
            points.collect()
        })
        .collect();
    let all = || lines.iter().flatten();
    let range = |values: &mut dyn Iterator<Item = f64>| {
        values.fold((f64::INFINITY, 0.0_f64), |(low, high), value| {
            (low.min(value), high.max(value))
        })
    };
    let (x_low, x_high) = range(&mut all().map(|(x, _)| *x));
    let (y_low, y_high) = range(&mut all().flat_map(|(_, s)| [s.low / 1e3, s.high / 1e3]));
    if !(x_low > 0.0 && x_high > x_low && y_low > 0.0) {
        return;
    }
    let (y_low, y_high) = (
        10_f64.powf(y_low.log10().floor()),
        10_f64.powf(y_high.log10().ceil()),
    );
    let to_x = |value: f64| left + (right - left) * (value / x_low).ln() / (x_high / x_low).ln();
    let to_y = |ms: f64| BOTTOM - (BOTTOM - TOP) * (ms / y_low).ln() / (y_high / y_low).ln();
    let mut tick = y_low;
    while tick <= y_high * 1.001 {
        let y = to_y(tick);
        let _ = writeln!(
            text,
            "<line x1=\"{left}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            left - 6.0,
            y + 4.0,
            number(tick)
        );
        tick *= 10.0;
    }
    let mut ticks: Vec<f64> = all().map(|(x, _)| *x).collect();
    ticks.sort_by(f64::total_cmp);
    ticks.dedup();
    for tick in ticks {
        let label = match tick {
            bytes if title.starts_with("bytes") && bytes >= 1e9 => {
                format!("{} GiB", bytes / f64::from(1 << 30))
            }
            bytes if title.starts_with("bytes") => format!("{} MiB", bytes / f64::from(1 << 20)),
            count => number(count),
        };
        let _ = writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>",
            to_x(tick),
            BOTTOM + 18.0
        );
    }
    let _ = writeln!(
        text,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"#555\">{title}</text>",
        (left + right) / 2.0,
        BOTTOM + 36.0
    );
    for (index, line) in lines.iter().enumerate() {
        let points: Vec<String> = line
            .iter()
            .map(|(x, s)| format!("{:.1},{:.1}", to_x(*x), to_y(s.median / 1e3)))
            .collect();
        let _ = writeln!(
            text,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2.5\"/>",
            points.join(" "),
            colour(index)
        );
        for (x, s) in line {
            let _ = writeln!(
                text,
                "<line x1=\"{0:.1}\" y1=\"{1:.1}\" x2=\"{0:.1}\" y2=\"{2:.1}\" stroke=\"{3}\"/>\
                 <circle cx=\"{0:.1}\" cy=\"{4:.1}\" r=\"3.5\" fill=\"{3}\"/>",
                to_x(*x),
                to_y(s.low / 1e3),
                to_y(s.high / 1e3),
                colour(index),
                to_y(s.median / 1e3)
            );
        }
    }
}

fn colour(index: usize) -> &'static str {
    COLOURS.get(index % COLOURS.len()).unwrap_or(&"black")
}

fn number(value: f64) -> String {
    if value < 1.0 {
        format!("{value:.2}").trim_end_matches('0').to_owned()
    } else {
        format!("{value:.0}")
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
