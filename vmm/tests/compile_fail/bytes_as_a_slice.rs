//! Device memory is never a Rust reference.

fn bytes(buffer: &vmm::Buffer) -> &[u8] {
    buffer //~ E0308
}

fn main() {}
