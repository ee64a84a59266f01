//! No file of a crate needs itself by way of others: what is below does not know what is above.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The sources, and two files that have to know each other: the table of all functions, and the
/// function that looks others up in it.
const CRATES: &[(&str, Option<(&str, &str)>)] = &[
    ("vmm-sys/src", None),
    ("vmm/src", None),
    ("vmm-ipc/src", None),
    ("tests/emulator/src", Some(("api", "symbols"))),
    ("xtask/src", None),
];

/// What each module of a crate needs of the others. A folder is one module.
type Needs = BTreeMap<String, BTreeSet<String>>;

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|end| end == "rs") {
            files.push(path);
        }
    }
    files
}

/// The words that follow `crate::` in code.
fn named(text: &str) -> BTreeSet<String> {
    let comment = |line: &&str| !line.trim_start().starts_with("//");
    let code: Vec<&str> = text.lines().filter(comment).collect();
    let code = code.join(" ");
    let word = |path: &str| {
        let end = path.find(|c: char| !c.is_alphanumeric() && c != '_');
        path[..end.unwrap_or(path.len())].to_owned()
    };
    let mut words = BTreeSet::new();
    for rest in code.split("crate::").skip(1) {
        let Some(list) = rest.strip_prefix('{') else {
            words.insert(word(rest));
            continue;
        };
        // What stands in braces of its own belongs to what stands before them.
        let mut depth = 0;
        let end = list.find(|c| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            depth < 0
        });
        let list = &list[..end.unwrap_or(list.len())];
        let mut depth = 0;
        let parts = list.split(|c| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            depth == 0 && c == ','
        });
        words.extend(parts.map(|part| word(part.trim_start())));
    }
    words
}

fn needs(root: &Path) -> Needs {
    let module = |file: &Path| {
        let first = file.strip_prefix(root).unwrap().components().next();
        let name = first.unwrap().as_os_str().to_str().unwrap();
        name.trim_end_matches(".rs").to_owned()
    };
    let mut all = Needs::new();
    for file in sources(root) {
        let text = std::fs::read_to_string(&file).unwrap();
        let needed = all.entry(module(&file)).or_default();
        needed.extend(named(&text));
    }
    // The roots put everything together, and programs are roots of their own.
    for root in ["lib", "main", "bin"] {
        all.remove(root);
    }
    let modules: BTreeSet<String> = all.keys().cloned().collect();
    for (module, needed) in &mut all {
        needed.retain(|other| other != module && modules.contains(other));
    }
    all
}

/// What is left when whoever needs nobody that is left has been taken away, again and again.
fn circles(mut all: Needs) -> Needs {
    loop {
        let left: BTreeSet<String> = all.keys().cloned().collect();
        for needed in all.values_mut() {
            needed.retain(|other| left.contains(other));
        }
        let before = all.len();
        all.retain(|_, needed| !needed.is_empty());
        if all.len() == before {
            return all;
        }
    }
}

#[test]
fn no_module_needs_itself_by_way_of_others() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    for (folder, known) in CRATES {
        let mut all = needs(&workspace.join(folder));
        let arrows: usize = all.values().map(BTreeSet::len).sum();
        assert!(arrows >= all.len(), "{folder}: {all:?} is too little");
        if let Some((from, to)) = known {
            let removed = all.get_mut(*from).map(|needed| needed.remove(*to));
            assert_eq!(removed, Some(true), "{folder}: {from} does not need {to}");
        }
        let circles = circles(all);
        assert!(circles.is_empty(), "{folder}: {circles:#?}");
    }
}

#[test]
fn a_circle_is_found() {
    let needs = |list: &[(&str, &[&str])]| -> Needs {
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        list.iter()
            .map(|&(module, others)| (module.to_owned(), owned(others)))
            .collect()
    };
    let all: &[(&str, &[&str])] = &[("a", &["b"]), ("b", &["c"]), ("c", &["b", "d"]), ("d", &[])];
    let left: Vec<String> = circles(needs(all)).into_keys().collect();
    assert_eq!(left, ["a", "b", "c"]);
    assert!(circles(needs(&all[..2])).is_empty());
    let text = "use crate::{first, second::{Thing, other},\n    third};\n// crate::fourth\ncrate::fifth::y();";
    let words: Vec<String> = named(text).into_iter().collect();
    assert_eq!(words, ["fifth", "first", "second", "third"]);
}
