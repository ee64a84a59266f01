//! The lines of `vmm-sys/src/table.rs`, as data.

use crate::result::Result;
use crate::workspace::root;

/// One line of the table.
pub struct Line {
    pub group: String,
    pub required: bool,
    pub method: String,
    pub symbol: String,
    pub export: String,
    pub tag: u32,
    pub pfn: String,
    pub text: String,
    /// What the caller owes beyond valid pointers and live handles.
    pub safety: Option<String>,
}

/// Read the table.
pub fn lines() -> Result<Vec<Line>> {
    let path = root().join("vmm-sys/src/table.rs");
    let source = std::fs::read_to_string(&path)?;
    let mut group = String::new();
    let mut lines = Vec::new();
    for line in source.lines().map(str::trim) {
        if let Some(comment) = line.strip_prefix("// ") {
            group = comment.to_owned();
        } else if line.starts_with("required ") || line.starts_with("optional ") {
            lines.push(
                parse(line, &group).ok_or_else(|| format!("not a line of the table: {line}"))?,
            );
        }
    }
    if lines.is_empty() {
        return Err(format!("{} has no lines", path.display()).into());
    }
    Ok(lines)
}

fn parse(line: &str, group: &str) -> Option<Line> {
    // Texts stand at every second place: the two names, what it is for, what the caller owes.
    let parts: Vec<&str> = line.strip_suffix(';')?.split('"').collect();
    let [front, symbol, _, export, middle, text, rest @ ..] = parts.as_slice() else {
        return None;
    };
    let safety = match rest {
        [""] => None,
        [", ", safety, ""] => Some((*safety).to_owned()),
        _ => return None,
    };
    let mut front = front.split_whitespace();
    let required = front.next()? == "required";
    let method = front.next()?.to_owned();
    let mut middle = middle.split_whitespace();
    Some(Line {
        group: group.to_owned(),
        required,
        method,
        symbol: (*symbol).to_owned(),
        export: (*export).to_owned(),
        tag: middle.next()?.parse().ok()?,
        pfn: middle.next()?.to_owned(),
        text: (*text).to_owned(),
        safety,
    })
}
