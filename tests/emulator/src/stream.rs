//! Streams: work in order, finished when its time has come.
//!
//! There is no thread behind a stream. Work gets the time at which it will be done; whoever calls
//! the driver at or after that time finds it done. Without latencies that is at once.

use crate::capture::Point;
use crate::code::{Code, Result};
use crate::copy::Work;
use crate::thread::Thread;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_int, c_uint};
use std::time::{Duration, Instant};

const FIRST_STREAM: u64 = 0x6000_0000_0000;
const STREAM_STEP: u64 = 0x20;

#[derive(Debug)]
pub(crate) struct Stream {
    pub context: u64,
    pub kind: Kind,
    pub priority: c_int,
    pub id: u64,
    /// When the last work queued on it will be done.
    finish: Option<Instant>,
    pub capture: Option<u64>,
    /// The events that it waits for, as they were recorded when it was told to.
    waits: Vec<(Instant, u64)>,
    /// Destroyed, with work left that others may have to wait for.
    gone: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Legacy,
    PerThread(Thread),
    Blocking,
    NonBlocking,
}

#[derive(Debug)]
struct Queued {
    stream: u64,
    work: Work,
}

#[derive(Debug, Clone)]
pub(crate) struct Event {
    pub context: u64,
    /// When the work before the record is done; `None` before any record.
    pub recorded: Option<(Instant, u64)>,
    /// The capture that it was last recorded in, and where.
    pub captured: Option<(u64, Point)>,
    pub timing: bool,
}

/// Streams, their queues and the events.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    all: BTreeMap<u64, Stream>,
    pub events: BTreeMap<u64, Event>,
    queue: BTreeMap<(Instant, u64), Queued>,
    /// Order of issue.
    issued: u64,
    made: u64,
    /// While held, no work is ever done.
    pub held: bool,
}

impl Streams {
    pub fn create(&mut self, context: u64, kind: Kind, priority: c_int) -> u64 {
        self.made += 1;
        let stream = FIRST_STREAM + self.made * STREAM_STEP;
        self.all.insert(
            stream,
            Stream {
                context,
                kind,
                priority,
                id: self.made,
                finish: None,
                capture: None,
                waits: Vec::new(),
                gone: false,
            },
        );
        stream
    }

    /// The legacy or per-thread stream of a context, made when first used.
    pub fn built_in(&mut self, context: u64, kind: Kind) -> u64 {
        let known = self
            .all
            .iter()
            .find(|(_, stream)| stream.context == context && stream.kind == kind);
        match known {
            Some((&stream, _)) => stream,
            None => self.create(context, kind, 0),
        }
    }

    pub fn get(&self, stream: u64) -> Result<&Stream> {
        let known = self.all.get(&stream).filter(|known| !known.gone);
        known.ok_or(Code::INVALID_HANDLE)
    }

    pub fn get_mut(&mut self, stream: u64) -> Result<&mut Stream> {
        let known = self.all.get_mut(&stream).filter(|known| !known.gone);
        known.ok_or(Code::INVALID_HANDLE)
    }

    /// Work already queued goes on.
    pub fn destroy(&mut self, stream: u64) -> Result {
        match self.get(stream)?.kind {
            Kind::Blocking | Kind::NonBlocking => {
                let left = self.get_mut(stream)?;
                left.gone = true;
                left.capture = None;
                self.bury(stream);
                Ok(())
            }
            Kind::Legacy | Kind::PerThread(_) => Err(Code::INVALID_HANDLE),
        }
    }

    /// Forgets a destroyed stream once its work is done.
    fn bury(&mut self, stream: u64) {
        if self.all.get(&stream).is_some_and(|known| known.gone)
            && !self.queue.values().any(|queued| queued.stream == stream)
        {
            self.all.remove(&stream);
        }
    }

    /// A context takes its streams and events along.
    pub fn drop_context(&mut self, context: u64) {
        self.all.retain(|_, stream| stream.context != context);
        self.events.retain(|_, event| event.context != context);
        self.queue
            .retain(|_, queued| queued.work.context != context);
    }

    pub fn create_event(&mut self, context: u64, flags: c_uint) -> u64 {
        self.made += 1;
        let event = FIRST_STREAM + self.made * STREAM_STEP;
        self.events.insert(
            event,
            Event {
                context,
                recorded: None,
                captured: None,
                timing: flags & 2 == 0,
            },
        );
        event
    }

    /// Queues work behind everything that the stream waits for.
    pub fn enqueue(&mut self, stream: u64, work: Work, latency: Duration, now: Instant) -> Result {
        let finish = self.tail(stream)?.map_or(now, |tail| tail.max(now)) + latency;
        self.issued += 1;
        self.queue
            .insert((finish, self.issued), Queued { stream, work });
        self.get_mut(stream)?.finish = Some(finish);
        Ok(())
    }

    /// Remembers where the stream is now.
    pub fn record(&mut self, event: u64, stream: u64, now: Instant) -> Result {
        let tail = self.tail(stream)?.map_or(now, |tail| tail.max(now));
        let issued = self.issued;
        let event = self.events.get_mut(&event).ok_or(Code::INVALID_HANDLE)?;
        event.recorded = Some((tail, issued));
        event.captured = None;
        Ok(())
    }

    pub fn wait_event(&mut self, stream: u64, event: u64) -> Result {
        let event = self.events.get(&event).ok_or(Code::INVALID_HANDLE)?;
        let recorded = event.recorded;
        let pending = recorded.filter(|recorded| self.pending_before(*recorded).is_some());
        let earlier = std::mem::take(&mut self.get_mut(stream)?.waits);
        let waits = earlier
            .into_iter()
            .filter(|recorded| self.pending_before(*recorded).is_some())
            .chain(pending)
            .collect();
        let stream = self.get_mut(stream)?;
        stream.waits = waits;
        if let Some((time, _)) = recorded {
            stream.finish = Some(stream.finish.map_or(time, |finish| finish.max(time)));
        }
        Ok(())
    }

    /// When everything is done that work queued on the stream now would wait for.
    fn tail(&self, stream: u64) -> Result<Option<Instant>> {
        let awaited = self.awaited_by(stream)?;
        Ok(self
            .all
            .iter()
            .filter(|(id, _)| awaited.contains(id))
            .filter_map(|(_, stream)| stream.finish)
            .max())
    }

    /// The legacy stream and the blocking ones wait for each other.
    fn awaited_by(&self, stream: u64) -> Result<BTreeSet<u64>> {
        let this = self.get(stream)?;
        let waits = |other: &Stream| {
            other.context == this.context
                && match (this.kind, other.kind) {
                    (Kind::NonBlocking, _) | (_, Kind::NonBlocking) => false,
                    (Kind::Legacy, _) | (_, Kind::Legacy) => true,
                    _ => false,
                }
        };
        Ok(self
            .all
            .iter()
            .filter(|(id, other)| **id == stream || waits(other))
            .map(|(id, _)| *id)
            .collect())
    }

    /// When the work that the stream waits for is done; `None` when nothing is left of it.
    pub fn pending(&self, stream: u64) -> Result<Option<Instant>> {
        let awaited = self.awaited_by(stream)?;
        let queued = self
            .queue
            .iter()
            .filter(|(_, queued)| awaited.contains(&queued.stream))
            .map(|(key, _)| key.0)
            .next_back();
        let events = self
            .all
            .iter()
            .filter(|(id, _)| awaited.contains(id))
            .flat_map(|(_, stream)| &stream.waits)
            .filter_map(|recorded| self.pending_before(*recorded));
        Ok(events.chain(queued).max())
    }

    /// The same for a whole context.
    pub fn pending_in(&self, context: u64) -> Option<Instant> {
        let queued = self
            .queue
            .iter()
            .filter(|(_, queued)| queued.work.context == context);
        let queued = queued.map(|(key, _)| key.0).next_back();
        // What its streams wait for may be another context's.
        let events = self
            .all
            .values()
            .filter(|stream| stream.context == context)
            .flat_map(|stream| &stream.waits)
            .filter_map(|recorded| self.pending_before(*recorded));
        events.chain(queued).max()
    }

    /// The same for what was issued before an event was recorded.
    pub fn pending_before(&self, recorded: (Instant, u64)) -> Option<Instant> {
        let queued = self
            .queue
            .range(..=(recorded.0, u64::MAX))
            .filter(|(key, _)| key.1 <= recorded.1);
        queued.map(|(key, _)| key.0).next_back()
    }

    /// Takes out the next work whose time has come.
    pub fn due(&mut self, now: Instant) -> Option<Work> {
        if self.held || self.queue.first_key_value()?.0.0 > now {
            return None;
        }
        let (_, queued) = self.queue.pop_first()?;
        self.bury(queued.stream);
        Some(queued.work)
    }

    pub fn queued(&self) -> impl Iterator<Item = &Work> {
        self.queue.values().map(|queued| &queued.work)
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&u64, &mut Stream)> {
        self.all.iter_mut()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&u64, &Stream)> {
        self.all.iter()
    }

    /// Streams that the program made, and its events.
    pub fn counts(&self) -> (usize, usize) {
        let made = self
            .all
            .values()
            .filter(|stream| matches!(stream.kind, Kind::Blocking | Kind::NonBlocking))
            .filter(|stream| !stream.gone);
        (made.count(), self.events.len())
    }
}
