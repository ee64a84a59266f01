//! A kernel through [cudarc](https://docs.rs/cudarc) on a buffer that grows without moving.
//!
//! `cargo run --release -p vmm-example-cudarc`, on a machine with a GPU. With `--copies-only` the
//! kernel is left out, so that it runs on the software driver too.
//!
//! Both crates use the device's primary context, so an address of one is an address of the other.
//! cudarc takes it through its pointer traits: see `array.rs`. Its owning slice
//! (`upgrade_device_ptr`) is never made: it would free the memory a second time, by the wrong call.

mod array;

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use cudarc::driver::{
    CudaContext, CudaFunction, CudaStream, DevicePtrMut, DeviceSlice, LaunchConfig, PushKernelArg,
};
use cudarc::nvrtc::Ptx;

use crate::array::Array;

const ADD_ONE: &str = include_str!("add_one.ptx");

fn main() -> ExitCode {
    let with_kernel = match std::env::args().nth(1).as_deref() {
        None => true,
        Some("--copies-only") => false,
        Some(_) => {
            eprintln!("usage: vmm-example-cudarc [--copies-only]");
            return ExitCode::from(2);
        }
    };
    match run(with_kernel) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(with_kernel: bool) -> Result<(), Box<dyn Error>> {
    let driver = vmm::Driver::load()?;
    let device = driver.device(0)?;
    let stream = CudaContext::new(0)?.new_stream()?;
    let kernel = if with_kernel {
        let module = stream.context().load_module(Ptx::from_src(ADD_ONE))?;
        Some(module.load_function("add_one")?)
    } else {
        None
    };

    let allocator = vmm::Allocator::builder(&device).build()?;
    let buffer = allocator.allocate_with_capacity(2 << 20, 1 << 30)?;
    let first: Vec<u32> = (0..buffer.len() as u32 / 4).collect();
    let mut array = Array::new(buffer.alias(), .., &stream)?;
    stream.memcpy_htod(&first, &mut array)?;
    add_one(&stream, kernel.as_ref(), &mut array)?;

    // While the kernel may still run: the chunk stays where it is, and more follow behind it.
    let longer = buffer.grow(6 << 20)?;
    assert_eq!(longer.address(), buffer.address(), "there was room");
    drop((array, buffer));
    let rest = vec![7; (longer.len() - 4 * first.len()) / 4];
    let mut tail = Array::new(longer.alias(), 4 * first.len().., &stream)?;
    stream.memcpy_htod(&rest, &mut tail)?;
    let mut array = Array::new(longer.alias(), .., &stream)?;
    add_one(&stream, kernel.as_ref(), &mut array)?;

    let added = u32::from(with_kernel);
    let expected = first.iter().map(|value| value + 2 * added);
    let expected = expected.chain(rest.iter().map(|value| value + added));
    let values = stream.clone_dtoh(&array)?;
    if !expected.eq(values) {
        return Err("the values are wrong".into());
    }
    let done = if with_kernel { "kernel" } else { "copies only" };
    println!(
        "{}: {done}, on {} bytes in {} chunks: OK",
        device.name(),
        longer.len(),
        longer.chunk_count()
    );
    Ok(())
}

/// Add one to every value, on `stream`.
fn add_one(
    stream: &Arc<CudaStream>,
    kernel: Option<&CudaFunction>,
    array: &mut Array<u32>,
) -> Result<(), Box<dyn Error>> {
    let Some(kernel) = kernel else {
        return Ok(());
    };
    let count = u32::try_from(array.len())?;
    let (pointer, _until_launched) = array.device_ptr_mut(stream);
    let mut launch = stream.launch_builder(kernel);
    launch.arg(&pointer).arg(&count);
    // SAFETY: the arguments are those of `add_one.ptx`, which touches `count` values at the pointer.
    unsafe { launch.launch(LaunchConfig::for_num_elems(count)) }?;
    Ok(())
}
