//! A buffer that is put together batch by batch, while later batches are on their way.

use std::os::fd::OwnedFd;

use vmm::{Allocation, Buffer, Device, MapOptions};

use super::Imported;
use super::chunks::{ChunkSource, explain_map};
use crate::error::{Error, Result};
use crate::limits::Limits;
use crate::wire::{Descriptor, HandleKind, WireError};

/// How far a transfer has come: given to a progress callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Chunks that are through.
    pub done: usize,
    /// Chunks in all.
    pub total: usize,
}

impl Progress {
    pub(crate) fn new(done: usize, total: usize) -> Self {
        Progress { done, total }
    }
}

/// A buffer that is being put together, batch by batch.
pub(super) struct Building<'a> {
    pub(super) chunks: ChunkSource,
    pub(super) device: Device,
    pub(super) sizes: Vec<u64>,
    pub(super) fabric: Vec<[u8; HandleKind::FABRIC_LEN]>,
    pub(super) len: usize,
    pub(super) options: MapOptions,
    pub(super) buffer: Option<Buffer>,
    pub(super) kept: Option<Vec<OwnedFd>>,
    pub(super) progress: Option<Box<dyn FnMut(Progress) + 'a>>,
    pub(super) limits: Limits,
}

impl Building<'_> {
    /// Import and map the next chunks.
    pub(super) fn add(&mut self, fds: Vec<OwnedFd>) -> Result<()> {
        let total = self.sizes.len();
        let done = self.buffer.as_ref().map_or(0, Buffer::chunk_count);
        let allocations = if self.fabric.is_empty() {
            let sizes = self.sizes.get(done..).unwrap_or_default();
            self.chunks.import_fds(&fds, sizes, done, total)?
        } else {
            self.chunks.import_fabric(&self.fabric, &self.sizes)?
        };
        let last = done + allocations.len();
        let added: usize = allocations.iter().map(Allocation::size).sum();
        let mapped = self.buffer.as_ref().map_or(0, Buffer::mapped_len) + added;
        let len = self.len.min(mapped);
        let buffer = match &self.buffer {
            None => Buffer::from_allocations(&self.device, allocations, len, &self.options),
            Some(buffer) => buffer.extend(allocations, len),
        };
        let buffer = buffer.map_err(|error| {
            explain_map(
                format!("mapping chunks {} to {last} of {total}", done + 1),
                error,
            )
        })?;
        if let Some(kept) = &mut self.kept {
            kept.extend(fds);
        }
        let progress = Progress::new(buffer.chunk_count(), total);
        self.buffer = Some(buffer);
        if let Some(callback) = &mut self.progress {
            callback(progress);
        }
        Ok(())
    }

    pub(super) fn finish(mut self, descriptor: Descriptor) -> Result<Imported> {
        if self
            .buffer
            .as_ref()
            .is_none_or(|buffer| buffer.chunk_count() == 0)
        {
            // Fabric handles came with the descriptor.
            self.add(Vec::new())?;
        }
        match self.buffer {
            Some(buffer) => Ok(Imported {
                buffer,
                descriptor,
                fds: self.kept,
                limits: self.limits,
                updates: Vec::new(),
            }),
            None => Err(Error::wire("importing a buffer", WireError::NoChunks)),
        }
    }
}
