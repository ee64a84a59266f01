//! The descriptor: all that an importer needs to know of a buffer.

use std::fmt;

use super::bytes::Reader;
use super::chunks::ChunkList;
use super::{BufferId, HandleKind, Place, WireError, head};

const MAGIC: [u8; 4] = *b"VMMD";
/// Bytes before the chunk sizes.
const HEADER: usize = 88;

/// A buffer in words: which device, which chunks, how long.
///
/// A value of this type is consistent in itself: there are chunks, their sizes are multiples of the
/// granularity and do not overflow, and the length fits. Whether it is *true* only the driver can
/// tell, when the memory is mapped.
#[derive(Clone, PartialEq, Eq)]
pub struct Descriptor {
    id: BufferId,
    generation: u64,
    device: [u8; 16],
    place: Place,
    handle_kind: HandleKind,
    granularity: u64,
    len: u64,
    capacity: u64,
    mapped: u64,
    chunks: ChunkList,
}

/// What a descriptor is made of: see [`Descriptor::new`].
#[derive(Clone, Debug)]
pub(crate) struct Fields {
    pub(crate) id: BufferId,
    pub(crate) generation: u64,
    pub(crate) device: [u8; 16],
    pub(crate) place: Place,
    pub(crate) granularity: u64,
    pub(crate) len: u64,
    pub(crate) capacity: u64,
}

impl Descriptor {
    /// `fabric` is empty where the chunks travel as file descriptors.
    pub(crate) fn new(
        fields: Fields,
        sizes: Vec<u64>,
        fabric: Vec<[u8; HandleKind::FABRIC_LEN]>,
    ) -> Result<Self, WireError> {
        let chunks = ChunkList { sizes, fabric };
        Self::check(fields, chunks.handle_kind(), chunks)
    }

    fn check(
        fields: Fields,
        handle_kind: HandleKind,
        chunks: ChunkList,
    ) -> Result<Self, WireError> {
        let Fields {
            id,
            generation,
            device,
            place,
            granularity,
            len,
            capacity,
        } = fields;
        if chunks.sizes.is_empty() {
            return Err(WireError::NoChunks);
        }
        let mapped = chunks.check(granularity)?;
        if len > mapped {
            return Err(WireError::BufferLength {
                len,
                within: mapped,
            });
        }
        if capacity < mapped || capacity & (granularity - 1) != 0 || capacity > i64::MAX as u64 {
            return Err(WireError::Capacity { capacity });
        }
        Ok(Descriptor {
            id,
            generation,
            device,
            place,
            handle_kind,
            granularity,
            len,
            capacity,
            mapped,
            chunks,
        })
    }

    /// Read a descriptor, which has to be all of `bytes`.
    ///
    /// Makes one allocation for the sizes and one for fabric handles, both no larger than the input.
    ///
    /// # Errors
    ///
    /// Says what is wrong with the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let reader = &mut Reader::new(bytes);
        let count = head::decode(
            reader,
            bytes.len(),
            MAGIC,
            "the flags field of a descriptor",
        )?;
        let id = BufferId(reader.array()?);
        let generation = reader.u64()?;
        let device = reader.array()?;
        let place_kind = reader.u8()?;
        let handle_kind = HandleKind::decode(reader.u8()?)?;
        reader.reserved::<2>("the reserved field of a descriptor")?;
        let place = Place::decode(place_kind, reader.i32()?)?;
        let (granularity, len, capacity) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let chunks = ChunkList::decode(reader, count, handle_kind)?;
        reader.end()?;
        let fields = Fields {
            id,
            generation,
            device,
            place,
            granularity,
            len,
            capacity,
        };
        Self::check(fields, handle_kind, chunks)
    }

    /// The bytes: one string for each value, and [`Descriptor::decode`] gives the value back.
    pub fn encode(&self) -> Vec<u8> {
        let len = HEADER + self.chunks.sizes.len() * self.handle_kind.chunk_len();
        let (place, node) = self.place.encode();
        let mut to = head::encode(len, MAGIC, self.chunks.sizes.len());
        to.extend_from_slice(&self.id.0);
        to.extend_from_slice(&self.generation.to_le_bytes());
        to.extend_from_slice(&self.device);
        to.extend_from_slice(&[place, self.handle_kind.encode(), 0, 0]);
        to.extend_from_slice(&node.to_le_bytes());
        to.extend_from_slice(&self.granularity.to_le_bytes());
        to.extend_from_slice(&self.len.to_le_bytes());
        to.extend_from_slice(&self.capacity.to_le_bytes());
        self.chunks.encode(&mut to);
        to
    }

    /// The random name of the buffer.
    pub fn id(&self) -> BufferId {
        self.id
    }

    /// How often the buffer had grown when this was written: 0 at first.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The UUID of the device that the memory is on or for.
    pub fn device(&self) -> [u8; 16] {
        self.device
    }

    /// Where the memory lies.
    pub fn place(&self) -> Place {
        self.place
    }

    /// How the memory of each chunk travels.
    pub fn handle_kind(&self) -> HandleKind {
        self.handle_kind
    }

    /// Chunk sizes are multiples of this many bytes, a power of two.
    pub fn granularity(&self) -> u64 {
        self.granularity
    }

    /// The length of the buffer in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the length is zero, though there are chunks.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes up to which the buffer grows at its address where it was exported.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The sum of the chunks in bytes.
    pub fn mapped_len(&self) -> u64 {
        self.mapped
    }

    /// The size of each chunk in bytes, in address order.
    pub fn sizes(&self) -> &[u64] {
        &self.chunks.sizes
    }

    /// The fabric handle of each chunk; empty where they travel as file descriptors.
    pub fn fabric_handles(&self) -> &[[u8; HandleKind::FABRIC_LEN]] {
        &self.chunks.fabric
    }

    /// The sum of the chunks in bytes after `update`, if that can follow.
    pub(crate) fn mapped_after(&self, update: &super::Update) -> Result<u64, WireError> {
        ChunkList::check_count(self.chunks.sizes.len() + update.sizes().len())?;
        let added = update.sizes().iter().sum::<u64>();
        let mapped = self.mapped.checked_add(added).ok_or(WireError::Overflow)?;
        if mapped > i64::MAX as u64 {
            return Err(WireError::Overflow);
        }
        if update.len() > mapped {
            let len = update.len();
            return Err(WireError::BufferLength {
                len,
                within: mapped,
            });
        }
        Ok(mapped)
    }

    /// Take in an update. The cost is that of what is new. Nothing has changed after an error.
    pub(crate) fn apply(&mut self, update: &super::Update) -> Result<(), WireError> {
        let mapped = self.mapped_after(update)?;
        self.chunks.sizes.extend_from_slice(update.sizes());
        self.chunks
            .fabric
            .extend_from_slice(update.fabric_handles());
        self.generation = update.generation();
        self.len = update.len();
        self.mapped = mapped;
        self.raise_capacity(mapped);
        Ok(())
    }

    /// The exporter has reserved so many bytes, which are whole granules.
    pub(crate) fn raise_capacity(&mut self, capacity: u64) {
        self.capacity = self.capacity.max(capacity);
    }
}

/// A table of the chunks.
impl fmt::Display for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = DeviceName(&self.device);
        let kind = match self.handle_kind {
            HandleKind::PosixFd => "posix-fd",
            HandleKind::Fabric => "fabric",
        };
        writeln!(
            f,
            "buffer {} generation {} on {device} as {kind}",
            self.id, self.generation
        )?;
        writeln!(f, "chunk        offset          size")?;
        let mut offset = 0;
        for (index, size) in self.chunks.sizes.iter().enumerate() {
            writeln!(f, "{index:>5}  {offset:>12}  {size:>12}")?;
            offset += size;
        }
        write!(
            f,
            "length {}, mapped {}, capacity {} bytes",
            self.len, self.mapped, self.capacity
        )
    }
}

/// The device's UUID as the driver's tools write it.
struct DeviceName<'a>(&'a [u8; 16]);

impl fmt::Display for DeviceName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU")?;
        for (index, byte) in self.0.iter().enumerate() {
            let dash = if matches!(index, 0 | 4 | 6 | 8 | 10) {
                "-"
            } else {
                ""
            };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
