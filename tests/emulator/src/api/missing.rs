//! What the emulator knows by name and cannot do: `NOT_SUPPORTED`, never a pretended success.

use super::enter;
use crate::code::Code;

/// The answer of every function of `for_each_missing`. The exported name keeps the forms of a
/// function apart: what is compiled to the same code may have one address.
#[doc(hidden)]
pub fn refuse(function: &'static str, export: &'static str) -> Code {
    std::hint::black_box(export);
    enter(function, |_| Err(Code::NOT_SUPPORTED))
}
