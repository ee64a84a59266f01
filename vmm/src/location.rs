//! Where memory lies, how it may be shared, and who may touch it.

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

use vmm_sys::{
    CUdevice, CUmemAccess_flags, CUmemAllocationHandleType, CUmemAllocationProp, CUmemLocation,
    CUmemLocationType,
};

/// Where physical memory lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Location {
    /// In the device's own memory.
    #[default]
    Device,
    /// In the host's memory on this NUMA node. The host reads and writes it through the same
    /// address as the device.
    HostNuma(i32),
    /// In the host's memory, wherever the driver puts it. Cannot be shared with other processes.
    Host,
}

impl Location {
    pub(crate) fn to_raw(self, device: CUdevice) -> CUmemLocation {
        match self {
            Location::Device => {
                CUmemLocation::new(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, device)
            }
            Location::HostNuma(node) => {
                CUmemLocation::new(CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA, node)
            }
            Location::Host => CUmemLocation::new(CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST, 0),
        }
    }

    pub(crate) fn from_raw(location: &CUmemLocation) -> Option<Self> {
        match location.type_ {
            CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE => Some(Location::Device),
            CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA => {
                Some(Location::HostNuma(location.id()))
            }
            CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST => Some(Location::Host),
            _ => None,
        }
    }

    /// Whether the host can touch memory that lies here.
    pub const fn is_host(self) -> bool {
        !matches!(self, Location::Device)
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::Device => f.write_str("device"),
            Location::HostNuma(node) => write!(f, "host NUMA node {node}"),
            Location::Host => f.write_str("host"),
        }
    }
}

/// The type and id of the location in `prop`, to compare.
pub(crate) fn raw_location(prop: &CUmemAllocationProp) -> (i64, i32) {
    (i64::from(prop.location.type_.0), prop.location.id())
}

/// The ways in which an allocation can be handed to another process. A set.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct HandleTypes(u8);

impl HandleTypes {
    /// Private to this process.
    pub const NONE: Self = HandleTypes(0);
    /// As a file descriptor, to processes of the same machine.
    pub const POSIX_FD: Self = HandleTypes(1);
    /// As 64 bytes, to processes of the same NVLink or IMEX domain.
    pub const FABRIC: Self = HandleTypes(8);

    /// Whether every handle type of `other` is in this set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether this is the empty set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The handle types that are in both sets.
    pub const fn intersection(self, other: Self) -> Self {
        HandleTypes(self.0 & other.0)
    }

    pub(crate) fn to_raw(self) -> CUmemAllocationHandleType {
        CUmemAllocationHandleType(self.0.into())
    }
}

impl BitOr for HandleTypes {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        HandleTypes(self.0 | other.0)
    }
}

impl BitOrAssign for HandleTypes {
    fn bitor_assign(&mut self, other: Self) {
        *self = *self | other;
    }
}

impl fmt::Display for HandleTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            match (self.contains(Self::POSIX_FD), self.contains(Self::FABRIC)) {
                (false, false) => "none",
                (true, false) => "posix-fd",
                (false, true) => "fabric",
                (true, true) => "posix-fd + fabric",
            },
        )
    }
}

impl fmt::Debug for HandleTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a device (or the host) may do with mapped memory.
///
/// Access guards against mistakes, not against other processes: whoever holds a handle to the
/// memory can map it with whatever access they like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Access {
    /// Nothing: the address is taken, and touching it is an error.
    None,
    /// Read.
    Read,
    /// Read and write.
    #[default]
    ReadWrite,
}

impl Access {
    pub(crate) fn to_raw(self) -> CUmemAccess_flags {
        match self {
            Access::None => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE,
            Access::Read => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ,
            Access::ReadWrite => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        }
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Access::None => "none",
            Access::Read => "read-only",
            Access::ReadWrite => "read-write",
        })
    }
}
