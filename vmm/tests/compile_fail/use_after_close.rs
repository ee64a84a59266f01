//! What is closed is gone.

fn touch(buffer: vmm::Buffer) {
    let _ = buffer.close();
    let _ = buffer.close(); //~ E0382
}

fn main() {}
