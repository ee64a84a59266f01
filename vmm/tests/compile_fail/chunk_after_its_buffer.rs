//! A chunk is a view of a buffer, and cannot outlive it.

fn last(buffer: vmm::Buffer) -> Option<vmm::Chunk<'static>> {
    buffer.chunks().last() //~ E0515
}

fn main() {}
