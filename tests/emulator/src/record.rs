//! The record at the end of every memory file: all that an importer needs.

use crate::abi::{AllocFlags, MemLocation};

/// One page behind the data holds the record.
pub(crate) const RECORD_BYTES: u64 = 4096;
const MAGIC: [u8; 16] = *b"vmm-emulator mem";
const VERSION: u32 = 1;
const ENCODED: usize = 80;

/// What a memory file says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub size: u64,
    /// The owner's UUID for device memory, zeros for host memory.
    pub uuid: [u8; 16],
    pub location: MemLocation,
    pub handle_types: i32,
    pub flags: AllocFlags,
    /// Random, so that a fabric handle cannot name another memory by chance.
    pub id: [u8; 16],
}

impl Record {
    pub fn encode(&self) -> [u8; ENCODED] {
        let mut bytes = [0; ENCODED];
        let (magic, rest) = bytes.split_at_mut(16);
        magic.copy_from_slice(&MAGIC);
        let fields: [&[u8]; 10] = [
            &VERSION.to_le_bytes(),
            &self.location.kind.to_le_bytes(),
            &self.size.to_le_bytes(),
            &self.uuid,
            &self.id,
            &self.location.id.to_le_bytes(),
            &self.handle_types.to_le_bytes(),
            &[self.flags.compression, self.flags.gpu_direct_rdma],
            &self.flags.usage.to_le_bytes(),
            &self.flags.reserved,
        ];
        let mut at = 0;
        for field in fields {
            if let Some(place) = rest.get_mut(at..at + field.len()) {
                place.copy_from_slice(field);
            }
            at += field.len();
        }
        bytes
    }

    /// `None` for anything that `encode` did not write.
    pub fn decode(bytes: &[u8; ENCODED]) -> Option<Self> {
        let mut rest: &[u8] = bytes;
        let magic = take::<16>(&mut rest)?;
        let version = u32::from_le_bytes(take(&mut rest)?);
        if magic != MAGIC || version != VERSION {
            return None;
        }
        let kind = i32::from_le_bytes(take(&mut rest)?);
        let size = u64::from_le_bytes(take(&mut rest)?);
        let uuid = take(&mut rest)?;
        let id = take(&mut rest)?;
        let location = MemLocation {
            kind,
            id: i32::from_le_bytes(take(&mut rest)?),
        };
        let handle_types = i32::from_le_bytes(take(&mut rest)?);
        let [compression, gpu_direct_rdma] = take(&mut rest)?;
        let usage = u16::from_le_bytes(take(&mut rest)?);
        let reserved = take(&mut rest)?;
        let flags = AllocFlags {
            compression,
            gpu_direct_rdma,
            usage,
            reserved,
        };
        Some(Self {
            size,
            uuid,
            location,
            handle_types,
            flags,
            id,
        })
    }

    pub const fn encoded_len() -> usize {
        ENCODED
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = rest.split_at_checked(N)?;
    *rest = tail;
    head.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back_as_it_was_written() {
        let record = Record {
            size: 6 << 20,
            uuid: *b"0123456789abcdef",
            location: MemLocation { kind: 1, id: 3 },
            handle_types: 9,
            flags: AllocFlags {
                compression: 1,
                gpu_direct_rdma: 1,
                usage: 2,
                reserved: [4, 5, 6, 7],
            },
            id: *b"fedcba9876543210",
        };
        let bytes = record.encode();
        assert_eq!(Record::decode(&bytes), Some(record));
        let mut other = bytes;
        other[0] ^= 1;
        assert_eq!(Record::decode(&other), None);
    }
}
