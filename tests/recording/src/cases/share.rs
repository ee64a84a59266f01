//! Export and import.

use super::List;
use crate::rig::{DEVICE, FD, G, HOST, NUMA, code, d, setup, value};
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ffi::c_int;
use std::ptr::{null_mut, without_provenance_mut};
use vmm_sys::*;

type MakeFd = fn() -> Result<OwnedFd, String>;

pub fn add(list: &mut List) {
    for (what, kind, handles) in [
        ("device fd", DEVICE, FD),
        ("device none", DEVICE, 0),
        ("host none", HOST, 0),
        ("NUMA fd", NUMA, FD),
        ("NUMA none", NUMA, 0),
    ] {
        list.add(
            format!("export.{what}"),
            format!("export an fd of memory made as {what}"),
            move |r| {
                let handle = r.memory_at(G, kind, handles)?;
                Ok(code(r.export(handle).map(drop)))
            },
        );
    }
    for kind in [0, 2, 3, 4, 8, 16] {
        list.add(
            format!("export.type {kind}"),
            format!("export as handle type {kind} of memory made for fds"),
            move |r| {
                let handle = r.memory(G)?;
                let mut room = [0_u8; 64];
                Ok(code(d!(
                    r,
                    cuMemExportToShareableHandle(
                        room.as_mut_ptr().cast(),
                        handle,
                        CUmemAllocationHandleType(kind),
                        0
                    )
                )))
            },
        );
    }
    list.add("export.flags", "export with flags 1", |r| {
        let handle = r.memory(G)?;
        let mut fd = -1;
        Ok(code(d!(
            r,
            cuMemExportToShareableHandle(
                (&raw mut fd).cast(),
                handle,
                CUmemAllocationHandleType(FD),
                1
            )
        )))
    });
    list.add("export.null", "export to a null pointer", |r| {
        let handle = r.memory(G)?;
        Ok(code(d!(
            r,
            cuMemExportToShareableHandle(null_mut(), handle, CUmemAllocationHandleType(FD), 0)
        )))
    });
    list.add("export.handle 0", "export handle 0", |r| {
        Ok(code(r.export(0).map(drop)))
    });
    list.add("export.twice", "export twice: two fds", |r| {
        let handle = r.memory(G)?;
        let (one, other) = (r.export(handle), r.export(handle));
        match (one, other) {
            (Ok(one), Ok(other)) => Ok(format!("different: {}", one != other)),
            (one, other) => Ok(format!("{}; {}", value(one), value(other))),
        }
    });
    list.add(
        "export.close on exec",
        "whether an exported fd is close-on-exec",
        |r| {
            let handle = r.memory(G)?;
            let fd = r.export(handle).map_err(|error| error.to_string())?;
            let flags = rustix::io::fcntl_getfd(borrow(fd)).map_err(|error| error.to_string())?;
            Ok(format!("{}", flags.contains(rustix::io::FdFlags::CLOEXEC)))
        },
    );
    list.add("export.imported", "export an imported handle", |r| {
        let handle = r.memory(G)?;
        let fd = r.export(handle).map_err(|error| error.to_string())?;
        let imported = r.import(fd).map_err(|error| error.to_string())?;
        Ok(code(r.export(imported).map(drop)))
    });
    list.add(
        "export.released",
        "export a handle that was released while mapped and retained again",
        |r| {
            let at = r.mapped(&[G], 3)?;
            let handle = r.handle(0);
            setup(r.release(handle))?;
            let mut again = 0;
            setup(d!(r, cuMemRetainAllocationHandle(&mut again, at as *mut _)))?;
            r.adopt(again);
            Ok(code(r.export(again).map(drop)))
        },
    );
    import(list);
}

fn import(list: &mut List) {
    list.add(
        "import.own",
        "import an fd in the process that exported it: a new handle value",
        |r| {
            let handle = r.memory(G)?;
            let fd = r.export(handle).map_err(|error| error.to_string())?;
            let imported = r.import(fd);
            Ok(value(
                imported.map(|imported| format!("new: {}", imported != handle)),
            ))
        },
    );
    list.add(
        "import.twice",
        "import one fd twice: two handle values",
        |r| {
            let handle = r.memory(G)?;
            let fd = r.export(handle).map_err(|error| error.to_string())?;
            let one = r.import(fd).map_err(|error| error.to_string())?;
            Ok(value(
                r.import(fd)
                    .map(|other| format!("different: {}", other != one)),
            ))
        },
    );
    list.add(
        "import.leaves the fd",
        "whether the fd is open after the import",
        |r| {
            let handle = r.memory(G)?;
            let fd = r.export(handle).map_err(|error| error.to_string())?;
            setup(r.import(fd).map(drop))?;
            Ok(format!(
                "open: {}",
                rustix::io::fcntl_getfd(borrow(fd)).is_ok()
            ))
        },
    );
    list.add(
        "import.properties",
        "properties of an imported handle",
        |r| {
            let handle = r.memory(G)?;
            let fd = r.export(handle).map_err(|error| error.to_string())?;
            let imported = r.import(fd).map_err(|error| error.to_string())?;
            let mut prop = CUmemAllocationProp::default();
            setup(d!(
                r,
                cuMemGetAllocationPropertiesFromHandle(&mut prop, imported)
            ))?;
            Ok(format!(
                "type {} handle types {} location {} id {}",
                prop.type_.0,
                prop.requestedHandleTypes.0,
                prop.location.type_.0,
                prop.location.id()
            ))
        },
    );
    list.add("import.dup", "import a dup of an exported fd", |r| {
        let handle = r.memory(G)?;
        let fd = r.export(handle).map_err(|error| error.to_string())?;
        let second =
            rustix::io::fcntl_dupfd_cloexec(borrow(fd), 0).map_err(|error| error.to_string())?;
        Ok(code(r.import(second.as_raw_fd()).map(drop)))
    });
    list.add(
        "import.after release",
        "import when the exporter's handle is released and only the fd is left, and the bytes",
        |r| {
            r.current()?;
            let at = r.mapped(&[G], 3)?;
            setup(d!(r, cuMemsetD8(at, 0x61, G)))?;
            let handle = r.handle(0);
            let fd = r.export(handle).map_err(|error| error.to_string())?;
            setup(r.unmap(at, G))?;
            setup(r.release(handle))?;
            let imported = r.import(fd).map_err(|error| error.to_string())?;
            setup(r.map(at, G, 0, imported, 0))?;
            setup(r.access(at, G, DEVICE, 0, 1))?;
            let mut byte = 0_u8;
            setup(d!(
                r,
                cuMemcpyDtoH((&raw mut byte).cast(), at + G as u64 - 1, 1)
            ))?;
            Ok(format!("{byte:#x}"))
        },
    );
    list.add(
        "import.fd alone charges",
        "whether an fd alone keeps memory charged, until it is closed",
        |r| {
            r.current()?;
            const SIZE: usize = 128 * G;
            let before = r.free_memory()?;
            let handle = r.memory(SIZE)?;
            let fd = r.export(handle).map_err(|error| error.to_string())?;
            setup(r.release(handle))?;
            let held = before - r.free_memory()?.min(before) >= SIZE;
            r.close(fd);
            let back = before - r.free_memory()?.min(before) < SIZE;
            Ok(format!("charged {held}, then free {back}"))
        },
    );
    list.add(
        "import.handle outlives the exporter's",
        "release the exported handle, use the imported one",
        |r| {
            let handle = r.memory(G)?;
            let fd = r.export(handle).map_err(|error| error.to_string())?;
            let imported = r.import(fd).map_err(|error| error.to_string())?;
            setup(r.release(handle))?;
            let at = r.reserve(G)?;
            Ok(format!(
                "map {}, release {}",
                code(r.map(at, G, 0, imported, 0)),
                code(r.release(imported))
            ))
        },
    );
    for (what, size) in [("larger", 2 * G), ("half", G / 2)] {
        list.add(
            format!("import.map {what}"),
            format!("map an imported handle with a size that is {what}"),
            move |r| {
                let handle = r.memory(G)?;
                let fd = r.export(handle).map_err(|error| error.to_string())?;
                let imported = r.import(fd).map_err(|error| error.to_string())?;
                let at = r.reserve(2 * G)?;
                Ok(code(r.map(at, size, 0, imported, 0)))
            },
        );
    }
    list.add(
        "import.NUMA",
        "import host-NUMA memory and read its bytes on the host",
        |r| {
            let (at, handle) = (r.reserve(2 * G)?, r.memory_at(G, NUMA, FD)?);
            let fd = r.export(handle).map_err(|error| error.to_string())?;
            let imported = r.import(fd).map_err(|error| error.to_string())?;
            setup(r.map(at, G, 0, handle, 0))?;
            setup(r.map(at + G as u64, G, 0, imported, 0))?;
            setup(r.access(at, 2 * G, NUMA, 0, 3))?;
            let pointer = at as *mut u8;
            // SAFETY: both mappings have host access.
            let seen = unsafe {
                pointer.write_volatile(0x77);
                pointer.wrapping_add(G).read_volatile()
            };
            Ok(format!("{seen:#x}"))
        },
    );
    for (what, number) in [
        ("-1", -1),
        ("-100", -100),
        ("a number never opened", 1_000_000),
    ] {
        list.add(
            format!("import.fd {what}"),
            format!("import fd {what}"),
            move |r| Ok(code(r.import(number).map(drop))),
        );
    }
    list.add(
        "import.closed",
        "import an exported fd that was closed",
        |r| {
            let handle = r.memory(G)?;
            let fd = r.export(handle).map_err(|error| error.to_string())?;
            r.close(fd);
            Ok(code(r.import(fd).map(drop)))
        },
    );
    let foreign: [(&str, MakeFd); 5] = [
        ("/dev/null", || open("/dev/null")),
        ("a file", || open("/proc/self/exe")),
        ("a directory", || open("/")),
        ("a pipe", || {
            rustix::pipe::pipe()
                .map(|pipe| pipe.0)
                .map_err(|error| error.to_string())
        }),
        ("a memory file", || {
            rustix::fs::memfd_create("other", rustix::fs::MemfdFlags::CLOEXEC)
                .map_err(|error| error.to_string())
        }),
    ];
    for (what, make) in foreign {
        list.add(
            format!("import.{what}"),
            format!("import {what}"),
            move |r| {
                let fd = make()?;
                Ok(code(r.import(fd.as_raw_fd()).map(drop)))
            },
        );
    }
    list.add("import.socket", "import a socket", |r| {
        let (socket, _other) =
            std::os::unix::net::UnixStream::pair().map_err(|error| error.to_string())?;
        Ok(code(r.import(socket.as_raw_fd()).map(drop)))
    });
    for kind in [0, 2, 3, 4, 16] {
        list.add(
            format!("import.type {kind}"),
            format!("import an exported fd as handle type {kind}"),
            move |r| {
                let handle = r.memory(G)?;
                let fd = r.export(handle).map_err(|error| error.to_string())?;
                let value = without_provenance_mut(fd as usize);
                Ok(code(d!(
                    r,
                    cuMemImportFromShareableHandle(&mut 0, value, CUmemAllocationHandleType(kind))
                )))
            },
        );
    }
    list.add("import.null", "import to a null pointer", |r| {
        let handle = r.memory(G)?;
        let fd = r.export(handle).map_err(|error| error.to_string())?;
        let value = without_provenance_mut(fd as usize);
        Ok(code(d!(
            r,
            cuMemImportFromShareableHandle(null_mut(), value, CUmemAllocationHandleType(FD))
        )))
    });
    list.add("limit.export", "export at the process's fd limit", |r| {
        let handle = r.memory(G)?;
        let called = at_limit(|| r.export(handle).map(drop));
        Ok(code(called))
    });
    list.add("limit.create", "create at the process's fd limit", |r| {
        let prop = r.prop(DEVICE, 0, FD);
        let called = at_limit(|| r.create(G, &prop, 0));
        Ok(code(called))
    });
    list.add("limit.import", "import at the process's fd limit", |r| {
        let handle = r.memory(G)?;
        let fd = r.export(handle).map_err(|error| error.to_string())?;
        let called = at_limit(|| r.import(fd).map(drop));
        Ok(code(called))
    });
}

/// Runs while the process may open no more files.
fn at_limit<T>(run: impl FnOnce() -> T) -> T {
    let before = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let mut held: Vec<OwnedFd> = Vec::new();
    let highest = match open("/dev/null") {
        Ok(fd) => fd.as_raw_fd(),
        Err(_) => 64,
    };
    let limit = rustix::process::Rlimit {
        current: u64::try_from(highest + 4).ok(),
        maximum: before.maximum,
    };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, limit);
    while let Ok(fd) = open("/dev/null") {
        held.push(fd);
    }
    let result = run();
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, before);
    drop(held);
    result
}

fn open(path: &str) -> Result<OwnedFd, String> {
    std::fs::File::open(path)
        .map(OwnedFd::from)
        .map_err(|error| error.to_string())
}

fn borrow(fd: c_int) -> BorrowedFd<'static> {
    // SAFETY: exported by the case and open until it ends; only looked at.
    unsafe { BorrowedFd::borrow_raw(fd) }
}
