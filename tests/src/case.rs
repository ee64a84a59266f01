//! What a case is and how it fails.

use std::fmt;
use std::panic::Location;
use std::time::Duration;

use crate::Context;

/// One test: a name, a function, and where it makes sense.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub(crate) path: &'static str,
    pub(crate) run: fn(&Context) -> Result<(), Failure>,
    pub(crate) emulator_only: bool,
    pub(crate) devices: usize,
    pub(crate) as_root: bool,
    pub(crate) misuses: bool,
    pub(crate) timeout: Duration,
}

impl Case {
    /// A case that runs on every driver, on one device, for at most a minute. `path` is the path of
    /// the function; [`cases!`](crate::cases) fills it in.
    pub const fn new(path: &'static str, run: fn(&Context) -> Result<(), Failure>) -> Case {
        Case {
            path,
            run,
            emulator_only: false,
            devices: 1,
            as_root: false,
            misuses: false,
            timeout: Duration::from_secs(60),
        }
    }

    /// The case needs what only the emulator can do, such as failing a call on demand. It is not
    /// listed on a real driver, and the runner says how many are not.
    pub const fn emulator_only(mut self) -> Case {
        self.emulator_only = true;
        self
    }

    /// The case needs this many devices. The emulator provides them; on a machine with fewer GPUs
    /// it is not listed, and the runner says how many are not.
    pub const fn devices(mut self, devices: usize) -> Case {
        self.devices = devices;
        self
    }

    /// The case becomes another user for a while, as only root can. Others do not have it listed, and
    /// the runner says how many they have not.
    pub const fn as_root(mut self) -> Case {
        self.as_root = true;
        self
    }

    /// Whether it is listed for this machine and this user.
    pub(crate) fn is_listed(&self, on_hardware: bool, devices: usize, root: bool) -> bool {
        let by_driver = !on_hardware || !self.emulator_only && self.devices <= devices;
        by_driver && (root || !self.as_root)
    }

    /// The case does on purpose what the emulator counts as misuse of the driver. Any other case
    /// that does has failed.
    pub const fn misuses(mut self) -> Case {
        self.misuses = true;
        self
    }

    /// The case is killed, and has failed, after this many seconds.
    pub const fn timeout(mut self, seconds: u64) -> Case {
        self.timeout = Duration::from_secs(seconds);
        self
    }

    /// The name that the runner lists and filters by: the function's path inside this crate.
    pub fn name(&self) -> &'static str {
        self.path
            .split_once("::")
            .map_or(self.path, |(_, rest)| rest)
    }
}

/// A list of cases from function names, each with the settings of [`Case`] that differ from the
/// usual: `cases![plain, slow: timeout(300), injected: emulator_only() timeout(120)]`.
#[macro_export]
macro_rules! cases {
    ($($function:ident $(: $($setting:ident($($value:expr),*))+)?),* $(,)?) => {
        &[$(
            $crate::Case::new(concat!(module_path!(), "::", stringify!($function)), $function)
                $($(.$setting($($value),*))+)?
        ),*]
    };
}

/// Why a case failed. Made from any error by `?`, which records the line.
pub struct Failure {
    message: String,
    location: &'static Location<'static>,
}

impl Failure {
    /// A failure in words.
    #[track_caller]
    pub fn new(message: impl Into<String>) -> Failure {
        Failure {
            message: message.into(),
            location: Location::caller(),
        }
    }
}

impl<E: std::error::Error> From<E> for Failure {
    #[track_caller]
    fn from(error: E) -> Failure {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            message = format!("{message}: {cause}");
            source = cause.source();
        }
        Failure {
            message,
            location: Location::caller(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (at {})", self.message, self.location)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_listed_where_it_can_run() {
        let case = Case::new("crate::case", |_| Ok(()));
        let everywhere = [false, true].map(|hardware| case.is_listed(hardware, 1, false));
        assert_eq!(everywhere, [true, true]);
        let only = |case: Case| {
            [
                (false, 1, false),
                (true, 1, false),
                (true, 2, false),
                (true, 2, true),
            ]
            .map(|(hardware, devices, root)| case.is_listed(hardware, devices, root))
        };
        assert_eq!(only(case.emulator_only()), [true, false, false, false]);
        assert_eq!(only(case.devices(2)), [true, false, true, true]);
        assert_eq!(only(case.as_root()), [false, false, false, true]);
        assert_eq!(only(case.as_root().devices(3)), [false; 4]);
    }
}
