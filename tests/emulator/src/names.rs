//! The names of functions, without the functions.

/// What a function is called, and what one of its forms is exported as.
struct Name {
    name: &'static str,
    export: &'static str,
}

macro_rules! names {
    ($($name:ident $tag:literal $export:ident $($module:ident :: $function:ident)?;)*) => {
        &[$(Name { name: stringify!($name), export: stringify!($export) },)*]
    };
}

const NAMES: [&[Name]; 2] = [
    crate::for_each_symbol!(names),
    crate::for_each_missing!(names),
];

/// Why there is no such function, of any version.
pub(crate) fn check_function(function: &str) -> Result<(), String> {
    let names = || NAMES.into_iter().flatten();
    if names().any(|known| known.name == function) {
        return Ok(());
    }
    match names().find(|known| known.export == function) {
        Some(known) => Err(format!(
            "{function} is what the library exports for a form of {0}: every form is called {0} here",
            known.name
        )),
        None => Err(format!("{function} is no function of the driver")),
    }
}
