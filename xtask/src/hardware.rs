//! What runs on a GPU: the one list behind `gpu-test` and its bundle. To add a program, add its
//! line to [`PROGRAMS`] and one line per run of it to [`PARTS`].

/// A file that goes into the bundle.
#[allow(dead_code, reason = "programs join the list as they are written")]
pub enum Program {
    /// A binary of a package of the workspace.
    Bin {
        package: &'static str,
        name: &'static str,
    },
    /// An example of a package of the workspace.
    Example {
        package: &'static str,
        name: &'static str,
    },
    /// A test of a package of the workspace, which cargo names by a hash.
    Test {
        package: &'static str,
        name: &'static str,
    },
    /// The shared library of a package of the workspace, by its file name.
    Library {
        package: &'static str,
        file: &'static str,
    },
    /// One C file of `tests/baseline`, compiled with `cc`.
    C {
        source: &'static str,
        name: &'static str,
    },
    /// A file that is copied as it is, by its path in the workspace.
    File(&'static str),
}

/// One run of one program. It passes when its exit status is 0.
pub struct Part {
    /// The name in the summary, and what `run.sh` selects it by.
    pub name: &'static str,
    /// Whether `run.sh quick` runs it too; `run.sh full` runs every part.
    pub quick: bool,
    /// Killed, and failed, after this many seconds.
    pub seconds: u32,
    /// The command line, in the directory of the bundle. `$OUT` is where files may be left.
    pub command: &'static str,
}

pub const PROGRAMS: &[Program] = &[
    Program::Example {
        package: "vmm-sys",
        name: "symbols",
    },
    Program::Test {
        package: "vmm-sys",
        name: "hardware",
    },
    Program::Bin {
        package: "vmm-ipc",
        name: "vmm-doctor",
    },
    Program::Bin {
        package: "vmm-tests",
        name: "vmm-suite",
    },
    Program::Example {
        package: "vmm",
        name: "kv_cache",
    },
    Program::Bin {
        package: "vmm-example-cudarc",
        name: "vmm-example-cudarc",
    },
    Program::Example {
        package: "vmm-ipc",
        name: "share",
    },
    Program::Example {
        package: "vmm-ipc",
        name: "weights_holder",
    },
    Program::Example {
        package: "vmm-ipc",
        name: "kv_cache_shared",
    },
    Program::Example {
        package: "vmm-ipc",
        name: "sleep_wake",
    },
    Program::Example {
        package: "vmm-ipc",
        name: "reader_pool",
    },
    Program::Example {
        package: "vmm-ipc",
        name: "python_peer",
    },
    Program::File("tests/python/share_with_rust.py"),
    Program::Library {
        package: "vmm-example-dlpack",
        file: "libvmm_example_dlpack.so",
    },
    Program::File("examples/dlpack/consumer.py"),
    Program::File("python/vmm_ipc.py"),
    Program::Bin {
        package: "vmm-recording",
        name: "record",
    },
    Program::Bin {
        package: "vmm-tests",
        name: "vmm-bench",
    },
    Program::Bin {
        package: "vmm-tests",
        name: "bench-crate",
    },
    Program::C {
        source: "tests/baseline/naive.c",
        name: "baseline-naive",
    },
    Program::C {
        source: "tests/baseline/best.c",
        name: "baseline-best",
    },
    Program::File("tests/baseline/peer.py"),
    Program::File("tests/baseline/peer_torch.py"),
    Program::File("tests/baseline/peer_cuda_core.py"),
];

pub const PARTS: &[Part] = &[
    Part {
        name: "symbols",
        quick: true,
        seconds: 20,
        command: "./symbols",
    },
    Part {
        name: "driver",
        quick: true,
        seconds: 60,
        command: "./hardware --ignored",
    },
    Part {
        name: "doctor",
        quick: true,
        seconds: 120,
        command: "./vmm-doctor --driver cuda",
    },
    Part {
        name: "kv-cache",
        quick: true,
        seconds: 60,
        command: "./kv_cache --driver cuda --up-to 2048",
    },
    Part {
        name: "cudarc",
        quick: true,
        seconds: 60,
        command: "./vmm-example-cudarc",
    },
    Part {
        name: "share",
        quick: true,
        seconds: 60,
        command: "./share --driver cuda",
    },
    Part {
        name: "share-3x1G",
        quick: true,
        seconds: 120,
        command: "./share --driver cuda --chunks 3 --chunk-size 1G",
    },
    Part {
        name: "share-512x2M",
        quick: true,
        seconds: 120,
        command: "./share --driver cuda --chunks 512 --chunk-size 2M",
    },
    Part {
        name: "weights-holder",
        quick: true,
        seconds: 60,
        command: "./weights_holder --driver cuda",
    },
    Part {
        name: "kv-cache-shared",
        quick: true,
        seconds: 60,
        command: "./kv_cache_shared --driver cuda",
    },
    Part {
        name: "sleep-wake",
        quick: true,
        seconds: 60,
        command: "./sleep_wake --driver cuda",
    },
    Part {
        name: "reader-pool",
        quick: true,
        seconds: 60,
        command: "./reader_pool --driver cuda",
    },
    // Fails where PyTorch or cuda-bindings is absent.
    Part {
        name: "python",
        quick: true,
        seconds: 240,
        command: "./python_peer --driver cuda --peer share_with_rust.py --torch",
    },
    // Fails where PyTorch is absent.
    Part {
        name: "dlpack",
        quick: true,
        seconds: 120,
        command: "python3 consumer.py ./libvmm_example_dlpack.so torch",
    },
    Part {
        name: "suite",
        quick: true,
        seconds: 400,
        command: "./vmm-suite --driver cuda",
    },
    Part {
        name: "recording",
        quick: true,
        seconds: 180,
        command: "./record --driver cuda --out $OUT/recording.tsv",
    },
    Part {
        name: "bench",
        quick: false,
        seconds: 560,
        command: "./vmm-bench --seconds 400",
    },
];
