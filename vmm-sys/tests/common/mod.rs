//! Libraries made for a test.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// Compiles C into `libcuda.so.1` in a folder of this name.
pub fn compile(name: &str, source: &str) -> PathBuf {
    let folder = folder(name);
    let path = folder.join("libcuda.so.1");
    fs::write(folder.join("cuda.c"), source).unwrap();
    let target = format!("{}-unknown-linux-gnu", env::consts::ARCH);
    let compiler = cc::Build::new()
        .target(&target)
        .host(&target)
        .opt_level(0)
        .cargo_metadata(false)
        .get_compiler();
    let status = compiler
        .to_command()
        .args(["-shared", "-fPIC", "-w", "-o"])
        .args([&path, &folder.join("cuda.c")])
        .status()
        .unwrap();
    assert!(status.success(), "{name} does not compile");
    path
}

/// An empty folder of the test's own.
pub fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}
