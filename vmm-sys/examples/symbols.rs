//! What this machine's driver offers: its version, every symbol of the table, and what each device
//! says about virtual memory. Fails where the driver lacks a symbol of its own version or an older.
//!
//! `cargo run -p vmm-sys --example symbols`

use std::error::Error;
use std::ffi::CStr;
use std::process::ExitCode;

use vmm_sys::{CUdevice, CUdevice_attribute, Driver, Resolved};

const HELP: &str = "\
symbols

Prints the driver's version, every symbol of the table and what each device says about virtual
memory. Takes no options; VMM_LIBCUDA names another library than libcuda.so.1. Fails where there is
no driver, or where it lacks a symbol that one of its version should have.";

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        None => {}
        Some("-h" | "--help") => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Some(other) => {
            eprintln!("error: unexpected argument {other} (--help says what this does)");
            return ExitCode::from(2);
        }
    }
    match print() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn print() -> Result<(), Box<dyn Error>> {
    let driver = Driver::load()?;
    let version = driver.version();
    println!("driver: CUDA {}.{}", version / 1000, version % 1000 / 10);
    if driver.is_emulator() {
        println!("this is a software emulator: no GPU is behind it");
    }
    print_symbols(&driver);
    print_devices(&driver)?;
    let lost: Vec<&str> = driver
        .symbols()
        .filter(|resolved| !resolved.found && resolved.symbol.tag as i32 <= version)
        .map(|resolved| resolved.symbol.export)
        .collect();
    match lost.as_slice() {
        [] => Ok(()),
        _ => Err(format!("a driver of this version should have {}", lost.join(", ")).into()),
    }
}

fn print_symbols(driver: &Driver) {
    let symbols: Vec<Resolved> = driver.symbols().collect();
    let found = symbols.iter().filter(|symbol| symbol.found).count();
    println!("\n{found} of {} symbols\n", symbols.len());
    println!("{:<42} {:>6}  {:<8}  resolved", "symbol", "tag", "need");
    for resolved in symbols {
        let symbol = resolved.symbol;
        let need = match symbol.required {
            true => "required",
            false => "optional",
        };
        let answer = match resolved.why_not() {
            None => "yes".to_owned(),
            Some(reason) => format!("no: {reason}"),
        };
        println!("{:<42} {:>6}  {need:<8}  {answer}", symbol.name, symbol.tag);
    }
}

/// What `cuDeviceGetAttribute` is asked.
const ATTRIBUTES: &[(&str, CUdevice_attribute)] = &[
    (
        "virtual memory management",
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
    ),
    (
        "handles as POSIX file descriptors",
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
    ),
    (
        "handles over the fabric",
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED,
    ),
    (
        "compressible memory",
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED,
    ),
    (
        "GPUDirect RDMA of virtual memory",
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
    ),
    (
        "ranges as dma-buf",
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED,
    ),
    (
        "multicast",
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED,
    ),
    (
        "memory pools",
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED,
    ),
    (
        "virtual memory of the host",
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
    ),
    (
        "virtual memory of a NUMA node",
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
    ),
    (
        "nearest NUMA node",
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID,
    ),
];

fn print_devices(driver: &Driver) -> Result<(), Box<dyn Error>> {
    let mut count = 0;
    // SAFETY: no flags, and the out pointer is a live local.
    unsafe {
        driver.cuInit(0)?;
        driver.cuDeviceGetCount(&mut count)?;
    }
    for ordinal in 0..count {
        let mut device: CUdevice = 0;
        let mut name = [0; 256];
        // SAFETY: the out pointers are live locals, and the length is that of the buffer.
        unsafe {
            driver.cuDeviceGet(&mut device, ordinal)?;
            driver.cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, device)?;
        }
        // SAFETY: the driver ends the name within the buffer.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) };
        println!("\ndevice {ordinal}: {}\n", name.to_string_lossy());
        for &(what, attribute) in ATTRIBUTES {
            let mut value = 0;
            // SAFETY: the out pointer is a live local, and the device is the driver's.
            let answer = unsafe { driver.cuDeviceGetAttribute(&mut value, attribute, device) };
            match answer {
                Ok(()) => println!("{what:<36} {value}"),
                // An older driver does not know the newer attributes.
                Err(error) => println!("{what:<36} {error}"),
            }
        }
    }
    Ok(())
}
