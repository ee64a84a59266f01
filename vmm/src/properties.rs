//! What a device says it can do, as far as memory goes.

use vmm_sys as sys;
use vmm_sys::{CUdevice, CUdevice_attribute, CUresult};

use crate::raw::{self, Call};

/// The attributes of a device that decide how its memory can be allocated and shared.
///
/// They are what the driver claims. Fabric handles in particular also need an IMEX channel, which no
/// attribute tells: see [`ErrorKind::NotPermitted`](crate::ErrorKind::NotPermitted).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceProperties {
    /// Virtual memory management: allocations, reservations and mappings apart.
    pub virtual_memory: bool,
    /// Export of memory as a file descriptor.
    pub posix_fd: bool,
    /// Export of memory as a fabric handle.
    pub fabric: bool,
    /// Allocations that a network card can reach (GPUDirect RDMA).
    pub rdma: bool,
    /// Allocations on a host NUMA node.
    pub host_numa: bool,
    /// Allocations in host memory, without a node being named.
    pub host: bool,
    /// Export of a range as a dma-buf.
    pub dma_buf: bool,
    /// Compressible memory.
    pub compression: bool,
    /// The host NUMA node closest to the device, where there is one.
    pub host_numa_id: Option<i32>,
    /// Compute capability, major and minor.
    pub compute_capability: (i32, i32),
    /// Whether other processes are kept out: 0 default, 2 prohibited, 3 exclusive process.
    pub compute_mode: i32,
}

impl DeviceProperties {
    pub(crate) fn query(d: &sys::Driver, device: CUdevice) -> Call<Self> {
        use CUdevice_attribute as A;
        let value = |attribute| match raw::device_attribute(d, device, attribute) {
            Ok(value) => Ok(value),
            // An older driver does not know a newer attribute, so its device lacks the ability.
            Err(error) if error.code() == Some(CUresult::CUDA_ERROR_INVALID_VALUE) => Ok(0),
            Err(error) => Err(error),
        };
        let flag = |attribute| value(attribute).map(|value| value != 0);
        let host_numa = flag(A::CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)?;
        let host_numa_id = value(A::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID)?;
        Ok(DeviceProperties {
            virtual_memory: flag(A::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)?,
            posix_fd: flag(A::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)?,
            fabric: flag(A::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED)?,
            rdma: flag(A::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)?,
            host_numa,
            host: flag(A::CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)?,
            dma_buf: flag(A::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)?,
            compression: flag(A::CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED)?,
            host_numa_id: (host_numa && host_numa_id >= 0).then_some(host_numa_id),
            compute_capability: (
                value(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                value(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            compute_mode: value(A::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE)?,
        })
    }
}
