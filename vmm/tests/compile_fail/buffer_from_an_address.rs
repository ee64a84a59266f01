//! An address that nothing is known to be mapped at is no buffer.

fn main() {
    let _buffer: vmm::Buffer = 0x3_0200_0000_u64.into(); //~ E0277
}
