//! The last clone of a stream can go on any thread, and its keeper with it.

use std::rc::Rc;

fn stream(device: &vmm::Device, raw: vmm::sys::CUstream, keeper: Rc<()>) -> vmm::Stream {
    // SAFETY: never run.
    unsafe { vmm::Stream::from_raw_kept(device, raw, keeper) } //~ E0277
}

fn main() {}
