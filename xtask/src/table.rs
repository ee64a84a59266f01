//! The lines of `vmm-sys/src/table.rs`, as data.

use crate::{Result, root};

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
    let (front, text) = line.strip_suffix("\";")?.rsplit_once('"')?;
    let mut words = front.split_whitespace();
    let required = words.next()? == "required";
    let method = words.next()?.to_owned();
    let symbol = words.next()?.trim_matches('"').to_owned();
    let export = words.next()?.trim_matches('"').to_owned();
    let tag = words.next()?.parse().ok()?;
    let pfn = words.next()?.to_owned();
    Some(Line {
        group: group.to_owned(),
        required,
        method,
        symbol,
        export,
        tag,
        pfn,
        text: text.to_owned(),
    })
}
