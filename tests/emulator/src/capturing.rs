//! What a capture does to the driver: which work goes into a graph, and which calls it forbids.

use crate::capture::{Capture, Mode, Status, mode};
use crate::code::{Code, Result};
use crate::core::Core;
use crate::stream::{Kind, Point, Stream};
use crate::thread::Thread;
use std::collections::BTreeMap;

impl Core {
    pub fn begin_capture(&mut self, stream: u64, mode: Mode) -> Result {
        let target = self.streams.get(stream)?;
        match (target.kind, target.capture) {
            (Kind::Legacy, _) => return Err(Code::STREAM_CAPTURE_UNSUPPORTED),
            (_, Some(_)) => return Err(Code::ILLEGAL_STATE),
            _ => {}
        }
        self.captures.begun += 1;
        let id = self.captures.begun;
        let thread = Thread::current();
        self.captures.all.insert(
            id,
            Capture {
                mode,
                thread,
                origin: stream,
                invalidated: false,
                points: BTreeMap::new(),
            },
        );
        self.streams.get_mut(stream)?.capture = Some(id);
        Ok(())
    }

    /// The id of the graph.
    pub fn end_capture(&mut self, stream: u64) -> Result<u64> {
        let id = self
            .streams
            .get(stream)?
            .capture
            .ok_or(Code::ILLEGAL_STATE)?;
        let capture = self.captures.all.get(&id).ok_or(Code::ILLEGAL_STATE)?;
        if capture.mode != Mode::Relaxed && capture.thread != Thread::current() {
            // The real driver ends the capture all the same, without a graph.
            self.leave_capture(id);
            return Err(Code::STREAM_CAPTURE_WRONG_THREAD);
        }
        if capture.origin != stream {
            return Err(Code::STREAM_CAPTURE_UNMATCHED);
        }
        let (invalidated, joined) = (capture.invalidated, capture.is_joined());
        self.leave_capture(id);
        if invalidated {
            return Err(Code::STREAM_CAPTURE_INVALIDATED);
        }
        if !joined {
            return Err(Code::STREAM_CAPTURE_UNJOINED);
        }
        self.captures.ended += 1;
        let graph = self.captures.ended;
        self.captures.graphs.insert(graph);
        Ok(graph)
    }

    pub fn destroy_graph(&mut self, graph: u64) -> Result {
        match self.captures.graphs.remove(&graph) {
            true => Ok(()),
            false => Err(Code::INVALID_VALUE),
        }
    }

    /// A capture goes with the stream that it began on: nobody could end it, and what it forbids
    /// would be forbidden for ever.
    pub fn drop_captures(&mut self, goes: impl Fn(u64, &Stream) -> bool) {
        let origin_goes = |capture: &Capture| {
            let stream = self.streams.get(capture.origin);
            stream.is_ok_and(|stream| goes(capture.origin, stream))
        };
        let captures = self.captures.all.iter();
        let gone = captures.filter(|(_, capture)| origin_goes(capture));
        let gone: Vec<u64> = gone.map(|(id, _)| *id).collect();
        for id in gone {
            self.leave_capture(id);
        }
    }

    fn leave_capture(&mut self, id: u64) {
        self.captures.all.remove(&id);
        for (_, stream) in self.streams.iter_mut() {
            if stream.capture == Some(id) {
                stream.capture = None;
            }
        }
    }

    /// Work for a stream that captures has gone into the graph.
    pub fn add_captured(&mut self, stream: u64) -> Result {
        if let Some(capture) = self.capture_of(stream)? {
            *capture.point(stream).entry(stream).or_default() += 1;
        }
        Ok(())
    }

    /// Where a stream that captures is in the graph.
    pub fn captured_point(&mut self, stream: u64) -> Result<Point> {
        let capture = self.capture_of(stream)?;
        Ok(capture.map_or_else(Point::new, |capture| capture.point(stream).clone()))
    }

    /// What comes next on the stream, which belongs to the capture from here on, comes after the
    /// point.
    pub fn join_capture(&mut self, stream: u64, id: u64, point: &Point) -> Result {
        let capture = self.captures.all.get_mut(&id).ok_or(Code::INVALID_VALUE)?;
        let here = capture.point(stream);
        for (&other, &work) in point {
            let known = here.entry(other).or_default();
            *known = work.max(*known);
        }
        self.streams.get_mut(stream)?.capture = Some(id);
        Ok(())
    }

    fn capture_of(&mut self, stream: u64) -> Result<Option<&mut Capture>> {
        let id = self.streams.get(stream)?.capture;
        Ok(id.and_then(|id| self.captures.all.get_mut(&id)))
    }

    pub fn capture_status(&self, stream: u64) -> Result<(Status, u64)> {
        if self.streams.get(stream)?.kind == Kind::Legacy
            && self.blocking_capture(stream)?.is_some()
        {
            return Err(Code::STREAM_CAPTURE_IMPLICIT);
        }
        Ok(match self.streams.get(stream)?.capture {
            None => (Status::None, 0),
            Some(id) => match self.captures.all.get(&id) {
                Some(capture) if !capture.invalidated => (Status::Active, id),
                _ => (Status::Invalidated, id),
            },
        })
    }

    /// Whether work for the stream goes into a graph instead of running.
    pub fn is_recorded(&mut self, stream: u64) -> Result<bool> {
        if self.streams.get(stream)?.kind == Kind::Legacy
            && let Some(id) = self.blocking_capture(stream)?
        {
            self.invalidate(id);
            return Err(Code::STREAM_CAPTURE_IMPLICIT);
        }
        match self.streams.get(stream)?.capture {
            None => Ok(false),
            Some(id)
                if self
                    .captures
                    .all
                    .get(&id)
                    .is_some_and(|capture| capture.invalidated) =>
            {
                Err(Code::STREAM_CAPTURE_INVALIDATED)
            }
            Some(_) => Ok(true),
        }
    }

    /// For a call that waits for the stream or asks how far it is.
    pub fn no_capture_on(&mut self, stream: u64) -> Result {
        if self.is_recorded(stream)? {
            if let Some(id) = self.streams.get(stream)?.capture {
                self.invalidate(id);
            }
            return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
        }
        Ok(())
    }

    /// For a call that waits for a whole context.
    pub fn no_capture_in(&mut self, context: u64) -> Result {
        if self.captures.all.is_empty() {
            return Ok(());
        }
        let capturing: Vec<u64> = self
            .streams
            .iter()
            .filter(|(_, stream)| stream.context == context)
            .filter_map(|(_, stream)| stream.capture)
            .collect();
        for id in &capturing {
            self.invalidate(*id);
        }
        if capturing.is_empty() {
            Ok(())
        } else {
            Err(Code::STREAM_CAPTURE_UNSUPPORTED)
        }
    }

    /// For a call that CUDA calls potentially unsafe while a capture is under way.
    pub fn safe_in_capture(&mut self) -> Result {
        let this = Thread::current();
        let forbids = |capture: &Capture| match (mode(), capture.mode) {
            (Mode::Relaxed, _) | (_, Mode::Relaxed) => false,
            (Mode::Global, Mode::Global) => true,
            _ => capture.thread == this,
        };
        let forbidding: Vec<u64> = self
            .captures
            .all
            .iter()
            .filter(|(_, capture)| forbids(capture))
            .map(|(id, _)| *id)
            .collect();
        for id in &forbidding {
            self.invalidate(*id);
        }
        if forbidding.is_empty() {
            Ok(())
        } else {
            Err(Code::STREAM_CAPTURE_UNSUPPORTED)
        }
    }

    pub fn invalidate(&mut self, id: u64) {
        if let Some(capture) = self.captures.all.get_mut(&id)
            && !capture.invalidated
        {
            capture.invalidated = true;
            self.misuse.captures_invalidated += 1;
        }
    }

    /// A capture on a stream that the legacy stream of the same context would wait for.
    fn blocking_capture(&self, legacy: u64) -> Result<Option<u64>> {
        if self.captures.all.is_empty() {
            return Ok(None);
        }
        let context = self.streams.get(legacy)?.context;
        let blocking = self.streams.iter().filter(|(_, stream)| {
            stream.context == context && matches!(stream.kind, Kind::Blocking | Kind::PerThread(_))
        });
        Ok(blocking.filter_map(|(_, stream)| stream.capture).next())
    }
}
