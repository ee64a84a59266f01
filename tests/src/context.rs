//! What a case is given.

use std::time::Duration;

use crate::driver::Choice;
use crate::peer::{self, Peer};
use crate::{Case, Failure};

/// The driver under test and the helpers to count and to start peers.
#[derive(Debug)]
pub struct Context {
    choice: Choice,
    devices: usize,
}

impl Context {
    pub(crate) fn new(choice: Choice, devices: usize) -> Context {
        Context { choice, devices }
    }

    pub(crate) fn for_case(choice: Choice, case: &Case) -> Context {
        Context::new(choice, case.devices)
    }

    /// The driver that was asked for.
    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// How many devices the case asked for.
    pub fn devices(&self) -> usize {
        self.devices
    }

    /// The number of fds that this process has open.
    pub fn open_fds(&self) -> usize {
        open_fds().len()
    }

    /// Starts `role` in another process, by exec of this program, on the same driver.
    pub fn peer(&self, role: &str) -> Result<Peer, Failure> {
        self.peer_with(role, &[], &[])
    }

    /// As [`peer`](Context::peer), with arguments and environment variables.
    pub fn peer_with(
        &self,
        role: &str,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Result<Peer, Failure> {
        peer::spawn(self, role, arguments, environment)
    }
}

/// The fds that this process has open and what they refer to, in words, for messages.
pub fn open_fds() -> Vec<(i32, String)> {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else {
        panic!("/proc/self/fd cannot be read: the suite counts fds there");
    };
    let mut fds: Vec<(i32, String)> = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let fd = entry.file_name().to_str()?.parse().ok()?;
            // The fd of the directory that is being read is gone by the time it could be used.
            let target = std::fs::read_link(entry.path()).ok()?;
            Some((fd, target.display().to_string()))
        })
        .filter(|(_, target)| !(target.starts_with("/proc/") && target.ends_with("/fd")))
        .collect();
    fds.sort();
    fds
}

/// Calls `attempt` until it gives a value or `limit` has passed.
pub fn wait_for<T>(limit: Duration, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    let start = std::time::Instant::now();
    let mut pause = Duration::from_micros(200);
    loop {
        if let Some(value) = attempt() {
            return Some(value);
        }
        if start.elapsed() >= limit {
            return None;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(10));
    }
}
