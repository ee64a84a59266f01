//! Libraries in C that look more or less like a driver.

use std::fmt::Write as _;
use std::path::PathBuf;

use vmm_sys::SYMBOLS;

use crate::common::compile;

/// How a library is asked for its symbols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `cuGetProcAddress_v2` of CUDA 12.0.
    V2,
    /// Only `cuGetProcAddress` of CUDA 11.3.
    V1,
    /// Neither: every symbol by its exported name.
    Exports,
}

/// A library to build. Its functions answer 1, or 2 in their per-thread form.
pub struct Library {
    pub form: Form,
    pub version: i32,
    /// What it lacks, by exported name.
    pub lacks: &'static [&'static str],
    /// A name that it refuses to look up.
    pub refuses: &'static str,
    /// What looking up and asking for the version answer.
    pub code: i32,
}

impl Default for Library {
    fn default() -> Self {
        Library {
            form: Form::V2,
            version: 13000,
            lacks: &[],
            refuses: "",
            code: 0,
        }
    }
}

impl Library {
    /// Builds it as `libcuda.so.1` in a folder of this name.
    pub fn build(&self, name: &str) -> PathBuf {
        compile(name, &self.source())
    }

    fn source(&self) -> String {
        let mut text = format!(
            "#include <string.h>\n\
             int cuDriverGetVersion(int *version) {{ *version = {}; return {}; }}\n",
            self.version, self.code
        );
        let offered = SYMBOLS.iter().filter(|symbol| {
            symbol.tag as i32 <= self.version
                && symbol.method != "cuDriverGetVersion"
                && !self.lacks.contains(&symbol.export)
        });
        if self.form == Form::Exports {
            for symbol in offered {
                let name = symbol.export;
                let _ = writeln!(text, "int {name}(void) {{ return 1; }}");
                if name.starts_with("cuMemcpy") {
                    let _ = writeln!(text, "int {name}_ptds(void) {{ return 2; }}");
                }
            }
            return text;
        }
        let mut rows = String::new();
        for symbol in offered {
            let _ = writeln!(rows, "{{\"{}\", {}}},", symbol.name, symbol.tag);
        }
        let (name, parameter, not_found) = match self.form {
            Form::V2 => (
                "cuGetProcAddress_v2",
                ", int *status",
                "*status = 1; return 0;",
            ),
            _ => ("cuGetProcAddress", "", "return 500;"),
        };
        let _ = writeln!(
            text,
            "static int one(void) {{ return 1; }}\n\
             static int two(void) {{ return 2; }}\n\
             static const struct {{ const char *name; int tag; }} rows[] = {{\n{rows}}};\n\
             int {name}(const char *name, void **address, int tag, unsigned long long flags{parameter}) {{\n\
             *address = 0;\n\
             if ({code}) return {code};\n\
             if (tag / 1000 > {version} / 1000 || !strcmp(name, \"{refuses}\")) return 1;\n\
             if (!strcmp(name, \"cuDriverGetVersion\")) {{ *address = (void *)cuDriverGetVersion; return 0; }}\n\
             if (flags == 2 && tag < 7000 && !strncmp(name, \"cuMemcpy\", 8)) {{ {not_found} }}\n\
             for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++)\n\
             if (!strcmp(rows[i].name, name) && rows[i].tag <= tag) {{\n\
             *address = flags == 2 ? (void *)two : (void *)one; return 0; }}\n\
             {not_found} }}",
            code = self.code,
            version = self.version,
            refuses = self.refuses,
        );
        text
    }
}
