//! What a case is given.

use std::sync::OnceLock;
use std::time::Duration;

use crate::driver::{self, Choice};
use crate::peer::{self, Peer};
use crate::snapshot::Snapshot;
use crate::{Case, Failure};

/// The driver under test and the helpers to count and to start peers.
#[derive(Debug)]
pub struct Context {
    choice: Choice,
    devices: usize,
    driver: OnceLock<vmm::Driver>,
}

impl Context {
    pub(crate) fn new(choice: Choice, devices: usize) -> Context {
        Context {
            choice,
            devices,
            driver: OnceLock::new(),
        }
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

    /// The driver's table, loaded anew: a case that stays below `vmm` uses this one.
    pub fn sys(&self) -> Result<vmm_sys::Driver, Failure> {
        driver::load(&self.choice, self.devices)
    }

    /// The driver under test, initialised once for the case.
    pub fn driver(&self) -> Result<&vmm::Driver, Failure> {
        if let Some(driver) = self.driver.get() {
            return Ok(driver);
        }
        let driver = vmm::Driver::new(self.sys()?)?;
        Ok(self.driver.get_or_init(|| driver))
    }

    /// The first device.
    pub fn device(&self) -> Result<vmm::Device, Failure> {
        Ok(self.driver()?.device(0)?)
    }

    /// The number of fds that this process has open.
    pub fn open_fds(&self) -> usize {
        open_fds().len()
    }

    /// Everything that can be counted, now.
    pub fn snapshot(&self) -> Result<Snapshot, Failure> {
        Snapshot::take(self.driver()?)
    }

    /// Fails where something has been left behind, or is missing, since `before`.
    #[track_caller]
    pub fn assert_as(&self, before: &Snapshot) -> Result<(), Failure> {
        match before.difference(&self.snapshot()?) {
            None => Ok(()),
            Some(difference) => Err(Failure::new(format!("not as before: {difference}"))),
        }
    }

    /// Does `work` twice, and fails where the second time leaves anything behind. The first is the
    /// driver's opportunity to set up what it keeps for good.
    #[track_caller]
    pub fn leaves_nothing(
        &self,
        mut work: impl FnMut() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        work()?;
        let before = self.snapshot()?;
        work()?;
        match before.difference(&self.snapshot()?) {
            None => Ok(()),
            Some(difference) => Err(Failure::new(format!("left behind: {difference}"))),
        }
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
