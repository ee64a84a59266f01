//! Who may touch a mapping: the device that owns it, its peers, and for host memory the host.

use std::sync::Arc;

use vmm_sys::{CUmemAccessDesc, CUmemLocation, CUmemLocationType};

use crate::device::Device;
use crate::location::{Access, Location};

/// The access of one mapping, shared by all mappings that were made alike.
#[derive(Clone, Debug)]
pub(crate) struct AccessSet(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    location: Location,
    owner: Access,
    /// Every device with some access.
    devices: Vec<(Device, Access)>,
    descriptors: Vec<CUmemAccessDesc>,
}

impl AccessSet {
    pub(crate) fn new(
        device: &Device,
        location: Location,
        owner: Access,
        peers: &[(Device, Access)],
    ) -> Self {
        let owner_device = (device, owner);
        let devices = std::iter::once(owner_device)
            .chain(peers.iter().map(|(peer, access)| (peer, *access)))
            .filter(|(_, access)| *access != Access::None)
            .map(|(device, access)| (device.clone(), access))
            .collect();
        AccessSet::build(location, owner, devices)
    }

    /// The same for memory that lies elsewhere: the host has access to its own memory only.
    pub(crate) fn at(&self, location: Location) -> Self {
        match location == self.0.location {
            true => self.clone(),
            false => AccessSet::build(location, self.0.owner, self.0.devices.clone()),
        }
    }

    fn build(location: Location, owner: Access, devices: Vec<(Device, Access)>) -> Self {
        let mut descriptors = Vec::with_capacity(devices.len() + 1);
        let mut add = |location: CUmemLocation, access: Access| {
            // A mapping starts without access, so none needs no words.
            if access != Access::None {
                descriptors.push(CUmemAccessDesc {
                    location,
                    flags: access.to_raw(),
                });
            }
        };
        for (device, access) in &devices {
            add(Location::Device.to_raw(device.handle()), *access);
        }
        match location {
            Location::Device => {}
            Location::Host => {
                add(
                    CUmemLocation::new(CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST, 0),
                    owner,
                );
            }
            // The device is not looked at for a location on the host.
            Location::HostNuma(node) => add(
                CUmemLocation::new(CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA, node),
                owner,
            ),
        }
        AccessSet(Arc::new(Inner {
            location,
            owner,
            devices,
            descriptors,
        }))
    }

    pub(crate) fn owner(&self) -> Access {
        self.0.owner
    }

    /// Every device with some access.
    pub(crate) fn devices(&self) -> impl Iterator<Item = &Device> {
        self.0.devices.iter().map(|(device, _)| device)
    }

    /// What this device may do.
    pub(crate) fn of(&self, device: &Device) -> Access {
        let found = self.0.devices.iter().find(|(known, _)| known == device);
        found.map_or(Access::None, |(_, access)| *access)
    }

    /// What the driver is told; empty where nobody has access.
    pub(crate) fn descriptors(&self) -> &[CUmemAccessDesc] {
        &self.0.descriptors
    }

    /// Whether both are one and the same set, so that one call can grant them together.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
