//! The same things done right: this one compiles, so the others fail for the reason they name.

fn last_address(buffer: &vmm::Buffer) -> Option<u64> {
    buffer.chunks().last().map(|chunk| chunk.address)
}

/// # Safety
///
/// As [`vmm::Stream::from_raw`].
unsafe fn stream(device: &vmm::Device, raw: vmm::sys::CUstream) -> vmm::Stream {
    // SAFETY: the caller's.
    unsafe { vmm::Stream::from_raw(device, raw) }
}

fn sleep_and_close(buffer: vmm::Buffer) -> Result<(), Box<dyn std::error::Error>> {
    let asleep = buffer.sleep().map_err(|error| error.to_string())?;
    let awake = asleep.wake().map_err(|error| error.to_string())?;
    awake.fill(0, 1, 0)?;
    Ok(awake.close()?)
}

fn main() {
    let _ = (last_address, stream as unsafe fn(_, _) -> _, sleep_and_close);
}
