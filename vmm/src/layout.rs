//! A buffer's chunks as a table.

use std::fmt;

use crate::buffer::Buffer;
use crate::location::{Access, HandleTypes};

/// The chunks of a buffer at one moment, as plain data and as a table to print.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Layout {
    /// One row for each chunk, in address order.
    pub rows: Vec<LayoutRow>,
    /// The length of the buffer in bytes.
    pub len: usize,
    /// The bytes that are mapped.
    pub mapped_len: usize,
    /// The bytes up to which it can grow in place.
    pub capacity: usize,
}

/// One chunk of a [`Layout`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LayoutRow {
    /// Bytes from the start of the buffer.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
    /// The device address.
    pub address: u64,
    /// What the device may do here.
    pub access: Access,
    /// How the chunk can be shared.
    pub handle_types: HandleTypes,
    /// Whether the memory came from a handle that was exported.
    pub imported: bool,
}

impl Buffer {
    /// The chunks as a table, to print.
    pub fn layout(&self) -> Layout {
        let rows = self.chunks().map(|chunk| LayoutRow {
            offset: chunk.offset,
            size: chunk.size,
            address: chunk.address,
            access: chunk.access,
            handle_types: chunk.allocation.handle_types(),
            imported: chunk.allocation.is_imported(),
        });
        Layout {
            rows: rows.collect(),
            len: self.len(),
            mapped_len: self.mapped_len(),
            capacity: self.capacity(),
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "chunk        offset          size             address  access      shared as"
        )?;
        for (index, row) in self.rows.iter().enumerate() {
            let shared = if row.imported {
                "imported".into()
            } else {
                row.handle_types.to_string()
            };
            writeln!(
                f,
                "{index:>5}  {:>12}  {:>12}  {:>#18x}  {:<10}  {shared}",
                row.offset,
                row.size,
                row.address,
                row.access.to_string()
            )?;
        }
        write!(
            f,
            "length {}, mapped {}, capacity {} bytes",
            self.len, self.mapped_len, self.capacity
        )
    }
}
