//! A buffer as a tensor of another framework: a library that Python loads, see `consumer.py`.
//!
//! `cargo build --release -p vmm-example-dlpack`, then
//! `python3 examples/dlpack/consumer.py target/release/libvmm_example_dlpack.so torch` on a machine
//! with a GPU and PyTorch, or `... numpy` on the software driver.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Mutex;

use vmm::dlpark::ffi::DLDataType;
use vmm::{Allocator, Buffer, ChunkPolicy, Driver, Location, Result};

/// What Rust keeps of the memory while Python has the tensor.
static KEPT: Mutex<Option<Buffer>> = Mutex::new(None);

/// A tensor of `count` floats 0, 1, 2 .. in three chunks, on GPU 0 or in host memory: a
/// `DLManagedTensorVersioned` that the caller owns, or null with a message on standard error.
#[unsafe(no_mangle)]
pub extern "C" fn example_tensor(count: u32, on_host: bool) -> *mut c_void {
    or_message(tensor(count, on_host)).unwrap_or(null_mut())
}

/// Whether Rust sees 1, 2, 3 .. in the memory, after one was added to each; Rust's share of it is
/// given up.
#[unsafe(no_mangle)]
pub extern "C" fn example_check() -> bool {
    or_message(check()).unwrap_or(false)
}

fn tensor(count: u32, on_host: bool) -> Result<*mut c_void> {
    let device = Driver::load()?.device(0)?;
    let location = match on_host {
        true => Location::HostNuma(0),
        false => Location::Device,
    };
    let allocator = Allocator::builder(&device)
        .location(location)
        .chunk_policy(ChunkPolicy::exact())
        .build()?;
    let values: Vec<f32> = (0..count).map(|n| n as f32).collect();
    let bytes = size_of_val(values.as_slice());
    let mut buffer = allocator.allocate_with_capacity(bytes / 3, bytes)?;
    for third in [2, 3] {
        buffer = buffer.grow(bytes * third / 3)?;
    }
    buffer.write_values(0, &values)?;
    println!(
        "Rust: {} bytes in {} chunks",
        buffer.len(),
        buffer.chunk_count()
    );

    let whole = buffer.slice(..)?;
    let tensor = whole.into_dlpack(DLDataType::F32, &[i64::from(count)])?;
    *KEPT.lock().unwrap_or_else(|e| e.into_inner()) = Some(buffer);
    Ok(tensor.into_raw().cast())
}

fn check() -> Result<bool> {
    let kept = KEPT.lock().unwrap_or_else(|e| e.into_inner()).take();
    let Some(buffer) = kept else {
        return Ok(false);
    };
    let mut values = vec![0_f32; buffer.len() / 4];
    buffer.read_values(0, &mut values)?;
    Ok(values
        .iter()
        .enumerate()
        .all(|(n, &value)| value == n as f32 + 1.0))
}

fn or_message<T>(result: Result<T>) -> Option<T> {
    result.map_err(|error| eprintln!("{error}")).ok()
}
