//! Giving the memory back and keeping the addresses.

use std::fmt;

use crate::access::AccessSet;
use crate::allocation::Blueprint;
use crate::buffer::{Buffer, Kind};
use crate::capture::Relaxed;
use crate::chain::{self, Link};
use crate::close;
use crate::close_error::CloseError;
use crate::error::{Error, ErrorKind, Result};
use crate::mapping::{self, Mapping, Place};
use crate::reservation::{Claim, Reservation};
use crate::stream::Stream;

/// A buffer whose physical memory was given back while its addresses stay reserved: see
/// [`Buffer::sleep`].
///
/// Dropping it frees the addresses.
pub struct SleepingBuffer {
    kind: Kind,
    base: u64,
    len: usize,
    mapped: usize,
    /// One bed for each chunk, in address order.
    beds: Vec<Bed>,
    room: Option<Reservation>,
    stream: Option<Stream>,
    /// The bytes of each chunk, where they were kept.
    contents: Option<Vec<Vec<u8>>>,
}

/// Where a chunk was, and how to make one like it.
struct Bed {
    /// `None` where something is still mapped that the driver would not unmap.
    claim: Option<Claim>,
    access: AccessSet,
    blueprint: Blueprint,
}

/// How far a copy has come: given to a progress callback after each part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Bytes copied so far.
    pub done: usize,
    /// Bytes to copy in all.
    pub total: usize,
}

/// Why a buffer did not fall asleep or wake up, and the buffer as it was.
pub struct SleepError<T> {
    /// The buffer, with everything it had.
    pub buffer: Box<T>,
    /// What went wrong.
    pub error: Error,
}

/// Bytes copied between two calls of a progress callback.
const STEP: usize = 64 << 20;

impl Buffer {
    /// Give the physical memory back to the device and keep the addresses, for
    /// [`SleepingBuffer::wake`] to fill them with fresh memory. The bytes are lost.
    ///
    /// Waits first for the work that a drop would wait for.
    ///
    /// # Errors
    ///
    /// The buffer is returned as it was. [`ErrorKind::Aliased`] where another buffer, a slice or a
    /// handle still holds some of the memory, so that it would not be freed;
    /// [`ErrorKind::NotSupported`] for memory that was imported, which cannot be made again;
    /// [`ErrorKind::Capturing`] where it cannot wait. File descriptors that were exported keep the
    /// memory too, and this crate cannot see them.
    #[doc(alias = "cuMemUnmap")]
    pub fn sleep(self) -> std::result::Result<SleepingBuffer, SleepError<Buffer>> {
        match self.blueprints() {
            Ok(blueprints) => self.lie_down(blueprints, None),
            Err(error) => Err(SleepError {
                buffer: Box::new(self),
                error,
            }),
        }
    }

    /// As [`Buffer::sleep`], and keep the bytes in host memory, so that they are back after
    /// [`SleepingBuffer::wake`]. `progress` is called after each part of at most 64 MiB.
    ///
    /// # Errors
    ///
    /// As [`Buffer::sleep`] and [`Buffer::read`]; [`ErrorKind::OutOfMemory`] where the host has too
    /// little memory.
    pub fn sleep_with_contents(
        self,
        mut progress: impl FnMut(Progress),
    ) -> std::result::Result<SleepingBuffer, SleepError<Buffer>> {
        let ready = self.blueprints().and_then(|blueprints| {
            self.settle()?;
            Ok((blueprints, self.save(&mut progress)?))
        });
        match ready {
            Ok((blueprints, contents)) => self.lie_down(blueprints, Some(contents)),
            Err(error) => Err(SleepError {
                buffer: Box::new(self),
                error,
            }),
        }
    }

    /// How to make every chunk again, if the memory would be freed and can be made again.
    fn blueprints(&self) -> Result<Vec<Blueprint>> {
        self.kind.device.driver().check()?;
        let attempt = || format!("putting a buffer of {} bytes to sleep", self.len);
        if self.chunks().any(|chunk| chunk.allocation.is_imported()) {
            let reason = "it has memory that was imported, which cannot be made again";
            return Err(Error::new(ErrorKind::NotSupported, attempt(), reason));
        }
        if !chain::is_unique(self.tail.as_ref()) {
            let reason = "another buffer, slice or handle still holds some of its memory";
            return Err(Error::new(ErrorKind::Aliased, attempt(), reason)
                .advise(
                    "drop its aliases, slices and the buffers it was grown from first, and retire its exports",
                ));
        }
        self.chunks()
            .map(|chunk| chunk.allocation.blueprint())
            .collect()
    }

    /// Wait for all work that a drop would wait for: on streams other than the recorded one, too.
    fn settle(&self) -> Result<()> {
        let _relaxed = Relaxed::enter(self.kind.device.driver());
        self.note_all();
        let mappings = chain::backwards(self.tail.as_ref()).map(|link| link.mapping());
        chain::wait(mappings).into_iter().next().map_or(Ok(()), Err)
    }

    fn save(&self, progress: &mut dyn FnMut(Progress)) -> Result<Vec<Vec<u8>>> {
        let total = self.len;
        let mut done = 0;
        let mut contents = Vec::with_capacity(self.chunks);
        for chunk in self.chunks() {
            // Bytes past the length are nobody's.
            let size = chunk.size.min(total - done);
            let mut bytes = Vec::new();
            bytes.try_reserve_exact(size).map_err(|_| {
                let reason = format!("the host has no {size} bytes left");
                Error::new(
                    ErrorKind::OutOfMemory,
                    "keeping the contents of a buffer",
                    reason,
                )
            })?;
            bytes.resize(size, 0);
            for (index, part) in bytes.chunks_mut(STEP).enumerate() {
                // It lies in one chunk, so nobody has to look where to cut it.
                self.read_pieces(chunk.offset + index * STEP, part, &[])?;
                done += part.len();
                progress(Progress { done, total });
            }
            contents.push(bytes);
        }
        Ok(contents)
    }

    fn lie_down(
        mut self,
        blueprints: Vec<Blueprint>,
        contents: Option<Vec<Vec<u8>>>,
    ) -> std::result::Result<SleepingBuffer, SleepError<Buffer>> {
        let driver = self.kind.device.driver().clone();
        // A callback may have forked since it was checked last.
        if let Err(error) = driver.check() {
            return Err(SleepError {
                buffer: Box::new(self),
                error,
            });
        }
        let _relaxed = Relaxed::enter(&driver);
        self.note_all();
        let mappings = chain::into_mappings(self.tail.take());
        if let Some(error) = chain::wait(&mappings).into_iter().next() {
            self.tail = Link::append(None, mappings);
            return Err(SleepError {
                buffer: Box::new(self),
                error,
            });
        }
        let parts = match mapping::unmap_together(&driver, mappings) {
            Ok(parts) => parts,
            Err((error, mappings)) => {
                self.tail = Link::append(None, mappings);
                return Err(SleepError {
                    buffer: Box::new(self),
                    error,
                });
            }
        };
        let beds = parts.into_iter().zip(blueprints).map(|(part, blueprint)| {
            // The chunk is unmapped: a handle that the driver will not release cannot be mapped again.
            if let Err(error) = part.allocation.let_go() {
                driver.report(error);
            }
            Bed {
                claim: Some(part.claim),
                access: part.access,
                blueprint,
            }
        });
        Ok(SleepingBuffer {
            kind: self.kind.clone(),
            base: self.base,
            len: self.len,
            mapped: self.mapped,
            beds: beds.collect(),
            room: self.room.take(),
            stream: self.stream.take(),
            contents,
        })
    }
}

impl SleepingBuffer {
    /// The length in bytes that the buffer had and will have.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device address that the buffer had and will have.
    pub fn address(&self) -> u64 {
        self.base
    }

    /// Whether the bytes were kept.
    pub fn has_contents(&self) -> bool {
        self.contents.is_some()
    }

    /// Give up the addresses and the contents, and hear what went wrong.
    ///
    /// # Errors
    ///
    /// Those of `cuMemAddressFree`. As much as possible is released even then.
    #[doc(alias = "cuMemAddressFree")]
    pub fn close(mut self) -> std::result::Result<(), CloseError> {
        if let Err(error) = self.kind.device.driver().check() {
            return Err(CloseError::from_list(vec![error]));
        }
        let claims = self.beds.drain(..).filter_map(|bed| bed.claim);
        let failed = close::free(claims, self.room.take());
        match failed.is_empty() {
            true => Ok(()),
            false => Err(CloseError::from_list(failed)),
        }
    }

    /// Map fresh memory at the same addresses, with the bytes that were kept, if they were.
    ///
    /// The memory is new: what was exported before is not this memory, and has to be exported again.
    ///
    /// # Errors
    ///
    /// As [`Allocator::allocate`](crate::Allocator::allocate) and [`Buffer::write`]. The sleeping
    /// buffer is returned as it was, and can try again.
    #[doc(alias = "cuMemMap")]
    pub fn wake(self) -> std::result::Result<Buffer, SleepError<SleepingBuffer>> {
        self.wake_with_progress(|_| {})
    }

    /// As [`SleepingBuffer::wake`]. `progress` is called after each part of at most 64 MiB.
    ///
    /// # Errors
    ///
    /// As [`SleepingBuffer::wake`].
    pub fn wake_with_progress(
        mut self,
        mut progress: impl FnMut(Progress),
    ) -> std::result::Result<Buffer, SleepError<SleepingBuffer>> {
        let driver = self.kind.device.driver().clone();
        let _relaxed = Relaxed::enter(&driver);
        let mappings = match driver.check().and_then(|()| self.map()) {
            Ok(mappings) => mappings,
            Err(error) => {
                return Err(SleepError {
                    buffer: Box::new(self),
                    error,
                });
            }
        };
        let mut buffer = Buffer::empty(self.kind.clone(), self.room.clone());
        buffer.base = self.base;
        buffer.len = self.len;
        buffer.mapped = self.mapped;
        buffer.chunks = mappings.len();
        buffer.tail = Link::append(None, mappings);
        buffer.stream.clone_from(&self.stream);
        if let Err(error) = self.restore(&buffer, &mut progress) {
            if driver.in_own_process() {
                // The copies that were submitted may still run. Nobody else has been here yet, so where
                // waiting fails nothing else can be in the memory: it goes as in a drop.
                buffer.note_all();
                let mappings = chain::into_mappings(buffer.tail.take());
                let mut failed = chain::wait(&mappings);
                let parts = mapping::unmap_all(&driver, mappings, &mut failed);
                self.take_back(parts.into_iter().map(|part| part.claim));
                for other in failed {
                    driver.report(other);
                }
            }
            return Err(SleepError {
                buffer: Box::new(self),
                error,
            });
        }
        Ok(buffer)
    }

    fn map(&mut self) -> Result<Vec<Mapping>> {
        let driver = self.kind.device.driver().clone();
        driver.check()?;
        if self.beds.iter().any(|bed| bed.claim.is_none()) {
            let attempt = format!("waking a buffer of {} bytes", self.len);
            let reason = "an earlier attempt left memory behind at its addresses that the driver \
                          would not unmap";
            return Err(Error::new(ErrorKind::Driver, attempt, reason));
        }
        // All memory first: taking places is what cannot be undone halfway.
        let memory: Vec<_> = self
            .beds
            .iter()
            .map(|bed| bed.blueprint.allocate())
            .collect::<Result<_>>()?;
        let places: Vec<Place> = self
            .beds
            .iter_mut()
            .zip(memory)
            .filter_map(|(bed, allocation)| {
                let claim = bed.claim.take()?;
                Some(Place {
                    allocation,
                    claim,
                    access: bed.access.clone(),
                })
            })
            .collect();
        Mapping::run(&driver, places).map_err(|undone| {
            self.take_back(undone.claims.into_iter());
            undone.error
        })
    }

    /// Put claims back into their beds.
    fn take_back(&mut self, claims: impl Iterator<Item = Claim>) {
        let mut address = self.base;
        let mut claims = claims.peekable();
        for bed in &mut self.beds {
            bed.claim = claims.next_if(|claim| claim.address() == address);
            address += bed.blueprint.size() as u64;
        }
    }

    fn restore(&self, buffer: &Buffer, progress: &mut dyn FnMut(Progress)) -> Result<()> {
        let Some(contents) = &self.contents else {
            return Ok(());
        };
        let (total, mut done) = (self.len, 0);
        for (chunk, bytes) in buffer.chunks().zip(contents) {
            for (index, part) in bytes.chunks(STEP).enumerate() {
                buffer.write_pieces(chunk.offset + index * STEP, part, &[])?;
                done += part.len();
                progress(Progress { done, total });
            }
        }
        Ok(())
    }
}

impl fmt::Debug for SleepingBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SleepingBuffer")
            .field("address", &format_args!("{:#x}", self.base))
            .field("len", &self.len)
            .field("chunks", &self.beds.len())
            .field("has_contents", &self.has_contents())
            .finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for SleepError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T> fmt::Display for SleepError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T> std::error::Error for SleepError<T> {}

impl<T> From<SleepError<T>> for Error {
    fn from(failed: SleepError<T>) -> Error {
        failed.error
    }
}
