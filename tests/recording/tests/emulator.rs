//! The emulator answers what a real driver was recorded to answer, but for what is listed, and
//! nothing that the driver was not asked.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// Case to answer, or to reason. The last column of a line is what matters, the first its name.
fn read(path: &Path) -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines()
        .filter(|line| !line.starts_with('#') && !line.starts_with("case\t"))
        .map(|line| {
            let (case, _) = line.split_once('\t').unwrap();
            let (_, last) = line.rsplit_once('\t').unwrap();
            (case.to_owned(), last.to_owned())
        })
        .collect()
}

/// The cases that a recording names as not recorded, for a reason that stands there.
fn not_recorded(path: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines()
        .filter_map(|line| line.strip_prefix("# not recorded: "))
        .map(|line| line.split_once(": ").unwrap().0.to_owned())
        .collect()
}

#[test]
fn the_emulator_answers_as_the_recorded_driver_but_for_what_is_listed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let recorded = read(&folder.join("h200-580.tsv"));
    let not_recorded = not_recorded(&folder.join("h200-580.tsv"));
    let listed = read(&folder.join("deviations.tsv"));
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulator.tsv");
    let status = Command::new(env!("CARGO_BIN_EXE_record"))
        .args(["--driver", "emulator", "--out"])
        .arg(&out)
        .env_clear()
        .status()
        .unwrap();
    assert!(status.success());
    let emulated = read(&out);
    assert!(
        recorded.len() >= 250,
        "{} cases are too few",
        recorded.len()
    );
    let mut wrong = Vec::new();
    for (case, answer) in &recorded {
        let here = emulated.get(case).map_or("not answered", String::as_str);
        match (here == answer, listed.contains_key(case)) {
            (false, false) => {
                wrong.push(format!(
                    "{case}: the driver answered {answer}, the emulator {here}"
                ));
            }
            (true, true) => wrong.push(format!("{case}: listed as a deviation, but it is none")),
            _ => {}
        }
    }
    for case in listed.keys().filter(|case| !recorded.contains_key(*case)) {
        wrong.push(format!("{case}: listed as a deviation, but not recorded"));
    }
    for (case, answer) in &emulated {
        if !recorded.contains_key(case) && !not_recorded.contains(case) {
            wrong.push(format!(
                "{case}: the emulator answers {answer}, the driver was not asked: record it"
            ));
        }
    }
    for case in &not_recorded {
        if recorded.contains_key(case) || !emulated.contains_key(case) {
            wrong.push(format!(
                "{case}: named as not recorded, but it is, or the emulator does not answer it"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
