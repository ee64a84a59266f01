//! `cargo xtask bindings`: vmm-sys's types and calls, from NVIDIA's headers and the table, and the
//! list of what the emulator does not do.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use bindgen::FieldVisibilityKind;
use bindgen::callbacks::{FieldInfo, ParseCallbacks};
use lexopt::Parser;
use quote::ToTokens as _;
use syn::{BareFnArg, GenericArgument, Item, PathArguments, Type};

use crate::functions;
use crate::headers::{self, CUDA_13};
use crate::result::Result;
use crate::table::{self, Line};
use crate::workspace::root;

/// Types that no function of the table names, but that its users need.
const EXTRA_TYPES: &[&str] = &[
    "CUdevice_attribute_enum",
    "CUpointer_attribute_enum",
    "CUmemAllocationGranularity_flags_enum",
    "CUmemRangeHandleType_enum",
    "CUmemAllocationCompType_enum",
    "CUstreamCaptureMode_enum",
    "CUmemFabricHandle_st",
    "CUmemFabricHandle",
    "CUdriverProcAddress_flags_enum",
    "CUdriverProcAddress_flags",
    "CUstream_flags",
    "CUevent_flags",
    "CUipcMem_flags",
    "CUdriverProcAddressQueryResult",
    "CUmemPool_attribute",
    "CUstream_flags_enum",
    "CUevent_flags_enum",
    "CUdevice_P2PAttribute",
    "CUdeviceptr",
    "CUuuid",
    "CUdevice",
    "CUmemGenericAllocationHandle",
    "CUmemAllocationProp",
    "CUmemAccessDesc",
    "CUmemLocation",
    "CUcomputemode",
    "CUcomputemode_enum",
    "CUmemAllocationCompType",
    "CUmemAllocationGranularity_flags",
    "CUmemRangeHandleType",
    "CUipcMemHandle",
    "CUipcEventHandle",
    "CUmemPoolProps",
    "CUmemPoolPtrExportData",
    "CUmemcpyAttributes",
    "CUmulticastObjectProp",
    "CUjit_option",
];

/// Typedefs of the headers that are generated beside the table's.
const EXTRA_FUNCTIONS: &[&str] = &["PFN_cuGetProcAddress_v11030", "PFN_cuGetProcAddress_v12000"];

pub fn run(mut arguments: Parser) -> Result {
    use lexopt::prelude::*;
    let (mut check, mut include) = (false, None);
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("check") => check = true,
            Long("include") => include = Some(PathBuf::from(arguments.value()?)),
            Short('h') | Long("help") => {
                println!("cargo xtask bindings [--check] [--include DIR]");
                return Ok(());
            }
            other => return Err(other.unexpected().into()),
        }
    }
    let include = match include {
        Some(folder) => folder,
        None => CUDA_13.fetch()?,
    };
    headers::find_libclang()?;
    let lines = table::lines()?;
    let types = types(&include, &lines)?;
    let calls = calls(&syn::parse_file(&types)?, &lines)?;
    let table = markdown(&lines);
    let codes = codes(&syn::parse_file(&types)?)?;
    let every = every_call(&syn::parse_file(&types)?, &lines)?;
    let missing = functions::missing(&include)?;
    for (name, text) in [
        ("vmm-sys/src/types.rs", types),
        ("vmm-sys/src/calls.rs", calls),
        ("vmm-sys/src/codes.rs", codes),
        ("vmm-sys/src/table.md", table),
        ("vmm-sys/tests/common/calls.rs", every),
        ("tests/emulator/src/missing_list.rs", missing),
    ] {
        let path = root().join(name);
        let before = std::fs::read_to_string(&path).unwrap_or_default();
        if before == text {
            println!("{name}: as it should be");
        } else if check {
            let line = before
                .lines()
                .zip(text.lines())
                .position(|(a, b)| a != b)
                .unwrap_or(0)
                + 1;
            return Err(format!(
                "{name} differs from what the headers and the tables give, from line {line} on: \
                 run `cargo xtask bindings` and commit the result"
            )
            .into());
        } else {
            std::fs::write(&path, text)?;
            println!("{name}: written");
        }
    }
    Ok(())
}

/// One member of a location's union is shorter than the union. Whoever could write that one in safe
/// code could read bytes of the other that nobody wrote.
#[derive(Debug)]
struct Visibility;

impl ParseCallbacks for Visibility {
    fn field_visibility(&self, field: FieldInfo<'_>) -> Option<FieldVisibilityKind> {
        let hidden = field.type_name.starts_with("CUmemLocation")
            && field.field_name.starts_with("__bindgen_anon");
        hidden.then_some(FieldVisibilityKind::PublicCrate)
    }
}

fn types(include: &Path, lines: &[Line]) -> Result<String> {
    let mut builder = headers::cuda(include)?
        .allowlist_recursively(true)
        .layout_tests(true)
        .derive_default(true)
        .derive_debug(true)
        .impl_debug(true)
        .prepend_enum_name(false)
        .default_enum_style(bindgen::EnumVariation::NewType {
            is_bitfield: false,
            is_global: false,
        })
        .translate_enum_integer_types(true)
        .parse_callbacks(Box::new(Visibility));
    let functions = lines
        .iter()
        .map(|line| line.pfn.as_str())
        .chain(EXTRA_FUNCTIONS.iter().copied());
    for name in functions.chain(EXTRA_TYPES.iter().copied()) {
        builder = builder.allowlist_type(name);
    }
    let text = rustfmt(&builder.generate()?.to_string())?;
    Ok(format!(
        "// Generated by `cargo xtask bindings` from the CUDA {} headers: names, numbers and signatures.\n\n{text}",
        CUDA_13.version()
    ))
}

/// One method for each line, with the signature that the headers give to its type.
fn calls(types: &syn::File, lines: &[Line]) -> Result<String> {
    let signatures = signatures(types);
    let mut text = String::from(
        "// Generated by `cargo xtask bindings` from the table and the CUDA headers.\n\n\
         use core::ffi::*;\n\n\
         use crate::driver::Driver;\n\
         use crate::error::{Error, check};\n\
         use crate::types::*;\n\n\
         /// One method a symbol, with the name and the arguments that it has in C.\n\
         ///\n\
         /// # Safety\n\
         ///\n\
         /// For every one of them: pointers are valid for what the call reads and writes through them, for\n\
         /// as long as it (or the work it submits) does; handles come from this driver and are live; and\n\
         /// what the CUDA documentation asks of the caller holds. See the crate's documentation.\n\
         #[allow(non_snake_case, clippy::too_many_arguments)]\n\
         impl Driver {\n",
    );
    for line in lines {
        let arguments = signatures
            .get(&line.pfn)
            .ok_or_else(|| format!("the headers have no {}", line.pfn))?;
        let alias = match line.export == line.method {
            true => String::new(),
            false => format!("    #[doc(alias = \"{}\")]\n", line.export),
        };
        let safety = match &line.safety {
            Some(text) => format!("    /// {text}\n"),
            None => String::new(),
        };
        let (mut list, mut names) = (String::new(), String::new());
        for (name, ty) in arguments {
            write!(list, ", {name}: {ty}")?;
            write!(names, "{name}, ")?;
        }
        write!(
            text,
            "    /// {}: {} (since CUDA {}).\n    ///\n    /// # Errors\n    ///\n    /// The driver's answer{}.\n    ///\n    \
             /// # Safety\n    ///\n    /// As for every call: valid pointers, live handles of this driver.\n\
             {}{}    \
             pub unsafe fn {}(&self{list}) -> Result<(), Error> {{\n        \
             let Some(call) = self.table().{} else {{\n            return Err(self.missing(\"{}\", {}));\n        }};\n        \
             // SAFETY: the caller keeps the obligations above, and the type is that of the version asked for.\n        \
             check(\"{}\", unsafe {{ call({names}) }})\n    }}\n\n",
            line.group.split(" (").next().unwrap_or(&line.group),
            line.text,
            version(line.tag),
            if line.required {
                ""
            } else {
                ", or that it lacks the symbol"
            },
            safety,
            alias,
            line.method,
            line.method,
            line.symbol,
            line.tag,
            line.symbol,
        )?;
    }
    text.push_str("}\n");
    rustfmt(&text)
}

/// Each method with arguments that are all zero, by name: for tests of what a driver lacks.
fn every_call(types: &syn::File, lines: &[Line]) -> Result<String> {
    let signatures = signatures(types);
    let mut text = String::from(
        "// Generated by `cargo xtask bindings` from the table.\n\n\
         use vmm_sys::{Driver, Error};\n\n\
         /// Calls the method of this name with zeros.\n\
         ///\n\
         /// # Safety\n\
         ///\n\
         /// The driver lacks the symbol, so that nothing is called.\n\
         pub unsafe fn call(driver: &Driver, method: &str) -> Option<Result<(), Error>> {\n\
         // SAFETY: integers and pointers may be zero, and the caller says that nothing is called.\n\
         Some(unsafe { match method {\n",
    );
    for line in lines {
        let count = signatures.get(&line.pfn).map_or(0, Vec::len);
        let zeros = vec!["std::mem::zeroed()"; count].join(", ");
        writeln!(text, "\"{0}\" => driver.{0}({zeros}),", line.method)?;
    }
    text.push_str("_ => return None,\n} })\n}\n");
    rustfmt(&text)
}

/// The arguments of every function type, by the type's name.
fn signatures(types: &syn::File) -> BTreeMap<String, Vec<(String, String)>> {
    let mut found = BTreeMap::new();
    for item in &types.items {
        if let Item::Type(alias) = item
            && let Some(arguments) = function_arguments(&alias.ty)
        {
            found.insert(alias.ident.to_string(), arguments);
        }
    }
    found
}

/// The names of the result codes.
fn codes(types: &syn::File) -> Result<String> {
    let mut text = String::from(
        "// Generated by `cargo xtask bindings` from the CUDA headers.\n\n\
         use crate::types::CUresult;\n\n\
         pub(crate) const CODES: &[(CUresult, &str)] = &[\n",
    );
    for item in &types.items {
        let Item::Impl(block) = item else { continue };
        let Type::Path(path) = &*block.self_ty else {
            continue;
        };
        if !path.path.is_ident("cudaError_enum") {
            continue;
        }
        for member in &block.items {
            if let syn::ImplItem::Const(constant) = member {
                writeln!(text, "    (CUresult::{0}, \"{0}\"),", constant.ident)?;
            }
        }
    }
    text.push_str("];\n");
    rustfmt(&text)
}

fn rustfmt(text: &str) -> Result<String> {
    let shell = xshell::Shell::new()?;
    shell.change_dir(root());
    Ok(xshell::cmd!(shell, "rustfmt --edition 2024 --emit stdout")
        .stdin(text)
        .quiet()
        .read()?
        + "\n")
}

fn function_arguments(ty: &Type) -> Option<Vec<(String, String)>> {
    let Type::Path(path) = ty else { return None };
    let PathArguments::AngleBracketed(inner) = &path.path.segments.last()?.arguments else {
        return None;
    };
    let Some(GenericArgument::Type(Type::BareFn(function))) = inner.args.first() else {
        return None;
    };
    function.inputs.iter().map(argument).collect()
}

fn argument(argument: &BareFnArg) -> Option<(String, String)> {
    let (name, _) = argument.name.as_ref()?;
    let ty = argument
        .ty
        .to_token_stream()
        .to_string()
        .replace(":: core :: ffi :: ", "");
    Some((name.to_string(), ty))
}

/// The table for the crate's page.
fn markdown(lines: &[Line]) -> String {
    let mut text =
        String::from("| symbol | version | since | | what for |\n|---|---|---|---|---|\n");
    for line in lines {
        let need = if line.required {
            "required"
        } else {
            "optional"
        };
        let _ = writeln!(
            text,
            "| [`{}`](Driver::{}) | {} | {} | {need} | {} |",
            line.symbol,
            line.method,
            line.tag,
            version(line.tag),
            line.text
        );
    }
    text
}

fn version(tag: u32) -> String {
    format!("{}.{}", tag / 1000, tag % 1000 / 10)
}
