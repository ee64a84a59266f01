//! The table's lines as data, for diagnostics and for whoever implements a driver.

use core::ffi::CStr;

use crate::table::for_each_symbol;

/// One line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Symbol {
    /// The name of the method, unique in the table.
    pub method: &'static str,
    /// The name that `cuGetProcAddress` is asked for.
    pub name: &'static str,
    /// The same, as the driver wants it.
    pub(crate) c_name: &'static CStr,
    /// The name that the library exports for this version.
    pub export: &'static str,
    /// The CUDA version whose ABI is asked for, and since which it exists: 10020 is 10.2.
    pub tag: u32,
    /// Whether a driver without it is refused.
    pub required: bool,
    /// What it is for.
    pub purpose: &'static str,
}

/// The first word of a line; any other does not compile.
macro_rules! need {
    (required) => {
        true
    };
    (optional) => {
        false
    };
}

macro_rules! list {
    ($($need:ident $method:ident $symbol:literal $export:literal $tag:literal $pfn:ident $text:literal $(, $safety:literal)?;)*) => {
        /// Every symbol, in the order of the table.
        pub const SYMBOLS: &[Symbol] = &[
            $(Symbol {
                method: stringify!($method),
                name: $symbol,
                c_name: c_name(concat!($symbol, "\0")),
                export: $export,
                tag: $tag,
                required: need!($need),
                purpose: $text,
            },)*
        ];

        // The type of a line has to be that of the name and the version that are asked for.
        $(const _: () = assert!(
            names_type($symbol, $tag, stringify!($pfn)),
            concat!("the type of ", $symbol, " is of another name or version than its line"),
        );)*
    };
}

for_each_symbol!(list);

/// A name with its terminator; without one it would be empty, which no driver finds.
const fn c_name(terminated: &str) -> &CStr {
    match CStr::from_bytes_with_nul(terminated.as_bytes()) {
        Ok(name) => name,
        Err(_) => c"",
    }
}

/// Whether `pfn` is `PFN_<name>_v<tag>`.
const fn names_type(name: &str, tag: u32, pfn: &str) -> bool {
    let (name, pfn) = (name.as_bytes(), pfn.as_bytes());
    let (Some((front, rest)), true) = (pfn.split_at_checked(4), pfn.len() > 4) else {
        return false;
    };
    if !equal(front, b"PFN_") {
        return false;
    }
    let Some((middle, rest)) = rest.split_at_checked(name.len()) else {
        return false;
    };
    let Some((v, digits)) = rest.split_at_checked(2) else {
        return false;
    };
    equal(middle, name) && equal(v, b"_v") && decimal(digits) == tag as u64
}

const fn equal(mut a: &[u8], mut b: &[u8]) -> bool {
    while let ([first, rest @ ..], [other, others @ ..]) = (a, b) {
        if *first != *other {
            return false;
        }
        (a, b) = (rest, others);
    }
    a.is_empty() && b.is_empty()
}

const fn decimal(mut digits: &[u8]) -> u64 {
    let mut value = 0;
    while let [digit, rest @ ..] = digits {
        if !digit.is_ascii_digit() {
            return u64::MAX;
        }
        value = value * 10 + (*digit - b'0') as u64;
        digits = rest;
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_version_or_name_does_not_pass() {
        assert!(names_type("cuMemCreate", 10020, "PFN_cuMemCreate_v10020"));
        assert!(!names_type("cuMemCreate", 10021, "PFN_cuMemCreate_v10020"));
        assert!(!names_type("cuMemCreat", 10020, "PFN_cuMemCreate_v10020"));
        assert!(!names_type(
            "cuMemCreate",
            10020,
            "PFN_cuMemCreate_v10020_ptsz"
        ));
        assert!(!names_type("cuMemCreate", 10020, "PFN"));
    }

    #[test]
    fn no_method_stands_twice() {
        let mut names: Vec<_> = SYMBOLS.iter().map(|symbol| symbol.method).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), SYMBOLS.len());
    }
}
