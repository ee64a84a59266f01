//! Gives the shared object the name under which programs ask for the driver, and keeps it loaded.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // A thread may run code of it when it ends, and what is mapped has no other owner, so it stays
    // after `dlclose`.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
