//! Events.

use super::{Out, api};
use crate::code::{Code, Result};
use crate::core::Core;
use crate::stream::Recorded;
use std::ffi::{c_float, c_uint};
use std::time::Instant;

api! {
    fn cuEventCreate as "cuEventCreate"(event: Out<u64>, flags: c_uint) |mut core| {
        event.check()?;
        if flags > 7 || flags & 6 == 4 {
            return Err(Code::INVALID_VALUE);
        }
        if flags & 4 != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        let (context, _) = core.current()?;
        event.set(core.streams.create_event(context, flags))
    }

    fn cuEventDestroy as "cuEventDestroy"(event: u64) |mut core| {
        core.streams.events.remove(&event).map(drop).ok_or(Code::INVALID_HANDLE)
    }

    fn cuEventRecord as "cuEventRecord"(event: u64, stream: u64) |mut core| {
        core.record(event, stream)
    }

    fn cuEventRecordWithFlags as "cuEventRecordWithFlags"(event: u64, stream: u64, flags: c_uint) |mut core| {
        if flags > 1 {
            return Err(Code::INVALID_VALUE);
        }
        core.record(event, stream)
    }

    fn cuEventQuery as "cuEventQuery"(event: u64) |mut core| {
        let recorded = core.observe(event)?;
        core.safe_in_capture()?;
        match recorded {
            Some(Recorded::Behind(_)) => Err(Code::NOT_READY),
            _ => Ok(()),
        }
    }

    fn cuEventSynchronize as "cuEventSynchronize"(event: u64) |mut core| {
        let recorded = core.observe(event)?;
        core.safe_in_capture()?;
        let Some(Recorded::Behind(step)) = recorded else { return Ok(()) };
        // Another thread may destroy the event meanwhile.
        let context = core.event(event)?.context;
        core = core.wait_for(&[step]);
        core.usable(context)
    }

    fn cuEventElapsedTime as "cuEventElapsedTime"(milliseconds: Out<c_float>, start: u64, end: u64) |core| {
        milliseconds.check()?;
        let (start, end) = (core.event(start)?, core.event(end)?);
        let (Some(from), Some(to)) = (start.recorded, end.recorded) else { return Err(Code::INVALID_HANDLE) };
        if !start.timing || !end.timing {
            return Err(Code::INVALID_HANDLE);
        }
        let (Recorded::At(from), Recorded::At(to)) = (from, to) else { return Err(Code::NOT_READY) };
        let forward = to.saturating_duration_since(from);
        let backward = from.saturating_duration_since(to);
        milliseconds.set((forward.as_secs_f32() - backward.as_secs_f32()) * 1e3)
    }
}

impl Core {
    fn event(&self, event: u64) -> Result<crate::stream::Event> {
        self.streams
            .events
            .get(&event)
            .cloned()
            .ok_or(Code::INVALID_HANDLE)
    }

    /// What was recorded, for a call that asks how far that is.
    fn observe(&mut self, event: u64) -> Result<Option<Recorded>> {
        let event = self.event(event)?;
        self.usable(event.context)?;
        if let Some((capture, _)) = event.captured {
            self.invalidate(capture);
            return Err(Code::CAPTURED_EVENT);
        }
        Ok(event.recorded)
    }

    fn record(&mut self, event: u64, stream: u64) -> Result {
        let stream = self.stream(stream)?;
        let known = self.event(event)?;
        if known.context != self.streams.get(stream)?.context {
            return Err(Code::INVALID_HANDLE);
        }
        if self.is_recorded(stream)? {
            let capture = self.streams.get(stream)?.capture;
            let point = self.captured_point(stream)?;
            if let Some(event) = self.streams.events.get_mut(&event) {
                event.captured = capture.map(|capture| (capture, point));
            }
            return Ok(());
        }
        self.streams.record(event, stream, Instant::now())
    }

    /// A stream that waits for an event of a capture joins that capture.
    pub(super) fn wait_event(&mut self, stream: u64, event: u64) -> Result {
        let known = self.event(event)?;
        let recorded = self.is_recorded(stream)?;
        match (known.captured, self.streams.get(stream)?.capture) {
            (Some((theirs, _)), Some(ours)) if theirs != ours => {
                self.invalidate(theirs);
                self.invalidate(ours);
                Err(Code::STREAM_CAPTURE_MERGE)
            }
            (Some((capture, point)), _) => self.join_capture(stream, capture, &point),
            (None, Some(ours)) if recorded && known.recorded.is_some() => {
                self.invalidate(ours);
                Err(Code::STREAM_CAPTURE_ISOLATION)
            }
            (None, Some(_)) => Ok(()),
            (None, None) => self.streams.wait_event(stream, event, Instant::now()),
        }
    }
}
