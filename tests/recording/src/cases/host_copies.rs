//! Copies between the program's own memory and mapped memory of the host, by who has access to it;
//! access across a hole.

use super::List;
use crate::rig::{DEVICE, FD, G, HOST, NUMA, Rig, code, d, setup, value};

pub fn add(list: &mut List) {
    for (what, kind, handles) in [("host", HOST, 0), ("host NUMA", NUMA, FD)] {
        for (who, place, flags) in [
            ("nobody", DEVICE, 0),
            ("the device to read", DEVICE, 1),
            ("the device", DEVICE, 3),
            ("the host to read", kind, 1),
            ("the host", kind, 3),
        ] {
            let mapped = move |r: &mut Rig| {
                r.current()?;
                let (at, handle) = (r.reserve(G)?, r.memory_at(G, kind, handles)?);
                setup(r.map(at, G, 0, handle, 0))?;
                setup(r.access(at, G, place, 0, flags))?;
                Ok::<u64, String>(at)
            };
            list.add(
                format!("host copy.to {what}, {who}"),
                format!("HtoD to {what} memory that {who} has access to"),
                move |r| {
                    let at = mapped(r)?;
                    let byte = 0x5a_u8;
                    Ok(code(d!(r, cuMemcpyHtoD(at, (&raw const byte).cast(), 1))))
                },
            );
            list.add(
                format!("host copy.from {what}, {who}"),
                format!("DtoH from {what} memory that {who} has access to"),
                move |r| {
                    let at = mapped(r)?;
                    let mut byte = 0x5a_u8;
                    let called = d!(r, cuMemcpyDtoH((&raw mut byte).cast(), at, 1));
                    Ok(value(called.map(|()| byte)))
                },
            );
            list.add(
                format!("host copy.async from {what}, {who}"),
                format!("DtoH async from {what} memory that {who} has access to"),
                move |r| {
                    let at = mapped(r)?;
                    let stream = r.stream(1)?;
                    let mut byte = 0x5a_u8;
                    let to = (&raw mut byte).cast();
                    let called = code(d!(r, cuMemcpyDtoHAsync(to, at, 1, stream)));
                    let waited = code(d!(r, cuStreamSynchronize(stream)));
                    Ok(format!("{called}; synchronize {waited}; {byte}"))
                },
            );
        }
    }
    list.add(
        "access.hole, what it does",
        "set access to a range with a hole: access of the first and the last chunk then",
        |r| {
            let (at, one, other) = (r.reserve(3 * G)?, r.memory(G)?, r.memory(G)?);
            let last = at + 2 * G as u64;
            setup(r.map(at, G, 0, one, 0))?;
            setup(r.map(last, G, 0, other, 0))?;
            let given = code(r.access(at, 3 * G, DEVICE, 0, 3));
            Ok(format!(
                "{given}; first {}, last {}",
                value(r.get_access(at, DEVICE, 0)),
                value(r.get_access(last, DEVICE, 0))
            ))
        },
    );
}
