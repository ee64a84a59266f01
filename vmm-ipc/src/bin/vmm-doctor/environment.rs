//! The machine and this process: what sharing needs of them besides the driver.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};

use crate::finding::{Finding, Section};

/// Looks at everything. On the emulator what only a GPU needs is no reason to warn.
pub fn examine(emulator: bool) -> Section {
    let release = read("/proc/sys/kernel/osrelease");
    let mut findings = vec![
        system(&release, Path::new("/dev/dxg").exists()),
        device_files(emulator),
    ];
    findings.extend(module());
    findings.extend(container(&container_signs(&read("/proc/1/cgroup"))));
    findings.push(namespaces(|link| fs::read_link(link)));
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

fn system(release: &str, has_dxg: bool) -> Finding {
    match has_dxg || release.to_ascii_lowercase().contains("microsoft") {
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

fn open(path: &Path) -> io::Result<fs::File> {
    OpenOptions::new().read(true).write(true).open(path)
}

fn module() -> Option<Finding> {
    let version = read("/sys/module/nvidia/version");
    (!version.is_empty()).then(|| Finding::ok("kernel module", format!("nvidia {version}")))
}

/// What tells of a container; `groups` are the control groups of the first process.
fn container_signs(groups: &str) -> Vec<&'static str> {
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
    signs.into_iter().flatten().collect()
}

fn container(signs: &[&str]) -> Option<Finding> {
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
fn namespaces(read_link: impl Fn(&str) -> io::Result<PathBuf>) -> Finding {
    let subject = "namespaces";
    // The kernel gives these numbers to the namespaces that it starts with.
    let initial = [("pid", "pid:[4026531836]"), ("user", "user:[4026531837]")];
    let mut own = Vec::new();
    for (name, first) in initial {
        let link = format!("/proc/self/ns/{name}");
        match read_link(&link) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::State;

    /// That the finding is of this state, says this, and gives advice with this in it, or none.
    fn says(finding: &Finding, state: State, found: &str, advice: Option<&str>) {
        assert_eq!(finding.state.name(), state.name(), "{}", finding.found);
        assert_eq!(finding.found, found);
        match (finding.advice.as_deref(), advice) {
            (Some(given), Some(wanted)) => assert!(given.contains(wanted), "{given}"),
            (given, wanted) => assert_eq!(given, wanted),
        }
    }

    #[test]
    fn wsl_is_told_by_its_kernel_or_its_device() {
        let own = format!("Linux 6.8.0-45-generic, {}", std::env::consts::ARCH);
        says(&system("6.8.0-45-generic", false), State::Ok, &own, None);
        for (release, has_dxg) in [
            ("5.15.153.1-microsoft-standard-WSL2", true),
            ("5.15.153.1-microsoft-standard-WSL2", false),
            ("4.4.0-19041-Microsoft", false),
            // A kernel that its user has built.
            ("6.6.36-own", true),
        ] {
            let found = format!("WSL2, {release}");
            let finding = system(release, has_dxg);
            says(&finding, State::Warning, &found, Some("exchange"));
        }
    }

    #[test]
    fn a_container_is_told_by_the_control_groups_of_the_first_process() {
        for (groups, sign) in [
            ("0::/docker/9f1c0e", "docker"),
            ("0::/kubepods.slice/kubepods-pod7.slice", "kubepods"),
            ("1:cpu:/x\n0::/machine.slice/libpod-8a.scope", "libpod"),
            ("0::/system.slice/containerd.service", "containerd"),
            ("0::/lxc/web", "lxc"),
        ] {
            assert_eq!(container_signs(groups).last(), Some(&sign), "{groups}");
        }
        assert!(!container_signs("0::/init.scope").contains(&"docker"));
        assert!(container(&[]).is_none());
        let finding = container(&["/.dockerenv", "docker"]).unwrap();
        let found = "this process runs in one (/.dockerenv, docker)";
        says(&finding, State::Note, found, Some("Listener::bind"));
    }

    #[test]
    fn namespaces_that_are_not_those_of_the_system_are_named() {
        let machine = |pid: &'static str, user: &'static str| {
            namespaces(move |link| match link {
                "/proc/self/ns/pid" => Ok(pid.into()),
                "/proc/self/ns/user" => Ok(user.into()),
                _ => Err(io::ErrorKind::NotFound.into()),
            })
        };
        let (pid, user) = ("pid:[4026531836]", "user:[4026531837]");
        let found = "process ids and users are those of the system";
        says(&machine(pid, user), State::Ok, found, None);
        for (pid, user, found) in [
            ("pid:[4026532201]", user, "of its own: pid"),
            (pid, "user:[4026532199]", "of its own: user"),
            (
                "pid:[4026532201]",
                "user:[4026532199]",
                "of its own: pid, user",
            ),
        ] {
            says(&machine(pid, user), State::Note, found, Some("user 65534"));
        }
        let unreadable = namespaces(|_| Err(io::Error::from_raw_os_error(13)));
        let found = "/proc/self/ns/pid: Permission denied (os error 13)";
        says(&unreadable, State::Note, found, None);
    }
}
