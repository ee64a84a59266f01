//! A handle that did not come from the driver crashes it.

fn main() {
    let _allocation: vmm::Allocation = 42_u64.into(); //~ E0277
}
