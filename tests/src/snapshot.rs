//! What is alive at one moment, to compare with another.

use crate::Failure;
use crate::context::open_fds;
use crate::emulated::{self, Live};

/// Open fds, free memory of every device, and on the emulator everything it counts.
#[derive(Clone, Debug)]
pub struct Snapshot {
    fds: Vec<(i32, String)>,
    free: Vec<usize>,
    live: Option<Live>,
}

impl Snapshot {
    pub(crate) fn take(driver: &vmm::Driver) -> Result<Snapshot, Failure> {
        let devices = driver.devices();
        let free = devices
            .iter()
            .map(|device| Ok(device.memory_info()?.free))
            .collect::<Result<_, Failure>>()?;
        Ok(Snapshot {
            live: driver.is_emulator().then(emulated::live),
            free,
            fds: open_fds(),
        })
    }

    /// The number of open fds.
    pub fn fds(&self) -> usize {
        self.fds.len()
    }

    /// Free bytes of the first device.
    pub fn free(&self) -> usize {
        self.free.first().copied().unwrap_or_default()
    }

    /// In words, what differs in `now`.
    pub(crate) fn difference(&self, now: &Snapshot) -> Option<String> {
        let mut differences = Vec::new();
        if self.fds.len() != now.fds.len() {
            let new: Vec<_> = now.fds.iter().filter(|fd| !self.fds.contains(fd)).collect();
            let gone: Vec<_> = self.fds.iter().filter(|fd| !now.fds.contains(fd)).collect();
            differences.push(format!(
                "{} open fds, now {} (new: {new:?}, gone: {gone:?})",
                self.fds.len(),
                now.fds.len()
            ));
        }
        if self.free != now.free {
            differences.push(format!("free memory {:?}, now {:?}", self.free, now.free));
        }
        if self.live != now.live {
            differences.push(format!("alive {:?}, now {:?}", self.live, now.live));
        }
        (!differences.is_empty()).then(|| differences.join("; "))
    }
}
