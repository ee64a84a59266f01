//! Devices: by which names they are found, and whose they are.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use vmm::sys::{CUdriverProcAddressQueryResult, CUresult};
use vmm::{Access, Allocator, Buffer, ErrorKind, MapOptions};

use crate::{Case, Context, Failure, cases};

pub const CASES: &[Case] = cases![
    devices_are_found_by_every_name_they_have,
    devices_of_two_drivers_are_not_the_same: emulator_only(),
];

fn devices_are_found_by_every_name_they_have(context: &Context) -> Result<(), Failure> {
    let driver = context.driver()?;
    for device in driver.devices() {
        assert_eq!(driver.device(device.ordinal())?, device);
        assert_eq!(driver.device_by_uuid(device.uuid())?, device);
        let bus = device.pci_bus_id()?;
        assert_eq!(driver.device_by_pci_bus_id(&bus)?, device, "{bus}");
        assert!(device.total_memory()? >= device.memory_info()?.free);
    }
    let kind = |id: &str| {
        let found = driver.device_by_pci_bus_id(id);
        found.map_err(|error| error.kind()).map(drop)
    };
    for wrong in ["", "no bus", "0000:1b", "a\0b"] {
        assert_eq!(kind(wrong), Err(ErrorKind::InvalidArgument), "{wrong:?}");
    }
    assert_eq!(kind("ffff:1f:1f.0"), Err(ErrorKind::NoDevice));
    let none = driver.device_by_uuid(vmm::Uuid::from_bytes([0xee; 16]));
    assert_eq!(none.unwrap_err().kind(), ErrorKind::NoDevice);
    let none = driver.device(driver.device_count());
    assert_eq!(none.unwrap_err().kind(), ErrorKind::NoDevice);
    Ok(())
}

extern "C" fn other_init(_: c_uint) -> CUresult {
    CUresult::CUDA_SUCCESS
}

/// The emulator's, but with another function in it: what another library looks like.
unsafe extern "C" fn other_library(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut CUdriverProcAddressQueryResult,
) -> CUresult {
    // SAFETY: the caller's, which are the same.
    let result =
        unsafe { vmm_emulator::get_proc_address(symbol, function, version, flags, status) };
    // SAFETY: the caller gives a C string, and a pointer that is valid for a write.
    unsafe {
        if CStr::from_ptr(symbol) == c"cuInit" {
            function.write(other_init as *mut c_void);
        }
    }
    result
}

fn devices_of_two_drivers_are_not_the_same(context: &Context) -> Result<(), Failure> {
    let first = context.driver()?;
    let again = vmm::Driver::new(vmm_emulator::driver()?)?;
    // SAFETY: answers as the emulator does, and the function put in has the type of its own.
    let sys = unsafe { vmm::sys::Driver::from_get_proc_address(other_library) }?;
    let other = vmm::Driver::new(sys)?;
    assert_eq!(first.device(0)?, again.device(0)?, "one library is one");
    assert_ne!(first.device(0)?, other.device(0)?);
    // So no handle of one gets into a call of the other.
    let strange = Allocator::builder(&other.device(0)?).build()?;
    let chunk = strange.allocate_unmapped(strange.granularity())?;
    let (here, size) = (first.device(0)?, chunk.size());
    let builder = || Allocator::builder(&here);
    let options = MapOptions::default;
    let mut own = builder().build()?.allocate(size)?;
    let foreign = strange.allocate(size)?;
    let stream = vmm::Stream::new(&other.device(0)?)?;
    let peer = other.device(0)?;
    let given_peer = options().peer(&peer, Access::Read);
    let built = builder().build()?.allocate_unmapped(size)?;
    for refused in [
        Buffer::from_allocations(&here, vec![chunk.clone()], size, &options()).map(drop),
        Buffer::from_allocations(&here, vec![built], size, &given_peer).map(drop),
        own.extend(vec![chunk], 2 * size).map(drop),
        own.grow_with(&strange, 2 * size).map(drop),
        own.copy_to(0, &foreign, 0, size),
        own.fill_on(&stream, 0, size, 1),
        builder().peer(&peer, Access::Read).build().map(drop),
        here.can_access(&peer).map(drop),
        {
            own.set_stream(Some(&stream));
            own.write(0, &[1])
        },
    ] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(
            error.to_string().contains("two driver libraries"),
            "{error}"
        );
    }
    Ok(())
}
