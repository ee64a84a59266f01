//! A sleeping buffer has no memory to touch.

fn touch(buffer: vmm::Buffer) {
    let _asleep = buffer.sleep();
    let _ = buffer.fill(0, 1, 0); //~ E0382
}

fn main() {}
