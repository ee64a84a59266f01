//! Until when to wait.

use std::time::{Duration, Instant};

use rustix::event::Timespec;

/// A moment by which an operation is over, one way or the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Instant);

impl Deadline {
    pub(crate) fn after(timeout: Duration) -> Self {
        let now = Instant::now();
        // A timeout past the end of time is as good as a century.
        let far = || now + Duration::from_secs(100 * 365 * 86_400);
        Deadline(now.checked_add(timeout).unwrap_or_else(far))
    }

    /// That has passed: what is tried by it is tried once.
    pub(crate) fn now() -> Self {
        Deadline(Instant::now())
    }

    /// What is left; `None` once it has passed.
    pub(crate) fn left(self) -> Option<Duration> {
        let left = self.0.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// What is left, for `poll`; `None` once it has passed.
    pub(crate) fn timespec(self) -> Option<Timespec> {
        let left = self.left()?;
        Some(Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        })
    }
}
