//! Captures that other streams join through an event, and how they end.

use super::List;
use crate::rig::{G, code, d, setup};

pub fn add(list: &mut List) {
    // Work on the other stream before it is joined back, and after.
    for (name, words, before, after) in [
        ("rejoined", "works and is joined back", true, false),
        (
            "overtaken",
            "works, is joined back, and works on",
            true,
            true,
        ),
        ("idle", "does nothing and is not joined back", false, false),
    ] {
        list.add(
            format!("captured.{name}"),
            format!("another stream waits for a captured event, {words}: how the capture ends"),
            move |r| {
                r.current()?;
                let at = r.mapped(&[G], 3)?;
                let (stream, other, event) = (r.stream(1)?, r.stream(1)?, r.event()?);
                setup(r.begin(stream, 0))?;
                setup(d!(r, cuMemsetD8Async(at, 1, 16, stream)))?;
                setup(d!(r, cuEventRecord(event, stream)))?;
                setup(d!(r, cuStreamWaitEvent(other, event, 0)))?;
                if before {
                    setup(d!(r, cuMemsetD8Async(at, 2, 16, other)))?;
                    setup(d!(r, cuEventRecord(event, other)))?;
                    setup(d!(r, cuStreamWaitEvent(stream, event, 0)))?;
                }
                if after {
                    setup(d!(r, cuMemsetD8Async(at, 3, 16, other)))?;
                }
                let ended = code(r.end(stream));
                Ok(format!("end {ended}; then {}", r.status(other)))
            },
        );
    }
    list.add(
        "captured.event of an ended capture",
        "a stream waits for an event that was recorded in a capture that has ended",
        |r| {
            r.current()?;
            let (stream, other, event) = (r.stream(1)?, r.stream(1)?, r.event()?);
            setup(r.begin(stream, 0))?;
            setup(d!(r, cuEventRecord(event, stream)))?;
            setup(r.end(stream))?;
            let waited = code(d!(r, cuStreamWaitEvent(other, event, 0)));
            Ok(format!("wait {waited}; {}", r.status(other)))
        },
    );
}
