//! One GPU: what it claims, what it really does, and the exchange between two processes.

use vmm::{Allocator, Device, DeviceProperties, HandleTypes};

use crate::exchange;
use crate::finding::{Finding, Section};

/// Looks at `device`, and says whether sharing works on it.
pub fn examine(device: &Device) -> (Section, bool) {
    let mut findings = Vec::new();
    match device.properties() {
        Ok(properties) => {
            findings.push(compute_mode(device, properties));
            findings.extend(mig(device));
            findings.push(memory(device));
            findings.extend(handle_types(device, properties));
        }
        Err(error) => findings.push(Finding::problem(
            "attributes",
            error,
            "the driver does not answer for this GPU: see `nvidia-smi` and `dmesg`",
        )),
    }
    let exchanged = exchange::round_trip(device);
    let works = exchanged.is_ok();
    findings.push(match exchanged {
        Ok(text) => Finding::ok("two processes", text),
        Err(failure) => Finding::problem("two processes", failure.text, failure.advice),
    });
    let section = Section {
        name: device.uuid().to_string(),
        title: format!("{device}: {} ({})", device.name(), device.uuid()),
        findings,
    };
    (section, works)
}

fn compute_mode(device: &Device, properties: &DeviceProperties) -> Finding {
    let subject = "compute mode";
    let advice = format!("as root: nvidia-smi -i {} -c DEFAULT", device.uuid());
    match properties.compute_mode {
        0 => Finding::ok(subject, "default: any number of processes"),
        2 => Finding::problem(subject, "prohibited: no process may use this GPU", advice),
        3 => Finding::warning(
            subject,
            "exclusive process: only one process at a time may use this GPU",
            format!("{advice}; or run the processes under MPS"),
        ),
        other => Finding::warning(subject, format!("{other}, which is unknown"), advice),
    }
}

fn mig(device: &Device) -> Option<Finding> {
    device.name().contains("MIG").then(|| {
        Finding::note("MIG", "this is one instance of a partitioned GPU").advise(
            "both processes must see the same instance: give both its UUID in CUDA_VISIBLE_DEVICES",
        )
    })
}

fn memory(device: &Device) -> Finding {
    const LITTLE: usize = 256 << 20;
    match device.memory_info() {
        Ok(info) => {
            let text = format!("{} of {} MiB free", info.free >> 20, info.total >> 20);
            match info.free < LITTLE {
                true => Finding::warning(
                    "memory",
                    text,
                    "free some: `nvidia-smi` lists the processes that hold it. Shared memory stays \
                     in use while any process has it mapped or its descriptor open",
                ),
                false => Finding::ok("memory", text),
            }
        }
        Err(error) => Finding::problem(
            "memory",
            error,
            "no context can be made on this GPU: see its compute mode, and `nvidia-smi`",
        ),
    }
}

/// Each way to share, as the attributes tell it and as it turns out when memory is allocated.
fn handle_types(device: &Device, properties: &DeviceProperties) -> [Finding; 3] {
    let plain = attempt(device, HandleTypes::NONE);
    let posix = attempt(device, HandleTypes::POSIX_FD);
    let fabric = attempt(device, HandleTypes::FABRIC);
    [
        match (properties.virtual_memory, plain) {
            (true, Ok(())) => Finding::ok("virtual memory", "claimed, and allocated"),
            (true, Err(error)) => Finding::problem(
                "virtual memory",
                format!("claimed, but: {error}"),
                "free memory on the GPU; if there is enough, see `dmesg`",
            ),
            (false, _) => Finding::problem(
                "virtual memory",
                "the GPU says that it has none",
                "nothing of this project runs on it: use a newer GPU or driver, or a vGPU profile that has it",
            ),
        },
        match (properties.posix_fd, posix) {
            (true, Ok(())) => Finding::ok("file descriptors", "claimed, and exported"),
            (true, Err(error)) => Finding::problem(
                "file descriptors",
                format!("claimed, but: {error}"),
                "see the limit of open files and the memory above",
            ),
            (false, _) => Finding::problem(
                "file descriptors",
                "the GPU says that it exports none",
                "its memory cannot be shared between processes here, as may be under a vGPU profile \
                 or under WSL2",
            ),
        },
        match (properties.fabric, fabric) {
            (true, Ok(())) => Finding::ok("fabric handles", "claimed, and exported"),
            (true, Err(error)) => Finding::note("fabric handles", format!("claimed, but: {error}"))
                .advise(
                    "needed only to share between machines of one NVLink domain: see IMEX above",
                ),
            (false, _) => Finding::note(
                "fabric handles",
                "the GPU says that it has none: only processes of this machine can share",
            ),
        },
    ]
}

/// Allocates with this handle type and exports.
fn attempt(device: &Device, kind: HandleTypes) -> vmm::Result<()> {
    let allocator = Allocator::builder(device).handle_types(kind).build()?;
    let memory = allocator.allocate_unmapped(allocator.granularity())?;
    if kind.contains(HandleTypes::POSIX_FD) {
        memory.export_posix_fd()?;
    }
    if kind.contains(HandleTypes::FABRIC) {
        memory.export_fabric()?;
    }
    Ok(())
}
