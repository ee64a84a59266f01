//! What can be wrong with bytes.

use std::fmt;

/// Why bytes are not a descriptor or a message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WireError {
    /// The input ends inside a field.
    Truncated {
        /// Where the field begins, in bytes from the start.
        at: usize,
        /// How long the field is.
        needed: usize,
        /// How many bytes are left.
        left: usize,
    },
    /// More bytes follow than belong here.
    TrailingBytes {
        /// How many.
        bytes: usize,
    },
    /// The first bytes are not those of what was expected.
    Magic,
    /// A version of the format that this crate does not know.
    Version {
        /// The version.
        found: u16,
    },
    /// A field that has to be zero in this version is not.
    Reserved {
        /// The field.
        field: &'static str,
    },
    /// A value that has no meaning.
    Unknown {
        /// The field.
        field: &'static str,
        /// The value.
        value: u64,
    },
    /// The length that the bytes state is not their length.
    Length {
        /// As stated.
        stated: u64,
        /// As it is.
        actual: u64,
    },
    /// A buffer without chunks.
    NoChunks,
    /// The granularity is not a power of two.
    Granularity {
        /// The value.
        granularity: u64,
    },
    /// A chunk's size is zero or not a multiple of the granularity.
    ChunkSize {
        /// The chunk, from 0.
        index: usize,
        /// Its size in bytes.
        size: u64,
    },
    /// The sizes add up to more than an address space has.
    Overflow,
    /// The buffer is longer than its chunks, or longer than its capacity.
    BufferLength {
        /// The length in bytes.
        len: u64,
        /// What it has to fit in.
        within: u64,
    },
    /// The capacity is smaller than the chunks or not a multiple of the granularity.
    Capacity {
        /// The capacity in bytes.
        capacity: u64,
    },
    /// More than this side is willing to take.
    Limit {
        /// What: "chunks" or "bytes".
        what: &'static str,
        /// How many there are.
        found: u64,
        /// How many are taken.
        limit: u64,
    },
    /// A text is not UTF-8.
    Text,
    /// A message of another kind than the exchange has here.
    Unexpected {
        /// What came.
        found: &'static str,
        /// What belongs here.
        expected: &'static str,
    },
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WireError::Truncated { at, needed, left } => {
                write!(
                    f,
                    "it ends too early: {needed} bytes belong at {at} and {left} are left"
                )
            }
            WireError::TrailingBytes { bytes } => {
                write!(f, "{bytes} bytes follow after its end")
            }
            WireError::Magic => {
                f.write_str("it does not begin as one does: something else wrote these bytes")
            }
            WireError::Version { found } => write!(
                f,
                "it is of format version {found} and this side knows {}: use the same version of vmm-ipc on both",
                super::VERSION
            ),
            WireError::Reserved { field } => {
                write!(f, "{field} is not zero, as this version has it")
            }
            WireError::Unknown { field, value } => write!(f, "{field} {value} has no meaning"),
            WireError::Length { stated, actual } => {
                write!(f, "it states a length of {stated} bytes and has {actual}")
            }
            WireError::NoChunks => f.write_str("it has no chunks"),
            WireError::Granularity { granularity } => {
                write!(
                    f,
                    "its granularity of {granularity} bytes is not a power of two"
                )
            }
            WireError::ChunkSize { index, size } => write!(
                f,
                "chunk {index} has {size} bytes, which is not a multiple of the granularity"
            ),
            WireError::Overflow => f.write_str("its sizes add up to more than there are addresses"),
            WireError::BufferLength { len, within } => {
                write!(f, "its length of {len} bytes does not fit {within} bytes")
            }
            WireError::Capacity { capacity } => {
                write!(
                    f,
                    "its capacity of {capacity} bytes does not fit its chunks"
                )
            }
            WireError::Limit { what, found, limit } => {
                write!(f, "it has {found} {what} and at most {limit} are taken")
            }
            WireError::Text => f.write_str("its text is not UTF-8"),
            WireError::Unexpected { found, expected } => {
                write!(f, "{found} came where {expected} belongs")
            }
        }
    }
}

impl std::error::Error for WireError {}
