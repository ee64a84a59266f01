//! `cargo xtask abi-check`: what the committed types say, against what a C compiler says.
//!
//! The numbers of the Rust side are in `types.rs`: constants as they are, and the layout of every
//! struct as assertions that the Rust compiler has checked, for each processor that it builds for.
//! They become C assertions that compare each with the header's own, for both sets of headers.
//! Nothing is run, so a compiler for another processor does as well. No GPU, no toolkit and no clang
//! is needed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use lexopt::Parser;
use quote::ToTokens as _;
use syn::{Item, Type};

use crate::headers::{CUDA_12, CUDA_13, Wheel};
use crate::result::Result;
use crate::table::{self, Line};
use crate::workspace::root;

pub fn run(mut arguments: Parser) -> Result {
    use lexopt::prelude::*;
    let mut compiler = None;
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("cc") => compiler = Some(PathBuf::from(arguments.value()?)),
            Long("help") | Short('h') => {
                println!("cargo xtask abi-check [--cc COMPILER]");
                return Ok(());
            }
            other => return Err(other.unexpected().into()),
        }
    }
    let compiler = match compiler {
        Some(compiler) => compiler,
        None => own_compiler()?,
    };
    let source = std::fs::read_to_string(root().join("vmm-sys/src/types.rs"))?;
    let facts = Facts::read(&syn::parse_file(&source)?)?;
    let lines = table::lines()?;
    for (wheel, older) in [(&CUDA_12, true), (&CUDA_13, false)] {
        check(wheel, older, &facts, &lines, &compiler)?;
    }
    Ok(())
}

/// Members of unions without a name, whose offsets `vmm-sys/src/location.rs` asserts.
const EXTRA: &[(&str, u64)] = &[("offsetof(CUmemLocation, id)", 4)];

/// Whether a name says how much there is of something, and so differs between versions.
fn counts(expression: &str) -> bool {
    ["_MAX", "_NUM_OPTIONS", ", reserved)"]
        .iter()
        .any(|end| expression.ends_with(end))
}

/// What the Rust side takes the ABI to be.
struct Facts {
    /// C expression to value.
    sizes: BTreeMap<String, u64>,
    constants: BTreeMap<String, i128>,
}

impl Facts {
    fn read(file: &syn::File) -> Result<Self> {
        let asserted = asserted(file);
        let nameless = nameless(file, &asserted);
        let mut facts = Facts {
            sizes: BTreeMap::new(),
            constants: BTreeMap::new(),
        };
        facts
            .sizes
            .extend(EXTRA.iter().map(|&(what, value)| (what.to_owned(), value)));
        for (what, value) in &asserted {
            let Some(expression) = c_expression(what, &nameless) else {
                continue;
            };
            facts.sizes.insert(expression.0, value + expression.1);
        }
        for item in &file.items {
            let Item::Impl(block) = item else { continue };
            for member in &block.items {
                if let syn::ImplItem::Const(constant) = member
                    && let Some(value) = number(&constant.expr)
                {
                    facts.constants.insert(constant.ident.to_string(), value);
                }
            }
        }
        if facts.sizes.is_empty() || facts.constants.is_empty() {
            return Err("types.rs states no layouts or no constants".into());
        }
        Ok(facts)
    }
}

/// One layout assertion of `types.rs`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Layout {
    Size(String),
    Align(String),
    Offset(String, String),
}

/// The assertions `[..][size_of::<T>() - N]` that bindgen writes, which hold or do not compile.
fn asserted(file: &syn::File) -> BTreeMap<Layout, u64> {
    let mut found = BTreeMap::new();
    for item in &file.items {
        let Item::Const(constant) = item else {
            continue;
        };
        if constant.ident != "_" {
            continue;
        }
        let text = constant.expr.to_token_stream().to_string().replace(' ', "");
        for statement in text.split(';') {
            let Some((_, inner)) = statement.rsplit_once("][") else {
                continue;
            };
            let Some((left, value)) = inner.trim_end_matches([']', '}']).rsplit_once('-') else {
                continue;
            };
            let Ok(value) = value.trim_end_matches("usize").parse() else {
                continue;
            };
            let between = |front: &str, back: &str| {
                let (_, rest) = left.split_once(front)?;
                Some(rest.strip_suffix(back)?.to_owned())
            };
            let layout = if let Some(name) = between("size_of::<", ">()") {
                Layout::Size(name)
            } else if let Some(name) = between("align_of::<", ">()") {
                Layout::Align(name)
            } else if let Some(both) = between("offset_of!(", ")") {
                let Some((name, field)) = both.split_once(',') else {
                    continue;
                };
                Layout::Offset(name.to_owned(), field.to_owned())
            } else {
                continue;
            };
            found.insert(layout, value);
        }
    }
    found
}

/// Structs and unions that have no name in C: where they are in one that has.
fn nameless(
    file: &syn::File,
    asserted: &BTreeMap<Layout, u64>,
) -> BTreeMap<String, (String, String, Option<u64>)> {
    let mut found = BTreeMap::new();
    for item in &file.items {
        let (name, fields) = match item {
            Item::Struct(item) => (&item.ident, item.fields.iter().collect::<Vec<_>>()),
            Item::Union(item) => (&item.ident, item.fields.named.iter().collect()),
            _ => continue,
        };
        for field in fields {
            let (Some(ident), Type::Path(path)) = (&field.ident, &field.ty) else {
                continue;
            };
            let Some(inner) = path.path.segments.last() else {
                continue;
            };
            if !inner.ident.to_string().contains("__bindgen_ty_") {
                continue;
            }
            let offset = Layout::Offset(name.to_string(), ident.to_string());
            // Where bindgen states none, the place is stated by hand in `EXTRA`.
            let offset = asserted.get(&offset).copied();
            let ident = ident.to_string();
            let prefix = match ident.starts_with("__bindgen_anon") {
                true => String::new(),
                false => format!("{ident}."),
            };
            found.insert(inner.ident.to_string(), (name.to_string(), prefix, offset));
        }
    }
    found
}

/// The same in C, and what to add to the value since it is measured from a struct with a name.
fn c_expression(
    layout: &Layout,
    nameless: &BTreeMap<String, (String, String, Option<u64>)>,
) -> Option<(String, u64)> {
    let field = |name: &str| name.strip_suffix('_').unwrap_or(name).to_owned();
    match layout {
        Layout::Size(name) | Layout::Align(name) if name.contains("__bindgen") => None,
        Layout::Size(name) => Some((format!("sizeof({})", c_type(name)), 0)),
        Layout::Align(name) => Some((format!("_Alignof({})", c_type(name)), 0)),
        Layout::Offset(_, member) if member.starts_with("__bindgen") => None,
        Layout::Offset(name, member) => {
            let (mut name, mut path, mut add) = (name.clone(), field(member), 0);
            while let Some((parent, prefix, offset)) = nameless.get(&name) {
                path = format!("{prefix}{path}");
                add += (*offset)?;
                name = parent.clone();
            }
            Some((format!("offsetof({}, {path})", c_type(&name)), add))
        }
    }
}

fn c_type(name: &str) -> String {
    // The headers give every tagged type a name without the tag's ending.
    if name.ends_with("_st") {
        format!("struct {name}")
    } else {
        name.to_owned()
    }
}

fn number(expression: &syn::Expr) -> Option<i128> {
    match expression {
        syn::Expr::Call(call) => number(call.args.first()?),
        syn::Expr::Unary(unary) => Some(-number(&unary.expr)?),
        syn::Expr::Lit(literal) => match &literal.lit {
            syn::Lit::Int(value) => value.base10_parse().ok(),
            _ => None,
        },
        _ => None,
    }
}

fn own_compiler() -> Result<PathBuf> {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let compiler = cc::Build::new()
        .target(&target)
        .host(&target)
        .opt_level(0)
        .cargo_metadata(false)
        .try_get_compiler()?;
    Ok(compiler.path().to_owned())
}

fn check(wheel: &Wheel, older: bool, facts: &Facts, lines: &[Line], compiler: &Path) -> Result {
    let include = wheel.fetch()?;
    let known = words(&include)?;
    let mut program = String::from(
        "#define __CUDA_API_VERSION_INTERNAL 1\n#include <stddef.h>\n\
         #include <cuda.h>\n#include <cudaTypedefs.h>\n",
    );
    let is_known = |expression: &str| {
        let names = expression.split(|c: char| !c.is_alphanumeric() && c != '_');
        names
            .filter(|name| !matches!(*name, "" | "sizeof" | "_Alignof" | "offsetof" | "struct"))
            .all(|name| known.contains(name))
    };
    let (mut compared, mut newer) = (0, 0);
    let sizes = facts
        .sizes
        .iter()
        .map(|(name, &value)| (name, i128::from(value)));
    let constants = facts.constants.iter().map(|(name, &value)| (name, value));
    for (expression, value) in sizes.chain(constants) {
        if older && counts(expression) {
            newer += 1;
        } else if is_known(expression) {
            writeln!(
                program,
                "_Static_assert((long long)({expression}) == {value}LL, \"{expression} is {value} in Rust\");"
            )?;
            compared += 1;
        } else if older {
            newer += 1;
        } else {
            return Err(format!("the CUDA {} headers lack {expression}", wheel.version()).into());
        }
    }
    let (mut functions, mut per_thread, mut undeclared) = (0, 0, Vec::new());
    for line in lines {
        if !known.contains(&line.pfn) {
            return Err(
                format!("the CUDA {} headers have no {}", wheel.version(), line.pfn).into(),
            );
        }
        // What the loader takes instead where the per-thread default stream was chosen.
        for ending in ["ptds", "ptsz"] {
            let form = format!("PFN_{}_v{}_{ending}", line.symbol, line.tag.max(7000));
            if known.contains(&form) {
                writeln!(
                    program,
                    "_Static_assert(__builtin_types_compatible_p({form}, {}), \"the type of {form}\");",
                    line.pfn
                )?;
                per_thread += 1;
            }
        }
        if known.contains(&line.export) {
            writeln!(
                program,
                "_Static_assert(__builtin_types_compatible_p(__typeof__(&{0}), {1}), \"the type of {0}\");",
                line.export, line.pfn
            )?;
            functions += 1;
        } else {
            undeclared.push(line.export.as_str());
        }
    }
    let members = assert_all(&include, wheel, &program, older, compiler)?;
    let (compared, newer) = (compared - members, newer + members);
    println!(
        "{}, CUDA {}: {compared} sizes, alignments, offsets and constants, {functions} functions \
         and {per_thread} per-thread forms agree; \
         {newer} names are newer than these headers; exported names that they do not declare: {}",
        compiler.display(),
        wheel.version(),
        if undeclared.is_empty() {
            "none".to_owned()
        } else {
            undeclared.join(", ")
        }
    );
    Ok(())
}

/// Every identifier of the headers.
fn words(include: &Path) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for name in ["cuda.h", "cudaTypedefs.h"] {
        let text = std::fs::read_to_string(include.join(name))?;
        let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
        found.extend(words.filter(|word| !word.is_empty()).map(str::to_owned));
    }
    Ok(found)
}

/// Returns how many comparisons were left out since these headers lack the member.
fn assert_all(
    include: &Path,
    wheel: &Wheel,
    program: &str,
    older: bool,
    compiler: &Path,
) -> Result<usize> {
    let folder = root().join("target/abi-check").join(wheel.version());
    std::fs::create_dir_all(&folder)?;
    let source = folder.join("check.c");
    std::fs::write(&source, program)?;
    let compile = || {
        Command::new(compiler)
            .env("LC_ALL", "C")
            .args(["-std=c11", "-w", "-fsyntax-only"])
            .arg(format!("-I{}", include.display()))
            .arg(&source)
            .output()
            .map_err(|error| format!("{} cannot be run: {error}", compiler.display()))
    };
    let mut output = compile()?;
    let mut left_out = 0;
    if !output.status.success() && older {
        // A struct can have got members since, which only the compiler can tell.
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let newer: BTreeSet<usize> = text
            .lines()
            .filter(|line| line.contains("has no member named"))
            .filter_map(|line| line.split(':').nth(1)?.parse().ok())
            .collect();
        let kept = program
            .lines()
            .enumerate()
            .filter(|(at, _)| !newer.contains(&(at + 1)));
        let kept: Vec<&str> = kept.map(|(_, line)| line).collect();
        left_out = newer.len();
        std::fs::write(&source, kept.join("\n") + "\n")?;
        output = compile()?;
    }
    match output.status.success() {
        true => Ok(left_out),
        false => {
            eprint!("{}", String::from_utf8_lossy(&output.stderr));
            let (file, version) = (source.display(), wheel.version());
            Err(format!("{file}: the ABI differs from the CUDA {version} headers").into())
        }
    }
}
