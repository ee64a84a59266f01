//! Which driver the suite runs on.

use std::fmt;
use std::path::PathBuf;

/// The environment variable that chooses the driver where `--driver` does not.
pub const VARIABLE: &str = "VMM_TEST_DRIVER";

/// The driver that was asked for. There is no automatic choice: a suite that runs on something
/// else than it was told proves nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The emulator, inside the test process.
    Emulator,
    /// The real driver, `libcuda.so.1`.
    Cuda,
    /// A driver library at this path.
    Path(PathBuf),
}

impl Choice {
    /// `emulator`, `cuda`, or a path that contains a slash.
    pub fn parse(text: &str) -> Result<Choice, String> {
        match text {
            "emulator" => Ok(Choice::Emulator),
            "cuda" => Ok(Choice::Cuda),
            path if path.contains('/') => Ok(Choice::Path(path.into())),
            other => Err(format!(
                "driver `{other}`: expected `emulator`, `cuda`, or a path that contains a slash"
            )),
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Emulator => f.write_str("emulator"),
            Choice::Cuda => f.write_str("cuda"),
            Choice::Path(path) => write!(f, "{}", path.display()),
        }
    }
}
