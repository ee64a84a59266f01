//! What decoding costs, counted: in a program of its own, for it has an allocator of its own.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use vmm_ipc::wire::Descriptor;

struct Counting;

/// How many allocations, and of how many bytes together.
#[derive(Clone, Copy)]
struct Count {
    allocations: usize,
    bytes: usize,
}

thread_local! {
    // Each thread for itself: the test runner's own thread allocates while a test runs.
    static COUNT: Cell<Count> = const { Cell::new(Count { allocations: 0, bytes: 0 }) };
}

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Count { allocations, bytes } = COUNT.get();
        COUNT.set(Count {
            allocations: allocations + 1,
            bytes: bytes + layout.size(),
        });
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's, and what `alloc` gave came from there.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn descriptor(count: u32, fabric: bool) -> Vec<u8> {
    let chunk = if fabric { 72 } else { 8 };
    let total = 88 + count * chunk;
    let mapped = u64::from(count) << 21;
    let mut bytes = Vec::new();
    bytes.extend(b"VMMD");
    bytes.extend([1, 0, 0, 0]);
    bytes.extend(total.to_le_bytes());
    bytes.extend(count.to_le_bytes());
    bytes.extend([7; 40]);
    bytes.extend([1, if fabric { 8 } else { 1 }, 0, 0, 0, 0, 0, 0]);
    for value in [1 << 21, mapped, mapped] {
        bytes.extend(u64::to_le_bytes(value));
    }
    bytes.extend((0..count).flat_map(|_| (1_u64 << 21).to_le_bytes()));
    bytes.resize(total as usize, 5);
    bytes
}

#[test]
fn a_descriptor_is_decoded_with_two_allocations_that_its_bytes_pay_for() {
    for count in [1, 1024, 100_000] {
        for (fabric, most) in [(false, 1), (true, 2)] {
            let bytes = descriptor(count, fabric);
            let before = COUNT.get();
            let decoded = Descriptor::decode(&bytes);
            let after = COUNT.get();
            let allocations = after.allocations - before.allocations;
            let allocated = after.bytes - before.bytes;
            assert_eq!(decoded.unwrap().sizes().len(), count as usize);
            assert!(
                (1..=most).contains(&allocations),
                "{count} chunks, fabric {fabric}: {allocations}"
            );
            assert!(
                allocated <= bytes.len(),
                "{count} chunks: {allocated} bytes"
            );
        }
    }
    // What is refused has not been paid for.
    let mut lying = descriptor(1, false);
    lying[12..16].copy_from_slice(&1_000_000_u32.to_le_bytes());
    let before = COUNT.get();
    assert!(Descriptor::decode(&lying).is_err());
    assert_eq!(COUNT.get().allocations, before.allocations);
}
