//! A part of a buffer as a tensor of another framework.

use vmm::dlpark::DlpackFlags;
use vmm::dlpark::ffi::{DLDataType, DLDevice, DLDeviceType};
use vmm::{Access, Allocator, ErrorKind, Location};

use super::{exact, write_pattern};
use crate::{Case, Context, Failure, cases};

pub const CASES: &[Case] = cases![
    a_tensor_says_what_it_is,
    a_tensor_keeps_the_memory_and_gives_it_back_from_any_thread,
    a_tensor_of_what_is_only_read_says_so,
    a_tensor_of_host_memory_is_one,
    a_tensor_of_both_kinds_of_memory_is_refused,
    a_tensor_has_the_access_of_its_device: devices(2),
    a_tensor_that_does_not_fit_is_refused,
];

fn a_tensor_says_what_it_is(context: &Context) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let buffer = allocator.allocate(granularity)?.grow(3 * granularity)?;
    let (rows, columns) = (3, granularity as i64 / 8);
    let tensor = buffer
        .slice(granularity..)?
        .into_dlpack(DLDataType::F32, &[rows, columns])?;
    let tensor = tensor.validate_export()?;
    assert_eq!(tensor.shape(), [rows, columns]);
    assert_eq!(tensor.strides(), Some([columns, 1].as_slice()));
    assert!(tensor.dtype().matches(DLDataType::F32));
    assert_eq!(tensor.device(), DLDevice::cuda(0));
    let address = buffer.address() + granularity as u64;
    assert_eq!(tensor.data_ptr() as u64, address);
    Ok(())
}

fn a_tensor_keeps_the_memory_and_gives_it_back_from_any_thread(
    context: &Context,
) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let before = context.device()?.memory_info()?.free;
    let buffer = allocator.allocate(granularity)?;
    write_pattern(&buffer, 3)?;
    let tensor = buffer
        .slice(..)?
        .into_dlpack(DLDataType::U8, &[granularity as i64])?;
    drop(buffer);
    assert!(context.device()?.memory_info()?.free < before);
    let raw = tensor.into_raw() as usize;
    std::thread::spawn(move || {
        let raw = raw as *mut vmm::dlpark::ffi::DLManagedTensorVersioned;
        // SAFETY: what a consumer does with the pointer that it was given, once.
        unsafe {
            if let Some(deleter) = (*raw).deleter {
                deleter(raw);
            }
        }
    })
    .join()
    .expect("a deleter does not panic");
    assert_eq!(context.device()?.memory_info()?.free, before);
    Ok(())
}

fn a_tensor_of_what_is_only_read_says_so(context: &Context) -> Result<(), Failure> {
    let (writable, granularity) = exact(context)?;
    let reader = Allocator::builder(&context.device()?)
        .access(Access::Read)
        .build()?;
    let buffer = writable
        .allocate(granularity)?
        .grow_with(&reader, 2 * granularity)?;
    let flags = |range: std::ops::Range<usize>| -> Result<_, Failure> {
        let part = buffer.slice(range)?;
        Ok(part.into_dlpack(DLDataType::U8, &[1])?.flags())
    };
    assert_eq!(flags(0..granularity)?, DlpackFlags::empty());
    assert_eq!(
        flags(granularity - 1..granularity + 1)?,
        DlpackFlags::READ_ONLY
    );
    let closed = Allocator::builder(&context.device()?)
        .access(Access::None)
        .build()?;
    let closed = closed.allocate(granularity)?.slice(..)?;
    let refused = closed.into_dlpack(DLDataType::U8, &[1]).map(drop);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
    Ok(())
}

fn a_tensor_of_host_memory_is_one(context: &Context) -> Result<(), Failure> {
    let allocator = Allocator::builder(&context.device()?)
        .location(Location::HostNuma(0))
        .build()?;
    let part = allocator.allocate(allocator.granularity())?.slice(..)?;
    let tensor = part.into_dlpack(DLDataType::U8, &[1])?;
    let device = tensor.validate_export()?.device();
    assert_eq!(device.device_type, DLDeviceType::CUDAHOST);
    Ok(())
}

fn a_tensor_of_both_kinds_of_memory_is_refused(context: &Context) -> Result<(), Failure> {
    let (on_device, granularity) = exact(context)?;
    let host = Allocator::builder(&context.device()?)
        .location(Location::HostNuma(0))
        .build()?;
    let half = host.granularity();
    let mixed = host
        .allocate(half)?
        .grow_with(&on_device, half + granularity)?;
    let whole = mixed.slice(..)?.into_dlpack(DLDataType::U8, &[1]).map(drop);
    assert!(whole.unwrap_err().to_string().contains("host memory"));
    for (range, expected) in [
        (0..half, DLDeviceType::CUDAHOST),
        (half..half + granularity, DLDeviceType::CUDA),
    ] {
        let tensor = mixed.slice(range)?.into_dlpack(DLDataType::U8, &[1])?;
        assert_eq!(tensor.validate_export()?.device().device_type.0, expected.0);
    }
    Ok(())
}

fn a_tensor_has_the_access_of_its_device(context: &Context) -> Result<(), Failure> {
    let (zero, granularity) = exact(context)?;
    let one = Allocator::builder(&context.driver()?.device(1)?).build()?;
    let buffer = zero
        .allocate(granularity)?
        .grow_with(&one, granularity + one.granularity())?;
    let accesses: Vec<_> = buffer.chunks().map(|chunk| chunk.access).collect();
    assert_eq!(accesses, [Access::ReadWrite, Access::None]);
    let second = buffer.slice(granularity..)?;
    let refused = second.into_dlpack(DLDataType::U8, &[1]).map(drop);
    assert!(refused.unwrap_err().to_string().contains("no access"));
    Ok(())
}

fn a_tensor_that_does_not_fit_is_refused(context: &Context) -> Result<(), Failure> {
    let (allocator, granularity) = exact(context)?;
    let buffer = allocator.allocate(granularity)?;
    let all = granularity as i64;
    let wrong: &[(usize, DLDataType, &[i64], &str)] = &[
        (0, DLDataType::U8, &[all + 1], "larger"),
        (0, DLDataType::F64, &[all / 8 + 1], "larger"),
        (0, DLDataType::U8, &[i64::MAX, i64::MAX], "larger"),
        (0, DLDataType::U8, &[-1], "negative"),
        (2, DLDataType::F32, &[1], "multiple"),
        (0, DLDataType::F4E2M1FN, &[1], "whole bytes"),
    ];
    for (offset, dtype, shape, word) in wrong {
        let part = buffer.slice(offset..)?;
        let error = part.into_dlpack(*dtype, shape).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains(word), "{error}");
    }
    let empty = buffer.slice(..0)?.into_dlpack(DLDataType::F32, &[0, 3])?;
    assert_eq!(empty.validate_export()?.shape(), [0, 3]);
    Ok(())
}
