//! What keeps imports cheap: one mapping that stays.

use std::sync::Arc;

use vmm::{Allocator, Buffer, ChunkPolicy, Device, Driver};

use super::{ImportOptions, Imported};
use crate::channel::Channel;
use crate::error::{Error, Result};

/// Imports buffers, and keeps one granule of memory of a device mapped for as long as it lives.
///
/// Granting access while nothing else of the process is mapped on the device costs the driver about
/// a millisecond instead of 30 microseconds, and so does the last unmap. A process that maps other
/// memory all the time does not need this; one that only attaches to what others own, and lets go of
/// it, makes an `Importer` early and keeps it. [`ImportOptions::receive`] works without one.
#[derive(Clone, Debug)]
pub struct Importer {
    device: Device,
    _anchor: Arc<Buffer>,
}

impl Importer {
    /// For buffers on `device`. Others can be received too, at the full price.
    ///
    /// # Errors
    ///
    /// Those of allocating and mapping one granule: [`ErrorKind::Memory`](crate::ErrorKind::Memory).
    pub fn new(device: &Device) -> Result<Self> {
        let anchor = || {
            let policy = ChunkPolicy::exact();
            let allocator = Allocator::builder(device).chunk_policy(policy).build()?;
            allocator.allocate(allocator.granularity())
        };
        let anchor = anchor().map_err(|error| Error::memory("setting up an importer", error))?;
        Ok(Importer {
            device: device.clone(),
            _anchor: Arc::new(anchor),
        })
    }

    /// The driver to import with, for the calls of [`ImportOptions`] and others.
    pub fn driver(&self) -> &Driver {
        self.device.driver()
    }

    /// The device that the granule is on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// As [`ImportOptions::receive`].
    ///
    /// # Errors
    ///
    /// As [`ImportOptions::receive`].
    pub fn receive(&self, options: ImportOptions<'_>, channel: &mut Channel) -> Result<Imported> {
        options.receive(self.driver(), channel)
    }
}
