//! The chunks of a buffer, as descriptors and updates carry them.

use super::WireError;
use super::bytes::Reader;

/// How the memory of each chunk travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HandleKind {
    /// One file descriptor for each chunk, beside the bytes.
    PosixFd,
    /// 64 bytes for each chunk, in the bytes.
    Fabric,
}

impl HandleKind {
    /// The length of a fabric handle in bytes.
    pub const FABRIC_LEN: usize = 64;

    pub(super) fn decode(value: u8) -> Result<Self, WireError> {
        // The driver's own numbers.
        match value {
            1 => Ok(HandleKind::PosixFd),
            8 => Ok(HandleKind::Fabric),
            other => Err(WireError::Unknown {
                field: "handle type",
                value: other.into(),
            }),
        }
    }

    pub(super) const fn encode(self) -> u8 {
        match self {
            HandleKind::PosixFd => 1,
            HandleKind::Fabric => 8,
        }
    }

    /// Bytes for each chunk in the encoding.
    pub(super) const fn chunk_len(self) -> usize {
        match self {
            HandleKind::PosixFd => 8,
            HandleKind::Fabric => 8 + Self::FABRIC_LEN,
        }
    }
}

/// Where the memory of a buffer lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Place {
    /// On the device.
    Device,
    /// On this NUMA node of the host.
    HostNuma(i32),
}

impl Place {
    pub(super) fn decode(kind: u8, node: i32) -> Result<Self, WireError> {
        match (kind, node) {
            (1, 0) => Ok(Place::Device),
            (1, _) => Err(WireError::Reserved {
                field: "the NUMA node of device memory",
            }),
            (3, node) if node >= 0 => Ok(Place::HostNuma(node)),
            (3, node) => Err(WireError::Unknown {
                field: "NUMA node",
                value: node as u32 as u64,
            }),
            (other, _) => Err(WireError::Unknown {
                field: "location type",
                value: other.into(),
            }),
        }
    }

    pub(super) const fn encode(self) -> (u8, i32) {
        match self {
            Place::Device => (1, 0),
            Place::HostNuma(node) => (3, node),
        }
    }
}

/// The sizes of chunks in address order, and their fabric handles where they have such.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChunkList {
    pub(super) sizes: Vec<u64>,
    pub(super) fabric: Vec<[u8; HandleKind::FABRIC_LEN]>,
}

impl ChunkList {
    /// How the memory travels, where the handles are here if they can be.
    pub(super) fn handle_kind(&self) -> HandleKind {
        match self.fabric.is_empty() {
            true => HandleKind::PosixFd,
            false => HandleKind::Fabric,
        }
    }

    /// `count` chunks, which have to be all that is left of the input.
    pub(super) fn decode(
        reader: &mut Reader<'_>,
        count: u32,
        kind: HandleKind,
    ) -> Result<Self, WireError> {
        let count = count as usize;
        if count == 0 {
            return Err(WireError::NoChunks);
        }
        let needed = count as u64 * kind.chunk_len() as u64;
        if needed != reader.left() as u64 {
            return Err(WireError::Length {
                stated: needed,
                actual: reader.left() as u64,
            });
        }
        // The input has been found to hold this many, so it has paid for what is allocated.
        let sizes = reader.take(count * 8)?;
        let sizes = sizes
            .as_chunks::<8>()
            .0
            .iter()
            .map(|&size| u64::from_le_bytes(size))
            .collect();
        let fabric = match kind {
            HandleKind::PosixFd => Vec::new(),
            HandleKind::Fabric => reader
                .take(count * HandleKind::FABRIC_LEN)?
                .as_chunks()
                .0
                .to_vec(),
        };
        Ok(ChunkList { sizes, fabric })
    }

    pub(super) fn encode(&self, to: &mut Vec<u8>) {
        for size in &self.sizes {
            to.extend_from_slice(&size.to_le_bytes());
        }
        for handle in &self.fabric {
            to.extend_from_slice(handle);
        }
    }

    /// That the length of an encoding of so many chunks fits its field.
    pub(super) fn check_count(count: usize) -> Result<(), WireError> {
        let most = (u32::MAX as usize - super::MAX_HEADER) / HandleKind::Fabric.chunk_len();
        if count <= most {
            return Ok(());
        }
        let (found, limit) = (count as u64, most as u64);
        Err(WireError::Limit {
            what: "chunks",
            found,
            limit,
        })
    }

    /// The sum of the sizes, each of which is a multiple of `granularity` and not zero.
    pub(super) fn check(&self, granularity: u64) -> Result<u64, WireError> {
        if !granularity.is_power_of_two() {
            return Err(WireError::Granularity { granularity });
        }
        Self::check_count(self.sizes.len())?;
        let mut total = 0_u64;
        for (index, &size) in self.sizes.iter().enumerate() {
            if size == 0 || size & (granularity - 1) != 0 {
                return Err(WireError::ChunkSize { index, size });
            }
            total = total.checked_add(size).ok_or(WireError::Overflow)?;
        }
        match total <= i64::MAX as u64 {
            true => Ok(total),
            false => Err(WireError::Overflow),
        }
    }
}
