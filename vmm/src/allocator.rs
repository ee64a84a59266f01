//! Where buffers come from: every option of an allocation, checked once.

use std::sync::Arc;

use vmm_sys::{CUmemAllocationProp, CUmemAllocationType};

use crate::access::AccessSet;
use crate::allocation::{Allocation, Blueprint};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::location::{Access, HandleTypes, Location};
use crate::policy::ChunkPolicy;
use crate::size;

/// Makes buffers with one set of options.
///
/// Cloning is cheap; a buffer holds its allocator, to grow by the same options.
///
/// ```no_run
/// # fn main() -> vmm::Result<()> {
/// let driver = vmm::Driver::load()?;
/// let allocator = vmm::Allocator::builder(&driver.device(0)?)
///     .handle_types(vmm::HandleTypes::POSIX_FD)
///     .build()?;
/// let buffer = allocator.allocate_with_capacity(64 << 20, 64 << 30)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Allocator(Arc<Spec>);

#[derive(Debug)]
struct Spec {
    alignment: usize,
    hint: u64,
    policy: ChunkPolicy,
    granularity: usize,
    access: AccessSet,
    blueprint: Blueprint,
}

/// The options of an [`Allocator`]. Each has a default; [`AllocatorBuilder::build`] checks them.
#[derive(Clone, Debug)]
#[must_use]
pub struct AllocatorBuilder {
    device: Device,
    location: Location,
    handle_types: HandleTypes,
    recommended: bool,
    alignment: usize,
    hint: u64,
    access: Access,
    peers: Vec<(Device, Access)>,
    rdma: bool,
    compression: bool,
    policy: ChunkPolicy,
}

/// Which of the driver's two granularities sizes are rounded up to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "CUmemAllocationGranularity_flags")]
pub enum Granularity {
    /// The smallest that works.
    Minimum,
    /// The one that the driver recommends for speed.
    #[default]
    Recommended,
}

impl Allocator {
    /// Options for memory of (or near) `device`. The default is private device memory that the
    /// device reads and writes.
    pub fn builder(device: &Device) -> AllocatorBuilder {
        AllocatorBuilder {
            device: device.clone(),
            location: Location::Device,
            handle_types: HandleTypes::NONE,
            recommended: true,
            alignment: 0,
            hint: 0,
            access: Access::ReadWrite,
            peers: Vec::new(),
            rdma: false,
            compression: false,
            policy: ChunkPolicy::default(),
        }
    }

    /// One chunk of physical memory that is mapped nowhere, `size` rounded up to the granularity: to
    /// export it, or to map it with [`Buffer::from_allocations`](crate::Buffer::from_allocations).
    ///
    /// # Errors
    ///
    /// As [`Allocator::allocate`]; [`ErrorKind::InvalidArgument`] for size zero.
    #[doc(alias = "cuMemCreate")]
    pub fn allocate_unmapped(&self, size: usize) -> Result<Allocation> {
        self.device().driver().check()?;
        let attempt = || {
            format!(
                "allocating {size} bytes of unmapped memory on {}",
                self.device()
            )
        };
        if size == 0 {
            return Err(Error::invalid(attempt(), "physical memory is not empty"));
        }
        self.0
            .blueprint
            .of_size(self.round_up(size, attempt)?)
            .allocate()
    }

    /// Sizes are rounded up to multiples of this many bytes, a power of two.
    #[doc(alias = "cuMemGetAllocationGranularity")]
    pub fn granularity(&self) -> usize {
        self.0.granularity
    }

    /// The device that the memory is for.
    pub fn device(&self) -> &Device {
        &self.0.blueprint.device
    }

    /// Where the memory lies.
    pub fn location(&self) -> Location {
        self.0.blueprint.location
    }

    /// How the memory can be shared.
    pub fn handle_types(&self) -> HandleTypes {
        self.0.blueprint.handle_types
    }

    /// How large the chunks are.
    pub fn chunk_policy(&self) -> ChunkPolicy {
        self.0.policy
    }

    pub(crate) fn access(&self) -> &AccessSet {
        &self.0.access
    }

    pub(crate) fn alignment(&self) -> usize {
        self.0.alignment
    }

    pub(crate) fn hint(&self) -> u64 {
        self.0.hint
    }

    /// Chunks of `bytes` in all, or `at_least` where the memory does not suffice for more.
    pub(crate) fn chunks(&self, bytes: usize, at_least: usize) -> Result<Vec<Allocation>> {
        let make = |bytes| -> Result<Vec<Allocation>> {
            let mut chunks = Vec::new();
            for size in self.0.policy.chunks(bytes, self.0.granularity) {
                chunks.push(self.0.blueprint.of_size(size).allocate()?);
            }
            Ok(chunks)
        };
        match make(bytes) {
            Err(error) if error.kind() == ErrorKind::OutOfMemory && at_least < bytes => {
                make(at_least)
            }
            result => result,
        }
    }
}

impl AllocatorBuilder {
    /// Where the memory lies. Default: on the device.
    pub fn location(mut self, location: Location) -> Self {
        self.location = location;
        self
    }

    /// How the memory can be shared with other processes; fixed when it is allocated. Default: not
    /// at all.
    pub fn handle_types(mut self, handle_types: HandleTypes) -> Self {
        self.handle_types = handle_types;
        self
    }

    /// Which granularity sizes are rounded up to. Default: the recommended one.
    pub fn granularity(mut self, granularity: Granularity) -> Self {
        self.recommended = granularity == Granularity::Recommended;
        self
    }

    /// The alignment of a buffer's address in bytes, a power of two. Default (0): the driver's own.
    pub fn alignment(mut self, bytes: usize) -> Self {
        self.alignment = bytes;
        self
    }

    /// Where buffers would be welcome. The driver may put them elsewhere, and says nothing.
    pub fn address_hint(mut self, address: u64) -> Self {
        self.hint = address;
        self
    }

    /// What the device may do with the memory. Default: read and write.
    #[doc(alias = "cuMemSetAccess")]
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// What another device may do with the memory. Default: nothing. The last call for one device
    /// wins.
    pub fn peer(mut self, device: &Device, access: Access) -> Self {
        self.peers.retain(|(other, _)| other != device);
        self.peers.push((device.clone(), access));
        self
    }

    /// Memory that a network card can reach (GPUDirect RDMA). Default: no.
    pub fn rdma(mut self, rdma: bool) -> Self {
        self.rdma = rdma;
        self
    }

    /// Compressible memory, where the driver grants it: see [`Allocation::is_compressed`]. Default:
    /// no.
    pub fn compression(mut self, compression: bool) -> Self {
        self.compression = compression;
        self
    }

    /// How large the chunks are. Default: [`ChunkPolicy::growing`].
    pub fn chunk_policy(mut self, policy: ChunkPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Check the options against each other and the device.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] and [`ErrorKind::NotSupported`], with the reason; nothing has
    /// been allocated then.
    pub fn build(self) -> Result<Allocator> {
        self.device.driver().check()?;
        self.check_alone()?;
        self.check_device()?;
        let prop = self.prop();
        let granularity = self.device.granularity_of(&prop, self.recommended)?;
        if !(self.hint as usize).is_multiple_of(granularity) {
            let reason = format!("the address hint is not a multiple of {granularity} bytes");
            return Err(self.refuse(ErrorKind::InvalidArgument, reason));
        }
        let blueprint = Blueprint::new(&self.device, self.location, self.handle_types, prop);
        let access = AccessSet::new(&self.device, self.location, self.access, &self.peers);
        Ok(Allocator(Arc::new(Spec {
            alignment: self.alignment.max(granularity),
            hint: self.hint,
            policy: self.policy,
            granularity,
            access,
            blueprint,
        })))
    }

    /// What can be seen without asking the driver.
    fn check_alone(&self) -> Result<()> {
        let wrong = |reason: &'static str| Err(self.refuse(ErrorKind::InvalidArgument, reason));
        let shared = !self.handle_types.is_empty();
        match self.location {
            Location::Host if shared => {
                return wrong(
                    "host memory cannot be shared: use `Location::HostNuma` for host memory that can",
                );
            }
            Location::HostNuma(node) if node < 0 => {
                return wrong("a NUMA node is not negative");
            }
            Location::HostNuma(node) if !numa_node_may_exist(node) => {
                return wrong(
                    "this machine has no such NUMA node: see `ls /sys/devices/system/node`",
                );
            }
            _ => {}
        }
        if self.location.is_host() && self.rdma {
            return wrong("GPUDirect RDMA is for device memory");
        }
        if self.location.is_host() && self.compression {
            return wrong("compression is for device memory");
        }
        if self.alignment != 0 && !self.alignment.is_power_of_two() {
            return wrong("an alignment is a power of two; 0 is the driver's own");
        }
        for (peer, _) in &self.peers {
            let (driver, attempt) = (self.device.driver(), || self.attempt());
            driver.check_same(peer.driver(), attempt)?;
        }
        if self.peers.iter().any(|(peer, _)| *peer == self.device) {
            return wrong("the device is not its own peer: use `access` for the device itself");
        }
        Ok(())
    }

    /// What the device says it cannot do. The attributes are asked for once in the process.
    fn check_device(&self) -> Result<()> {
        let can = self.device.properties()?;
        let device = &self.device;
        let lacks = |what: &str| {
            Err(self.refuse(
                ErrorKind::NotSupported,
                format!("{device} does not support {what}"),
            ))
        };
        if !can.virtual_memory {
            return lacks("virtual memory management");
        }
        if self.handle_types.contains(HandleTypes::POSIX_FD) && !can.posix_fd {
            return lacks("sharing memory by file descriptor");
        }
        if self.handle_types.contains(HandleTypes::FABRIC) && !can.fabric {
            return lacks("sharing memory by fabric handle");
        }
        if self.rdma && !can.rdma {
            return lacks("GPUDirect RDMA with this kind of memory");
        }
        if self.compression && !can.compression {
            return lacks("compressible memory");
        }
        if matches!(self.location, Location::HostNuma(_)) && !can.host_numa {
            return lacks("allocations on a host NUMA node");
        }
        for (peer, access) in &self.peers {
            if *access != Access::None
                && self.location == Location::Device
                && !peer.can_access(device)?
            {
                return Err(self.refuse(ErrorKind::NotSupported, peer.cannot_reach(device)));
            }
        }
        Ok(())
    }

    fn prop(&self) -> CUmemAllocationProp {
        let mut prop = CUmemAllocationProp {
            type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: self.handle_types.to_raw(),
            location: self.location.to_raw(self.device.handle()),
            ..CUmemAllocationProp::default()
        };
        // CU_MEM_ALLOCATION_COMP_GENERIC
        prop.allocFlags.compressionType = u8::from(self.compression);
        prop.allocFlags.gpuDirectRDMACapable = u8::from(self.rdma);
        prop
    }

    fn refuse(&self, kind: ErrorKind, reason: impl Into<std::borrow::Cow<'static, str>>) -> Error {
        Error::new(kind, self.attempt(), reason)
    }

    fn attempt(&self) -> String {
        format!("setting up {} memory on {}", self.location, self.device)
    }
}

/// Whether the machine has this NUMA node, or does not tell.
fn numa_node_may_exist(node: i32) -> bool {
    let nodes = std::path::Path::new("/sys/devices/system/node");
    !nodes.is_dir() || nodes.join(format!("node{node}")).is_dir()
}

impl Allocator {
    /// `bytes` rounded up to the granularity.
    pub(crate) fn round_up(&self, bytes: usize, attempt: impl FnOnce() -> String) -> Result<usize> {
        size::round_up(bytes, self.0.granularity, attempt)
    }
}
