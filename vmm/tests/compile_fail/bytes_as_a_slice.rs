//! Device memory is never a Rust reference.

fn bytes(buffer: &vmm::Buffer) -> &[u8] {
    buffer
}

fn main() {}
