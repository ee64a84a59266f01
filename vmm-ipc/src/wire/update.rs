//! The update: what a buffer that grew has more than before.

use std::fmt;

use super::bytes::Reader;
use super::chunks::ChunkList;
use super::{BufferId, HandleKind, WireError, head};

const MAGIC: [u8; 4] = *b"VMMU";
/// Bytes before the chunk sizes.
const HEADER: usize = 80;

/// New chunks of a buffer, and its new length. It takes the buffer from one generation to the next.
#[derive(Clone, PartialEq, Eq)]
pub struct Update {
    id: BufferId,
    generation: u64,
    handle_kind: HandleKind,
    granularity: u64,
    first_chunk: u32,
    mapped_before: u64,
    len: u64,
    chunks: ChunkList,
}

/// What an update is made of, beside its chunks.
#[derive(Clone, Debug)]
pub(crate) struct Fields {
    pub(crate) id: BufferId,
    pub(crate) generation: u64,
    pub(crate) granularity: u64,
    pub(crate) first_chunk: u32,
    pub(crate) mapped_before: u64,
    pub(crate) len: u64,
}

impl Update {
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
            granularity,
            first_chunk,
            mapped_before,
            len,
        } = fields;
        if generation == 0 {
            return Err(WireError::Unknown {
                field: "generation",
                value: 0,
            });
        }
        if chunks.sizes.is_empty() {
            return Err(WireError::NoChunks);
        }
        let added = chunks.check(granularity)?;
        let mapped = mapped_before
            .checked_add(added)
            .ok_or(WireError::Overflow)?;
        if mapped > i64::MAX as u64 {
            return Err(WireError::Overflow);
        }
        if len > mapped {
            return Err(WireError::BufferLength {
                len,
                within: mapped,
            });
        }
        Ok(Update {
            id,
            generation,
            handle_kind,
            granularity,
            first_chunk,
            mapped_before,
            len,
            chunks,
        })
    }

    /// Read an update, which has to be all of `bytes`. As [`Descriptor::decode`](super::Descriptor::decode).
    ///
    /// # Errors
    ///
    /// Says what is wrong with the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let reader = &mut Reader::new(bytes);
        let count = head::decode(reader, bytes.len(), MAGIC, "the flags field of an update")?;
        let id = BufferId(reader.array()?);
        let generation = reader.u64()?;
        let first_chunk = reader.u32()?;
        let handle_kind = HandleKind::decode(reader.u8()?)?;
        reader.reserved::<11>("the reserved field of an update")?;
        let (granularity, mapped_before, len) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let chunks = ChunkList::decode(reader, count, handle_kind)?;
        reader.end()?;
        let fields = Fields {
            id,
            generation,
            granularity,
            first_chunk,
            mapped_before,
            len,
        };
        Self::check(fields, handle_kind, chunks)
    }

    /// The bytes: one string for each value, and [`Update::decode`] gives the value back.
    pub fn encode(&self) -> Vec<u8> {
        let len = HEADER + self.chunks.sizes.len() * self.handle_kind.chunk_len();
        let mut to = head::encode(len, MAGIC, self.chunks.sizes.len());
        to.extend_from_slice(&self.id.0);
        to.extend_from_slice(&self.generation.to_le_bytes());
        to.extend_from_slice(&self.first_chunk.to_le_bytes());
        to.push(self.handle_kind.encode());
        to.extend_from_slice(&[0; 11]);
        to.extend_from_slice(&self.granularity.to_le_bytes());
        to.extend_from_slice(&self.mapped_before.to_le_bytes());
        to.extend_from_slice(&self.len.to_le_bytes());
        self.chunks.encode(&mut to);
        to
    }

    /// The random name of the buffer.
    pub fn id(&self) -> BufferId {
        self.id
    }

    /// The generation that the buffer has after the update: one more than before it.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// How the memory of each new chunk travels.
    pub fn handle_kind(&self) -> HandleKind {
        self.handle_kind
    }

    /// Chunk sizes are multiples of this many bytes, a power of two.
    pub fn granularity(&self) -> u64 {
        self.granularity
    }

    /// The number of the first new chunk: how many there were before.
    pub fn first_chunk(&self) -> u32 {
        self.first_chunk
    }

    /// The sum of the chunks before the update, in bytes.
    pub fn mapped_before(&self) -> u64 {
        self.mapped_before
    }

    /// The length of the buffer in bytes, after the update.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the length is zero, though there are chunks.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The size of each new chunk in bytes, in address order.
    pub fn sizes(&self) -> &[u64] {
        &self.chunks.sizes
    }

    /// The fabric handle of each new chunk; empty where they travel as file descriptors.
    pub fn fabric_handles(&self) -> &[[u8; HandleKind::FABRIC_LEN]] {
        &self.chunks.fabric
    }
}

impl fmt::Debug for Update {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Update")
            .field("id", &self.id)
            .field("generation", &self.generation)
            .field("handle_kind", &self.handle_kind)
            .field("granularity", &self.granularity)
            .field("first_chunk", &self.first_chunk)
            .field("mapped_before", &self.mapped_before)
            .field("len", &self.len)
            .field("sizes", &self.chunks.sizes)
            .finish()
    }
}
