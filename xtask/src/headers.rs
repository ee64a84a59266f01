//! NVIDIA's headers and libclang, fetched as Python wheels into `target/`. Nothing of them is
//! committed.

use std::path::{Path, PathBuf};

use xshell::{Shell, cmd};

use crate::result::Result;
use crate::workspace::root;

/// The last CUDA 12 headers.
pub const CUDA_12: Wheel = Wheel {
    package: "nvidia-cuda-runtime-cu12",
    version: "12.9.79",
    folder: "nvidia/cuda_runtime/include",
};

/// The CUDA 13 headers that the committed bindings are made from.
pub const CUDA_13: Wheel = Wheel {
    package: "nvidia-cuda-runtime",
    version: "13.5.37",
    folder: "nvidia/cu13/include",
};

const LIBCLANG: Wheel = Wheel {
    package: "libclang",
    version: "18.1.1",
    folder: "libclang-18.1.1.data/platlib/clang/native",
};

/// A Python package, of which one folder is wanted.
pub struct Wheel {
    package: &'static str,
    version: &'static str,
    folder: &'static str,
}

impl Wheel {
    /// The wanted folder, fetched with pip if it is not there yet.
    pub fn fetch(&self) -> Result<PathBuf> {
        let place = root()
            .join("target/wheels")
            .join(format!("{}-{}", self.package, self.version));
        let folder = place.join(self.folder);
        if folder.is_dir() {
            return Ok(folder);
        }
        let shell = Shell::new()?;
        let name = format!("{}=={}", self.package, self.version);
        eprintln!("fetching {name} with pip");
        shell.create_dir(&place)?;
        cmd!(shell, "python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest {place} {name}")
            .quiet()
            .run()?;
        for wheel in shell.read_dir(&place)? {
            if wheel.extension().is_some_and(|end| end == "whl") {
                cmd!(shell, "python3 -m zipfile -e {wheel} {place}")
                    .quiet()
                    .run()?;
            }
        }
        if folder.is_dir() {
            return Ok(folder);
        }
        Err(format!("{name} has no folder {}", self.folder).into())
    }

    pub fn version(&self) -> &'static str {
        self.version
    }
}

/// Have `LIBCLANG_PATH` name a libclang: the caller's, the system's, or one that is fetched.
pub fn find_libclang() -> Result {
    if std::env::var_os("LIBCLANG_PATH").is_some() || system_libclang().is_some() {
        return Ok(());
    }
    let folder = LIBCLANG.fetch()?;
    // SAFETY: this program has one thread.
    unsafe { std::env::set_var("LIBCLANG_PATH", folder) };
    Ok(())
}

/// `cuda.h` and `cudaTypedefs.h` of this folder, without NVIDIA's comments.
pub fn cuda(include: &Path) -> Result<bindgen::Builder> {
    Ok(bindgen::Builder::default()
        .header_contents("all.h", "#include <cuda.h>\n#include <cudaTypedefs.h>\n")
        .clang_arg(format!("-I{}", include.display()))
        .clang_args(["-x", "c", "--target=x86_64-unknown-linux-gnu", "-nostdinc"])
        // Without it the headers hide what newer versions replaced.
        .clang_arg("-D__CUDA_API_VERSION_INTERNAL")
        .clang_arg(format!("-I{}", standard_headers()?.display()))
        .generate_comments(false)
        .formatter(bindgen::Formatter::None)
        .disable_header_comment()
        .use_core())
}

/// A folder with the few standard declarations that `cuda.h` needs. A libclang from a wheel has no
/// headers of its own, and with these the result does not depend on the machine's C library.
fn standard_headers() -> Result<PathBuf> {
    let folder = root().join("target/wheels/standard-headers");
    std::fs::create_dir_all(&folder)?;
    std::fs::write(
        folder.join("stddef.h"),
        "#pragma once\ntypedef __SIZE_TYPE__ size_t;\n",
    )?;
    std::fs::write(
        folder.join("stdlib.h"),
        "#pragma once\n#include <stddef.h>\n",
    )?;
    std::fs::write(
        folder.join("stdint.h"),
        "#pragma once\ntypedef __UINT8_TYPE__ uint8_t;\ntypedef __UINT32_TYPE__ uint32_t;\n\
         typedef __UINT64_TYPE__ uint64_t;\ntypedef __UINTPTR_TYPE__ uintptr_t;\n",
    )?;
    Ok(folder)
}

fn system_libclang() -> Option<PathBuf> {
    let folders = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
    ];
    folders
        .iter()
        .map(|folder| Path::new(folder).join("libclang.so"))
        .find(|path| path.exists())
}
