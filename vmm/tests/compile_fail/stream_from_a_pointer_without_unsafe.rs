//! Whoever hands over a stream vouches that it lives long enough.

fn stream(device: &vmm::Device, raw: vmm::sys::CUstream) -> vmm::Stream {
    vmm::Stream::from_raw(device, raw) //~ E0133
}

fn main() {}
