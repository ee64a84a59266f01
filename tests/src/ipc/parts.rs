//! Descriptors and file descriptors as values: who owns them, and what is refused early.

use std::os::fd::{AsFd, OwnedFd};

use vmm::sys::CUresult;
use vmm::{Allocator, HandleTypes};
use vmm_ipc::wire::Descriptor;
use vmm_ipc::{Capacity, ErrorKind, Export, Exporter, ImportOptions, Limits};

use super::{allocator, allocator_of, expect_filled, fill, filled};
use crate::emulated::{self, Calls};
use crate::{Case, Context, Failure, cases};

pub const CASES: &[Case] = cases![
    an_import_in_the_same_process_keeps_the_memory_when_the_original_closes,
    an_export_owns_its_descriptors_and_closes_them,
    parts_are_put_together_again_and_sent_on_by_whoever_has_them,
    private_memory_is_refused_with_what_to_do,
    an_empty_buffer_is_refused,
    a_descriptor_of_another_kind_of_handle_is_refused,
    a_wrong_size_is_refused_and_leaves_nothing,
    too_few_or_too_many_descriptors_are_refused,
    limits_of_chunks_bytes_and_capacity_are_kept,
    a_gpu_that_is_not_visible_is_explained,
    the_drivers_invalid_device_at_import_is_explained: emulator_only(),
    progress_is_told_batch_by_batch,
];

fn an_import_in_the_same_process_keeps_the_memory_when_the_original_closes(
    context: &Context,
) -> Result<(), Failure> {
    let allocator = allocator(context)?;
    let exporter = Exporter::new(&context.device()?)?;
    context.leaves_nothing(|| {
        let buffer = filled(&allocator, 3, 1)?;
        let (bytes, fds) = exporter.export(&buffer)?.into_parts();
        let options = ImportOptions::read_write();
        let imported = options.import_parts(context.driver()?, &bytes, fds)?;
        assert_ne!(imported.buffer().address(), buffer.address());
        fill(imported.buffer(), 2)?;
        imported.buffer().synchronize()?;
        expect_filled(&buffer, 3, 2)?;
        buffer.close()?;
        expect_filled(imported.buffer(), 3, 2)?;
        let buffer = imported.into_buffer();
        expect_filled(&buffer, 3, 2)
    })
}

fn an_export_owns_its_descriptors_and_closes_them(context: &Context) -> Result<(), Failure> {
    let buffer = filled(&allocator(context)?, 4, 1)?;
    let exporter = Exporter::new(&context.device()?)?;
    drop(exporter.export(&buffer)?);
    let before = context.snapshot()?;
    let export = exporter.export(&buffer)?;
    assert_eq!(context.open_fds(), before.fds() + 4);
    let parts = export.to_parts()?;
    assert_eq!(parts.1.len(), 4);
    assert_eq!(context.open_fds(), before.fds() + 8);
    for fd in export.fds().chain(parts.1.iter().map(OwnedFd::as_fd)) {
        assert!(rustix::io::fcntl_getfd(fd)?.contains(rustix::io::FdFlags::CLOEXEC));
    }
    drop(parts);
    let (_, fds) = export.into_parts();
    assert_eq!(context.open_fds(), before.fds() + 4);
    drop(fds);
    context.assert_as(&before)
}

fn parts_are_put_together_again_and_sent_on_by_whoever_has_them(
    context: &Context,
) -> Result<(), Failure> {
    let buffer = filled(&allocator(context)?, 3, 1)?;
    let exporter = Exporter::new(&context.device()?)?;
    let (bytes, fds) = exporter.export(&buffer)?.into_parts();
    let export = Export::from_parts(&bytes, fds)?;
    assert_eq!(export.descriptor().encode(), bytes);
    let (mut ours, mut theirs) = vmm_ipc::Channel::pair()?;
    let driver = context.driver()?;
    let imported = std::thread::scope(|scope| -> Result<_, Failure> {
        let importing = scope.spawn(|| ImportOptions::read_only().receive(driver, &mut theirs));
        export.send(&mut ours)?;
        Ok(importing
            .join()
            .map_err(|_| Failure::new("the importer panicked"))??)
    })?;
    expect_filled(imported.buffer(), 3, 1)?;
    let (bytes, mut fds) = export.into_parts();
    fds.pop();
    let error = Export::from_parts(&bytes, fds).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
    Ok(())
}

fn private_memory_is_refused_with_what_to_do(context: &Context) -> Result<(), Failure> {
    let device = context.device()?;
    let buffer = Allocator::builder(&device).build()?.allocate(1)?;
    let exporter = Exporter::new(&device)?;
    let before = context.snapshot()?;
    let error = exporter.export(&buffer).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotShareable, "{error}");
    assert!(error.to_string().contains("handle_types"), "{error}");
    assert!(!error.is_retryable());
    context.assert_as(&before)
}

fn an_empty_buffer_is_refused(context: &Context) -> Result<(), Failure> {
    let buffer = allocator(context)?.allocate(0)?;
    let error = Exporter::new(&context.device()?)?
        .export(&buffer)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotShareable, "{error}");
    assert!(error.to_string().contains("empty"), "{error}");
    Ok(())
}

fn a_descriptor_of_another_kind_of_handle_is_refused(context: &Context) -> Result<(), Failure> {
    let buffer = filled(&allocator_of(context, HandleTypes::POSIX_FD)?, 1, 1)?;
    let error = Exporter::for_fabric(&context.device()?)
        .export(&buffer)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotShareable, "{error}");
    let (mut bytes, fds) = Exporter::new(&context.device()?)?
        .export(&buffer)?
        .into_parts();
    // The same buffer, said to come by fabric handle: 64 more bytes, and no descriptor beside.
    bytes[57] = 8;
    bytes.resize(88 + 72, 7);
    bytes[8..12].copy_from_slice(&160_u32.to_le_bytes());
    let before = context.snapshot()?;
    let import =
        |fds| ImportOptions::read_only().import_parts(context.driver().unwrap(), &bytes, fds);
    let error = import(Vec::new()).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::NotAHandle | ErrorKind::Memory),
        "{error:?}"
    );
    context.assert_as(&before)?;
    let error = import(fds).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
    Ok(())
}

fn a_wrong_size_is_refused_and_leaves_nothing(context: &Context) -> Result<(), Failure> {
    let allocator = allocator(context)?;
    let granularity = allocator.granularity() as u64;
    let buffer = filled(&allocator, 3, 1)?;
    let export = Exporter::new(&context.device()?)?.export(&buffer)?;
    let (good, _) = export.to_parts()?;
    let mut bytes = good.clone();
    // The second chunk is said to be twice its size.
    bytes[88 + 8..88 + 16].copy_from_slice(&(2 * granularity).to_le_bytes());
    bytes[80..88].copy_from_slice(&(4 * granularity).to_le_bytes());
    assert_eq!(Descriptor::decode(&bytes)?.sizes()[1], 2 * granularity);
    context.leaves_nothing(|| {
        let (_, fds) = export.to_parts()?;
        let result = ImportOptions::read_write().import_parts(context.driver()?, &bytes, fds);
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotAHandle, "{error:?}");
        assert!(error.to_string().contains("not what was stated"), "{error}");
        Ok(())
    })?;
    let (_, fds) = export.to_parts()?;
    let imported = ImportOptions::read_write().import_parts(context.driver()?, &good, fds)?;
    expect_filled(imported.buffer(), 3, 1)
}

fn too_few_or_too_many_descriptors_are_refused(context: &Context) -> Result<(), Failure> {
    let buffer = filled(&allocator(context)?, 3, 1)?;
    let export = Exporter::new(&context.device()?)?.export(&buffer)?;
    let before = context.snapshot()?;
    for count in [0, 1, 2, 4, 5] {
        let (bytes, mut fds) = export.to_parts()?;
        while fds.len() < count {
            fds.push(fds[0].try_clone()?);
        }
        fds.truncate(count);
        let result = ImportOptions::read_only().import_parts(context.driver()?, &bytes, fds);
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
        let said = format!("{count} file descriptors came, and 3 belong here");
        assert!(error.to_string().contains(&said), "{error}");
        context.assert_as(&before)?;
    }
    Ok(())
}

fn limits_of_chunks_bytes_and_capacity_are_kept(context: &Context) -> Result<(), Failure> {
    let allocator = allocator(context)?;
    let granularity = allocator.granularity();
    let buffer = allocator.allocate_with_capacity(3 * granularity, 64 * granularity)?;
    fill(&buffer, 1)?;
    let export = Exporter::new(&context.device()?)?.export(&buffer)?;
    let before = context.snapshot()?;
    let import = |options: ImportOptions<'_>| -> Result<_, Failure> {
        let (bytes, fds) = export.to_parts()?;
        Ok(options.import_parts(context.driver()?, &bytes, fds))
    };
    let bytes = granularity as u64;
    for limits in [
        Limits::new().chunks(2),
        Limits::new().bytes(3 * bytes - 1),
        Limits::new().capacity(63 * bytes),
    ] {
        let error = import(ImportOptions::read_only().limits(limits))?.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
        context.assert_as(&before)?;
    }
    for (capacity, expected) in [
        (Capacity::AsExported, 64 * granularity),
        (Capacity::Exact, 3 * granularity),
        (Capacity::Bytes(1), 3 * granularity),
        (Capacity::Bytes(5 * granularity), 5 * granularity),
    ] {
        let imported = import(ImportOptions::read_only().capacity(capacity))??;
        assert_eq!(imported.buffer().capacity(), expected, "{capacity:?}");
        expect_filled(imported.buffer(), 3, 1)?;
    }
    context.assert_as(&before)
}

fn a_gpu_that_is_not_visible_is_explained(context: &Context) -> Result<(), Failure> {
    let buffer = filled(&allocator(context)?, 1, 1)?;
    let (mut bytes, fds) = Exporter::new(&context.device()?)?
        .export(&buffer)?
        .into_parts();
    bytes[40..56].copy_from_slice(&[0xee; 16]);
    let result = ImportOptions::read_only().import_parts(context.driver()?, &bytes, fds);
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoDevice, "{error}");
    let text = error.to_string();
    assert!(text.contains("GPU-eeeeeeee-eeee"), "{text}");
    assert!(text.contains("CUDA_VISIBLE_DEVICES"), "{text}");
    Ok(())
}

fn the_drivers_invalid_device_at_import_is_explained(context: &Context) -> Result<(), Failure> {
    let buffer = filled(&allocator(context)?, 2, 1)?;
    let (bytes, fds) = Exporter::new(&context.device()?)?
        .export(&buffer)?
        .into_parts();
    let before = context.snapshot()?;
    let code = CUresult::CUDA_ERROR_INVALID_DEVICE;
    let _failing = emulated::fail(Calls::Of("cuMemImportFromShareableHandle"), 2, code);
    let fds = fds
        .iter()
        .map(OwnedFd::try_clone)
        .collect::<Result<_, _>>()?;
    let result = ImportOptions::read_only().import_parts(context.driver()?, &bytes, fds);
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoDevice, "{error}");
    let text = error.to_string();
    assert!(text.contains("chunk 2 of 2"), "{text}");
    assert!(text.contains("CUDA_VISIBLE_DEVICES"), "{text}");
    context.assert_as(&before)
}

fn progress_is_told_batch_by_batch(context: &Context) -> Result<(), Failure> {
    let buffer = filled(&allocator(context)?, 130, 1)?;
    let export = Exporter::new(&context.device()?)?.export(&buffer)?;
    let (mut ours, mut theirs) = vmm_ipc::Channel::pair()?;
    let driver = context.driver()?;
    let told = std::thread::scope(|scope| -> Result<_, Failure> {
        let importing = scope.spawn(|| {
            let mut told = Vec::new();
            let options = ImportOptions::read_only().progress(|p| told.push((p.done, p.total)));
            options.receive(driver, &mut theirs).map(|_| told)
        });
        export.send(&mut ours)?;
        Ok(importing
            .join()
            .map_err(|_| Failure::new("the importer panicked"))??)
    })?;
    assert_eq!(told, [(128, 130), (130, 130)]);
    Ok(())
}
