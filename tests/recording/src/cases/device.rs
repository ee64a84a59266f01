//! Devices.

use super::List;
use crate::rig::{code, d, value};
use std::ptr::null_mut;
use vmm_sys::*;

pub fn add(list: &mut List) {
    for ordinal in [-1, 99, 0] {
        list.add(
            format!("device.get {ordinal}"),
            format!("cuDeviceGet of ordinal {ordinal}"),
            move |r| {
                let mut device = 77;
                Ok(value(
                    d!(r, cuDeviceGet(&mut device, ordinal)).map(|()| device),
                ))
            },
        );
        list.add(
            format!("device.name {ordinal}"),
            format!("cuDeviceGetName of device {ordinal}"),
            move |r| {
                let mut name = [0; 96];
                Ok(code(d!(r, cuDeviceGetName(name.as_mut_ptr(), 96, ordinal))))
            },
        );
        list.add(
            format!("device.uuid {ordinal}"),
            format!("cuDeviceGetUuid of device {ordinal}"),
            move |r| {
                Ok(code(d!(
                    r,
                    cuDeviceGetUuid(&mut CUuuid::default(), ordinal)
                )))
            },
        );
        list.add(
            format!("device.memory {ordinal}"),
            format!("cuDeviceTotalMem of device {ordinal}"),
            move |r| Ok(code(d!(r, cuDeviceTotalMem(&mut 0, ordinal)))),
        );
        list.add(
            format!("device.attribute of {ordinal}"),
            format!("attribute 102 of device {ordinal}"),
            move |r| {
                Ok(code(d!(
                    r,
                    cuDeviceGetAttribute(&mut 0, CUdevice_attribute(102), ordinal)
                )))
            },
        );
        list.add(
            format!("device.bus id {ordinal}"),
            format!("cuDeviceGetPCIBusId of device {ordinal}"),
            move |r| {
                let mut text = [0; 32];
                Ok(code(d!(
                    r,
                    cuDeviceGetPCIBusId(text.as_mut_ptr(), 32, ordinal)
                )))
            },
        );
        list.add(
            format!("device.state {ordinal}"),
            format!("cuDevicePrimaryCtxGetState of device {ordinal}"),
            move |r| {
                Ok(code(d!(
                    r,
                    cuDevicePrimaryCtxGetState(ordinal, &mut 0, &mut 0)
                )))
            },
        );
    }
    for attribute in [0, 9999, 102, 103, 41, 128, 104, 105] {
        list.add(
            format!("device.attribute {attribute}"),
            format!("attribute {attribute} of device 0"),
            move |r| {
                let mut found = 77;
                Ok(value(
                    d!(
                        r,
                        cuDeviceGetAttribute(&mut found, CUdevice_attribute(attribute), 0)
                    )
                    .map(|()| found),
                ))
            },
        );
    }
    for len in [0, 1, 4] {
        list.add(
            format!("device.name length {len}"),
            format!("cuDeviceGetName into {len} bytes"),
            move |r| {
                let mut name = [0x55; 96];
                let called = code(d!(r, cuDeviceGetName(name.as_mut_ptr(), len, 0)));
                let end = name
                    .iter()
                    .position(|byte| *byte == 0)
                    .map_or("no end".to_owned(), |end| end.to_string());
                Ok(format!("{called}, end at {end}"))
            },
        );
    }
    list.add(
        "device.count null",
        "cuDeviceGetCount to a null pointer",
        |r| Ok(code(d!(r, cuDeviceGetCount(null_mut())))),
    );
    list.add("device.get null", "cuDeviceGet to a null pointer", |r| {
        Ok(code(d!(r, cuDeviceGet(null_mut(), 0))))
    });
    list.add(
        "device.uuid null",
        "cuDeviceGetUuid to a null pointer",
        |r| Ok(code(d!(r, cuDeviceGetUuid(null_mut(), 0)))),
    );
    list.add(
        "device.name null",
        "cuDeviceGetName to a null pointer",
        |r| Ok(code(d!(r, cuDeviceGetName(null_mut(), 16, 0)))),
    );
    list.add(
        "device.memory null",
        "cuDeviceTotalMem to a null pointer",
        |r| Ok(code(d!(r, cuDeviceTotalMem(null_mut(), 0)))),
    );
    list.add(
        "device.attribute null",
        "cuDeviceGetAttribute to a null pointer",
        |r| {
            Ok(code(d!(
                r,
                cuDeviceGetAttribute(null_mut(), CUdevice_attribute(102), 0)
            )))
        },
    );
    for (what, text) in [
        ("nonsense", c"nonsense"),
        ("absent", c"ffff:ff:1f.0"),
        ("empty", c""),
    ] {
        list.add(
            format!("device.by bus id {what}"),
            format!("cuDeviceGetByPCIBusId of a text that is {what}"),
            move |r| Ok(code(d!(r, cuDeviceGetByPCIBusId(&mut 0, text.as_ptr())))),
        );
    }
    list.add(
        "device.by bus id own",
        "cuDeviceGetByPCIBusId of device 0's own id",
        |r| {
            let mut text = [0; 32];
            crate::rig::setup(d!(r, cuDeviceGetPCIBusId(text.as_mut_ptr(), 32, 0)))?;
            let mut device = 77;
            Ok(value(
                d!(r, cuDeviceGetByPCIBusId(&mut device, text.as_ptr())).map(|()| device),
            ))
        },
    );
}
