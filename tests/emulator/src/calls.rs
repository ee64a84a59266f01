//! Which calls are meant to fail.

use crate::code::Code;
use crate::names::check_function;

/// Which calls a [`Failure`](crate::Failure) counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Calls<'a> {
    /// Calls of one function from any thread.
    Of(&'a str),
    /// Calls of one function from the thread that asks.
    OfHere(&'a str),
    /// Calls of any function from the thread that asks; the ones that only give texts, versions
    /// and addresses of functions are left out.
    AnyHere,
    /// The same from any thread.
    Any,
}

impl Calls<'_> {
    /// Why a failure of the `nth` of them would never come, or be none.
    pub(crate) fn check(&self, nth: u64, code: Code) -> Result<(), String> {
        let name = match self {
            Self::Of(function) | Self::OfHere(function) => {
                check_function(function)?;
                function
            }
            Self::AnyHere | Self::Any => "any call",
        };
        match (nth, code) {
            (0, _) => Err(format!("{name}: calls are counted from 1")),
            (_, Code::SUCCESS) => Err(format!("{name}: 0 is no failure")),
            (_, Code(below)) if below < 0 => Err(format!("{name}: {below} is no code")),
            _ => Ok(()),
        }
    }
}
