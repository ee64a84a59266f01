//! What the documents name is there, and what is there is named.

use std::path::{Path, PathBuf};

/// The enums of errors: where they are, and under which heading `errors.md` lists them.
const ENUMS: &[(&str, &str, &str)] = &[
    (
        "vmm-sys/src/load.rs",
        "LoadErrorKind",
        "vmm_sys::LoadErrorKind",
    ),
    ("vmm-sys/src/error.rs", "ErrorKind", "vmm_sys::ErrorKind"),
    ("vmm/src/error.rs", "ErrorKind", "vmm::ErrorKind"),
    ("vmm-ipc/src/error.rs", "ErrorKind", "vmm_ipc::ErrorKind"),
    (
        "vmm-ipc/src/wire/message.rs",
        "Reason",
        "vmm_ipc::wire::Reason",
    ),
    (
        "vmm-ipc/src/wire/error.rs",
        "WireError",
        "vmm_ipc::wire::WireError",
    ),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The variants of a public enum, from its source as rustfmt leaves it.
fn variants(source: &str, name: &str) -> Vec<String> {
    let start = source.find(&format!("pub enum {name} {{")).unwrap();
    let body = &source[start..];
    let body = &body[..body.find("\n}").unwrap()];
    body.lines()
        .skip(1)
        .filter_map(|line| line.strip_prefix("    "))
        .filter(|line| line.starts_with(|c: char| c.is_ascii_uppercase()))
        .map(|line| line.chars().take_while(|c| c.is_alphanumeric()).collect())
        .collect()
}

/// The first cells of the table under a heading.
fn listed(document: &str, heading: &str) -> Vec<String> {
    let start = document.find(&format!("## `{heading}`")).unwrap();
    let section = &document[start + 3..];
    let section = section.split("\n## ").next().unwrap();
    section
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(name, _)| name.to_owned())
        .collect()
}

#[test]
fn every_kind_of_error_is_explained_in_its_order() {
    let document = read("docs/errors.md");
    for (path, name, heading) in ENUMS {
        let variants = variants(&read(path), name);
        assert!(variants.len() > 1, "{path}: {variants:?}");
        assert_eq!(listed(&document, heading), variants, "{heading}");
    }
}

#[test]
fn every_invariant_is_listed_with_tests_that_there_are() {
    let document = read("docs/design.md");
    let cases = vmm_tests::all_cases();
    let there = |name: &str| {
        cases
            .iter()
            .any(|case| case.name().rsplit("::").next() == Some(name))
    };
    // The last one is held by an example that must not compile.
    for number in 1..=12 {
        let row = format!("\n| {number} | ");
        let start = document
            .find(&row)
            .unwrap_or_else(|| panic!("invariant {number} is not listed"));
        let row = document[start + 1..].lines().next().unwrap();
        let named: Vec<&str> = row
            .split('`')
            .filter(|word| word.starts_with("invariant_"))
            .collect();
        assert!(!named.is_empty(), "{row}");
        for name in named {
            assert!(
                name.starts_with(&format!("invariant_{number:02}_")),
                "{name}"
            );
            assert!(there(name), "no case is named {name}");
        }
    }
}

#[test]
fn every_link_to_a_file_leads_to_one() {
    for document in documents() {
        let text = std::fs::read_to_string(&document).unwrap();
        for target in text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            let path = target.split('#').next().unwrap_or_default();
            if path.is_empty() || path.contains("://") {
                continue;
            }
            let file = document.parent().unwrap().join(path);
            assert!(file.exists(), "{}: {target}", document.display());
        }
    }
}

/// The documents of the root and of `docs`.
fn documents() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in [root(), root().join("docs")] {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    assert!(found.len() > 5, "{found:?}");
    found
}
