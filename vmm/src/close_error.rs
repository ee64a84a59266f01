//! What could not be let go.

use std::fmt;

use crate::error::Error;

/// What failed while a buffer, awake or asleep, or a driver was closed: each step that the driver
/// refused, and what is left behind by it. Everything else was released.
#[derive(Debug)]
pub struct CloseError(Vec<Error>);

impl CloseError {
    pub(crate) fn from_list(errors: Vec<Error>) -> Self {
        CloseError(errors)
    }

    /// Every failure, in the order in which they happened.
    pub fn errors(&self) -> &[Error] {
        &self.0
    }
}

impl fmt::Display for CloseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [] => f.write_str("not everything could be released"),
            [one] => write!(f, "not everything could be released: {one}"),
            [first, rest @ ..] => {
                write!(
                    f,
                    "not everything could be released: {first}; and {} more failures",
                    rest.len()
                )
            }
        }
    }
}

impl std::error::Error for CloseError {}
