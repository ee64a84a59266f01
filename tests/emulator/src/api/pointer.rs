//! What the driver knows of a pointer.

use super::{In, Out, api};
use crate::abi::{DevicePtr, MemLocation};
use crate::code::{Code, Result};
use crate::core::{Core, Pinned};
use std::ffi::{c_int, c_uint, c_void};

api! {
    fn cuMemGetAddressRange as "cuMemGetAddressRange"(base: Out<DevicePtr>, size: Out<usize>, address: DevicePtr) |core| {
        core.current()?;
        let (start, len) = core.range_of(address).ok_or(Code::NOT_FOUND)?;
        base.set_if_wanted(start);
        size.set_if_wanted(usize::try_from(len).unwrap_or(usize::MAX));
        Ok(())
    }

    fn cuPointerGetAttribute as "cuPointerGetAttribute"(data: Out<c_void>, attribute: c_int, address: DevicePtr) |core| {
        data.check()?;
        core.put_attribute(data, attribute, address)
    }

    fn cuPointerGetAttributes as "cuPointerGetAttributes"(
        count: c_uint, attributes: In<c_int>, data: In<*mut c_void>, address: DevicePtr
    ) |core| {
        if count == 0 {
            return Err(Code::INVALID_VALUE);
        }
        for index in 0..count as usize {
            let (attribute, to) = (attributes.at(index)?, Out(data.at(index)?));
            if core.put_attribute(to, attribute, address).is_err() {
                // Several at once answer zeros where one alone answers an error.
                match width(attribute).ok_or(Code::INVALID_VALUE)? {
                    8 => to.cast().set(0_u64)?,
                    4 => to.cast().set(0_u32)?,
                    _ => to.cast().set(0_u8)?,
                }
            }
        }
        Ok(())
    }
}

/// Bytes of an attribute that is emulated.
fn width(attribute: c_int) -> Option<usize> {
    match attribute {
        1 | 3 | 4 | 7 | 11 | 12 | 14 | 17 => Some(8),
        2 | 9 => Some(4),
        8 | 10 | 13 => Some(1),
        _ => None,
    }
}

impl Core {
    fn range_of(&self, address: DevicePtr) -> Option<(u64, u64)> {
        let pinned = self
            .pinned_at(address)
            .map(|(start, memory)| (start, memory.size));
        let linear = || {
            self.linear
                .at(address)
                .map(|(start, known)| (start, known.size))
        };
        pinned.or_else(linear).or_else(|| {
            // What no allocation has of a block is in none.
            let (start, mapping) = self.space.at(address)?;
            let is_block = self.linear.holds(start);
            (!is_block).then_some((start, mapping.size))
        })
    }

    fn put_pinned_attribute(
        &self,
        to: Out<c_void>,
        attribute: c_int,
        address: u64,
        (start, memory): (u64, Pinned),
    ) -> Result {
        match attribute {
            1 => to.cast().set(memory.context),
            2 => to.cast().set(1_u32),
            3 | 4 => to.cast().set(address),
            8 | 10 => to.cast().set(0_u8),
            9 => to.cast().set(self.location_of(memory.context)?.id),
            11 => to.cast().set(start),
            12 => to.cast().set(memory.size),
            13 => to.cast().set(1_u8),
            14 => to.cast().set(0_u64),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    fn put_attribute(&self, to: Out<c_void>, attribute: c_int, address: DevicePtr) -> Result {
        if let Some(pinned) = self.pinned_at(address) {
            return self.put_pinned_attribute(to, attribute, address, pinned);
        }
        let (start, size) = self.range_of(address).ok_or(Code::INVALID_VALUE)?;
        let (_, mapping) = self.space.at(address).ok_or(Code::INVALID_VALUE)?;
        let record = mapping.physical.record;
        let on_device = record.location.kind == MemLocation::DEVICE;
        let known = self.linear.at(address).map(|(_, known)| known);
        let linear = known.is_some();
        match attribute {
            1 => to.cast().set(known.map_or(0, |known| known.context)),
            2 => to.cast().set(if on_device { 2_u32 } else { 1 }),
            3 => to.cast().set(address),
            4 if !on_device => to.cast().set(address),
            7 if linear => to.cast().set(known.map_or(0, |known| known.id)),
            8 => to.cast().set(0_u8),
            10 => to.cast().set(u8::from(linear)),
            9 => {
                let ordinal = if on_device {
                    self.ordinal_of(record.uuid)
                } else {
                    Some(0)
                };
                to.cast().set(
                    ordinal
                        .and_then(|ordinal| c_int::try_from(ordinal).ok())
                        .unwrap_or(-2),
                )
            }
            // Of a mapping the driver tells the start of its reservation.
            11 if !linear => to.cast().set(
                self.space
                    .reservation_at(address)
                    .map_or(start, |range| range.0),
            ),
            11 => to.cast().set(start),
            12 => to.cast().set(size),
            13 => to.cast().set(1_u8),
            14 => to.cast().set(if linear {
                0
            } else {
                u64::from(record.handle_types.unsigned_abs())
            }),
            _ => Err(Code::INVALID_VALUE),
        }
    }
}
