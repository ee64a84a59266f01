//! What a call can answer.

use std::fmt;

use crate::types::CUresult;

/// Why a call of a driver symbol did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error {
    symbol: &'static str,
    kind: ErrorKind,
}

/// What happened when a symbol was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The driver was called and answered this.
    Failed(CUresult),
    /// The driver does not have the symbol, so nothing was called.
    Missing {
        /// The CUDA version that brought the symbol: 10020 is 10.2.
        since: u32,
        /// The CUDA version that the driver implements.
        driver_version: i32,
    },
}

impl Error {
    /// That the driver answered `code` when `symbol` was called.
    pub const fn failed(symbol: &'static str, code: CUresult) -> Self {
        Error {
            symbol,
            kind: ErrorKind::Failed(code),
        }
    }

    pub(crate) const fn missing(symbol: &'static str, since: u32, driver_version: i32) -> Self {
        Error {
            symbol,
            kind: ErrorKind::Missing {
                since,
                driver_version,
            },
        }
    }

    /// The symbol's C name.
    pub const fn symbol(&self) -> &'static str {
        self.symbol
    }

    /// What happened.
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The driver's answer; `None` where it lacks the symbol.
    pub const fn code(&self) -> Option<CUresult> {
        match self.kind {
            ErrorKind::Failed(code) => Some(code),
            ErrorKind::Missing { .. } => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            ErrorKind::Failed(code) => write!(f, "{} answered {code}", self.symbol),
            ErrorKind::Missing {
                since,
                driver_version,
            } => write!(
                f,
                "the driver has no {}, which came with CUDA {}: it implements {}",
                self.symbol,
                Version(since as i32),
                Version(driver_version)
            ),
        }
    }
}

impl std::error::Error for Error {}

/// The answer of a call as a result.
pub(crate) fn check(symbol: &'static str, code: CUresult) -> Result<(), Error> {
    if code == CUresult::CUDA_SUCCESS {
        Ok(())
    } else {
        Err(Error::failed(symbol, code))
    }
}

/// A CUDA version as people write it: 13000 is 13.0.
pub(crate) struct Version(pub(crate) i32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}
