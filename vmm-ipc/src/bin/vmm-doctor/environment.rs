//! The machine and this process: what sharing needs of them besides the driver.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};

use crate::finding::{Finding, Section};

/// Looks at everything. On the emulator what only a GPU needs is no reason to warn.
pub fn examine(emulator: bool) -> Section {
    let mut findings = vec![system(), device_files(emulator)];
    findings.extend(module());
    findings.extend(container());
    findings.push(namespaces());
    findings.push(visible_devices());
    findings.extend(stub());
    findings.extend(mps());
    findings.push(open_files());
    findings.push(socket_folder());
    findings.push(imex());
    findings.push(fork());
    Section {
        name: "machine".into(),
        title: "Machine".into(),
        findings,
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path)
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// The names in a folder, sorted; none where it cannot be read.
fn names(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

fn system() -> Finding {
    let release = read("/proc/sys/kernel/osrelease");
    let wsl = release.to_ascii_lowercase().contains("microsoft") || Path::new("/dev/dxg").exists();
    match wsl {
        true => Finding::warning(
            "system",
            format!("WSL2, {release}"),
            "its driver offers less than Linux's: go by the exchange between two processes below",
        ),
        false => Finding::ok(
            "system",
            format!("Linux {release}, {}", std::env::consts::ARCH),
        ),
    }
}

/// Whether the driver's files can be opened, for a container may show what it does not allow.
fn device_files(emulator: bool) -> Finding {
    let subject = "device files";
    let is_gpu = |name: &str| {
        name.strip_prefix("nvidia")
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
    };
    let all = names("/dev");
    let gpus = all.iter().filter(|name| is_gpu(name)).count();
    let needed = ["nvidiactl", "nvidia-uvm"];
    let lacking: Vec<&str> = needed
        .into_iter()
        .filter(|name| !all.iter().any(|other| other == name))
        .collect();
    let closed: Vec<String> = all
        .iter()
        .filter(|name| is_gpu(name) || needed.contains(&name.as_str()))
        .filter_map(|name| {
            let path = Path::new("/dev").join(name);
            let error = open(&path).err()?;
            Some(format!("{}: {error}", path.display()))
        })
        .collect();
    if !closed.is_empty() {
        return Finding::warning(
            subject,
            closed.join("; "),
            "give this user, or this container's device rules, the right to read and write them",
        );
    }
    if Path::new("/dev/dxg").exists() {
        return Finding::note(subject, "/dev/dxg, as under WSL2");
    }
    if emulator {
        return Finding::note(subject, format!("{gpus} GPUs; the emulator needs none"));
    }
    if gpus == 0 || !lacking.is_empty() {
        let lacking: String = lacking
            .iter()
            .map(|name| format!(", no /dev/{name}"))
            .collect();
        return Finding::warning(
            subject,
            format!("{gpus} GPUs under /dev{lacking}"),
            "install the driver; in a container start it with the GPU (`--gpus all`, or the CDI \
             device); `nvidia-modprobe -u -c=0` makes /dev/nvidia-uvm",
        );
    }
    Finding::ok(
        subject,
        format!("{gpus} GPUs, nvidiactl and nvidia-uvm can be opened"),
    )
}

fn open(path: &Path) -> std::io::Result<fs::File> {
    OpenOptions::new().read(true).write(true).open(path)
}

fn module() -> Option<Finding> {
    let version = read("/sys/module/nvidia/version");
    (!version.is_empty()).then(|| Finding::ok("kernel module", format!("nvidia {version}")))
}

fn container() -> Option<Finding> {
    let groups = read("/proc/1/cgroup");
    let named = ["docker", "kubepods", "containerd", "libpod", "lxc"]
        .into_iter()
        .find(|name| groups.contains(name));
    let signs = [
        Path::new("/.dockerenv").exists().then_some("/.dockerenv"),
        Path::new("/run/.containerenv")
            .exists()
            .then_some("/run/.containerenv"),
        std::env::var_os("KUBERNETES_SERVICE_HOST").map(|_| "KUBERNETES_SERVICE_HOST"),
        named,
    ];
    let signs: Vec<&str> = signs.into_iter().flatten().collect();
    if signs.is_empty() {
        return None;
    }
    let text = format!("this process runs in one ({})", signs.join(", "));
    Some(Finding::note("container", text).advise(
        "to share with another container mount one folder into both for the socket \
         (Listener::bind), give both the same GPU, and the same user or PeerPolicy",
    ))
}

/// Which namespaces are not the ones the system started with, as far as can be seen.
fn namespaces() -> Finding {
    let subject = "namespaces";
    // The kernel gives these numbers to the namespaces that it starts with.
    let initial = [("pid", "pid:[4026531836]"), ("user", "user:[4026531837]")];
    let mut own = Vec::new();
    for (name, first) in initial {
        let link = format!("/proc/self/ns/{name}");
        match fs::read_link(&link) {
            Ok(target) if target.as_os_str() == first => {}
            Ok(_) => own.push(name),
            Err(error) => return Finding::note(subject, format!("{link}: {error}")),
        }
    }
    if own.is_empty() {
        return Finding::ok(subject, "process ids and users are those of the system");
    }
    Finding::note(subject, format!("of its own: {}", own.join(", "))).advise(
        "sharing by file descriptor works across them; a peer in another one has process id 0, and \
         user 65534 where its user is not mapped here",
    )
}

fn visible_devices() -> Finding {
    let subject = "CUDA_VISIBLE_DEVICES";
    let Some(value) = std::env::var_os(subject) else {
        return Finding::ok(subject, "not set: every GPU is visible");
    };
    let value = value.to_string_lossy();
    let first = value.split(',').next().unwrap_or_default().trim();
    if first.is_empty() || first == "-1" || value.eq_ignore_ascii_case("NoDevFiles") {
        return Finding::problem(
            subject,
            format!("`{value}` hides every GPU"),
            "unset it, or name GPUs by number or UUID",
        );
    }
    Finding::note(subject, format!("`{value}`"))
        .advise("the peer must see the same GPU, under any number: it is found by its UUID")
}

/// A folder on the library path that holds the toolkit's stub.
fn stub() -> Option<Finding> {
    let path = std::env::var_os("LD_LIBRARY_PATH")?;
    let stubs: Vec<PathBuf> = std::env::split_paths(&path)
        .filter(|folder| folder.components().any(|part| part.as_os_str() == "stubs"))
        .filter(|folder| {
            ["libcuda.so", "libcuda.so.1"]
                .iter()
                .any(|name| folder.join(name).exists())
        })
        .collect();
    let first = stubs.first()?;
    Some(Finding::warning(
        "LD_LIBRARY_PATH",
        format!("{} holds the toolkit's stub of libcuda", first.display()),
        "take it off: it is for linking only, and a program that loads it has no driver",
    ))
}

fn mps() -> Option<Finding> {
    let folder = std::env::var_os("CUDA_MPS_PIPE_DIRECTORY")?;
    Some(
        Finding::note(
            "MPS",
            format!("CUDA_MPS_PIPE_DIRECTORY is {}", folder.display()),
        )
        .advise("processes that share should be clients of the same server, or none of them"),
    )
}

fn open_files() -> Finding {
    const FEW: u64 = 1024;
    let subject = "open files";
    let limit = getrlimit(Resource::Nofile);
    let (Some(soft), hard) = (limit.current, limit.maximum) else {
        return Finding::ok(subject, "no limit");
    };
    let open = names("/proc/self/fd").len() as u64;
    let hard = hard.map_or("none".to_owned(), |hard| hard.to_string());
    let text = format!("limit {soft} (hard limit {hard}), {open} open");
    let advice = "one descriptor is open per chunk that is exported: raise the limit with \
                  `ulimit -n 65536` (LimitNOFILE= of a service, --ulimit nofile= of a container)";
    match soft {
        ..FEW => Finding::warning(subject, text, advice),
        _ => Finding::ok(subject, text),
    }
}

fn socket_folder() -> Finding {
    let subject = "socket folder";
    match vmm_ipc::Listener::new() {
        Ok(listener) => {
            let folder = listener.path().ancestors().nth(2).unwrap_or(Path::new("/"));
            Finding::ok(
                subject,
                format!("{}: a Unix socket can be made", folder.display()),
            )
        }
        Err(error) => Finding::problem(
            subject,
            error,
            "set XDG_RUNTIME_DIR or TMPDIR to a folder that this user may write to, with a path of \
             fewer than 60 bytes",
        ),
    }
}

fn imex() -> Finding {
    const FOLDER: &str = "/dev/nvidia-caps-imex-channels";
    let subject = "IMEX channels";
    let only = "needed only for fabric handles, between machines";
    let channels = names(FOLDER);
    if channels.is_empty() {
        return Finding::note(subject, format!("none under {FOLDER}; {only}")).advise(
            "to have them: start nvidia-imex, load the nvidia module with \
             NVreg_CreateImexChannel0=1, and pass the channel into the container",
        );
    }
    let failed = channels.iter().find_map(|name| {
        let error = open(&Path::new(FOLDER).join(name)).err()?;
        Some(format!("{FOLDER}/{name}: {error}; {only}"))
    });
    match failed {
        Some(text) => Finding::warning(
            subject,
            text,
            "give this user, or this container's device rules, the right to read and write it",
        ),
        None => Finding::ok(subject, channels.join(", ")),
    }
}

fn fork() -> Finding {
    Finding::note(
        "fork",
        "CUDA does not survive it; exchanges here are made by exec",
    )
    .advise(
        "start processes with exec, or fork before the driver is loaded; in Python \
         multiprocessing.set_start_method('spawn')",
    )
}
