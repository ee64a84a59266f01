//! Streams: work in order, finished when its time has come.
//!
//! There is no thread behind a stream. Work is over a while after what it waits for; whoever calls
//! the driver at or after that time finds it done. Without latencies that is at once. Only
//! functions of the program are called by a thread, one for all streams.

use crate::code::{Code, Result};
use crate::copy::Work;
use crate::queue::{Over, Queue, Task, Turn};
use crate::thread::Thread;
use std::collections::{BTreeMap, BTreeSet, HashMap};
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
    /// The last step queued on it, as long as that is not over.
    last: Option<u64>,
    pub capture: Option<u64>,
    /// Nobody can name it any more, but it has work left that others may have to wait for.
    gone: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Legacy,
    PerThread(Thread),
    Blocking,
    NonBlocking,
}

#[derive(Debug, Clone)]
pub(crate) struct Event {
    pub context: u64,
    /// `None` before any record.
    pub recorded: Option<Recorded>,
    /// The capture that it was last recorded in, and where.
    pub captured: Option<(u64, Point)>,
    pub timing: bool,
}

/// A place in a graph under way: how much of each stream's captured work comes before it.
pub(crate) type Point = BTreeMap<u64, u64>;

/// When an event was recorded last.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Recorded {
    /// The step that has to be over.
    Behind(u64),
    At(Instant),
}

/// Streams, what they have to do, and the events.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    all: BTreeMap<u64, Stream>,
    pub events: BTreeMap<u64, Event>,
    queue: Queue,
    /// The streams with something left to do.
    busy: BTreeSet<u64>,
    /// The default streams.
    built_in: HashMap<(u64, Kind), u64>,
    made: u64,
    /// How many hold them. While somebody does, no work is ever done.
    held: usize,
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
                last: None,
                capture: None,
                gone: false,
            },
        );
        stream
    }

    /// The legacy or per-thread stream of a context, made when first used.
    pub fn built_in(&mut self, context: u64, kind: Kind) -> u64 {
        match self.built_in.get(&(context, kind)) {
            Some(&stream) => stream,
            None => {
                let stream = self.create(context, kind, 0);
                self.built_in.insert((context, kind), stream);
                stream
            }
        }
    }

    /// A thread takes its default streams along.
    pub fn drop_thread(&mut self, thread: Thread) {
        let kind = Kind::PerThread(thread);
        let (all, mut gone) = (&mut self.all, Vec::new());
        self.built_in.retain(|(_, theirs), stream| {
            let known = all.get_mut(stream);
            match known.filter(|_| *theirs == kind) {
                Some(known) => {
                    known.gone = true;
                    known.capture = None;
                    gone.push(*stream);
                    false
                }
                None => true,
            }
        });
        for stream in gone {
            self.bury(stream);
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
        let left = self.get_mut(stream)?;
        left.gone = true;
        left.capture = None;
        self.bury(stream);
        Ok(())
    }

    /// Forgets a stream that nobody can name once its work is done.
    fn bury(&mut self, stream: u64) {
        let known = self.all.get(&stream);
        if known.is_some_and(|known| known.gone && known.last.is_none()) {
            self.all.remove(&stream);
        }
    }

    /// A context takes its streams and events along.
    pub fn drop_context(&mut self, context: u64, now: Instant) {
        self.queue.drop_context(context, now);
        self.events.retain(|_, event| event.context != context);
        self.built_in.retain(|(theirs, _), _| *theirs != context);
        let (all, busy) = (&mut self.all, &mut self.busy);
        all.retain(|stream, known| {
            let stays = known.context != context;
            if !stays {
                busy.remove(stream);
            }
            stays
        });
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

    /// Queues a task behind everything that the stream waits for.
    pub fn enqueue(
        &mut self,
        stream: u64,
        task: Task,
        latency: Duration,
        now: Instant,
    ) -> Result<u64> {
        self.enqueue_behind(stream, None, task, latency, now)
    }

    fn enqueue_behind(
        &mut self,
        stream: u64,
        other: Option<u64>,
        task: Task,
        latency: Duration,
        now: Instant,
    ) -> Result<u64> {
        let mut after = self.awaited_by(stream)?;
        after.extend(other);
        let context = self.get(stream)?.context;
        let step = self
            .queue
            .push((stream, context), task, latency, &after, now);
        self.get_mut(stream)?.last = Some(step);
        self.busy.insert(stream);
        Ok(step)
    }

    /// Remembers where the stream is now.
    pub fn record(&mut self, event: u64, stream: u64, now: Instant) -> Result {
        if !self.events.contains_key(&event) {
            return Err(Code::INVALID_HANDLE);
        }
        let recorded = if self.is_busy(stream)? {
            Recorded::Behind(self.enqueue(stream, Task::Mark(event), Duration::ZERO, now)?)
        } else {
            Recorded::At(now)
        };
        let event = self.events.get_mut(&event).ok_or(Code::INVALID_HANDLE)?;
        event.recorded = Some(recorded);
        event.captured = None;
        Ok(())
    }

    pub fn wait_event(&mut self, stream: u64, event: u64, now: Instant) -> Result {
        let event = self.events.get(&event).ok_or(Code::INVALID_HANDLE)?;
        if let Some(Recorded::Behind(step)) = event.recorded {
            self.enqueue_behind(stream, Some(step), Task::Nothing, Duration::ZERO, now)?;
        }
        Ok(())
    }

    /// The steps that whatever is queued on the stream now waits for. The legacy stream and the
    /// blocking ones wait for each other.
    pub fn awaited_by(&self, stream: u64) -> Result<Vec<u64>> {
        let this = self.get(stream)?;
        let mut steps = Vec::from_iter(this.last);
        match this.kind {
            Kind::NonBlocking => {}
            Kind::Legacy => {
                let others = self.busy.iter().filter_map(|other| self.all.get(other));
                let awaited = others.filter(|other| {
                    other.context == this.context
                        && matches!(other.kind, Kind::Blocking | Kind::PerThread(_))
                });
                steps.extend(awaited.filter_map(|other| other.last));
            }
            Kind::Blocking | Kind::PerThread(_) => {
                let legacy = self.built_in.get(&(this.context, Kind::Legacy));
                let legacy = legacy.and_then(|legacy| self.all.get(legacy));
                steps.extend(legacy.and_then(|legacy| legacy.last));
            }
        }
        Ok(steps)
    }

    /// Whether something is left of what the stream waits for.
    pub fn is_busy(&self, stream: u64) -> Result<bool> {
        Ok(!self.awaited_by(stream)?.is_empty())
    }

    /// The steps that have to be over so that all is that the context was given so far.
    pub fn left_in(&self, context: u64) -> Vec<u64> {
        let busy = self.busy.iter().filter_map(|stream| self.all.get(stream));
        busy.filter(|stream| stream.context == context)
            .filter_map(|stream| stream.last)
            .collect()
    }

    pub fn is_over(&self, step: u64) -> bool {
        self.queue.is_over(step)
    }

    pub fn hold(&mut self, more: bool) {
        self.held = match more {
            true => self.held.saturating_add(1),
            false => self.held.saturating_sub(1),
        };
    }

    pub fn is_held(&self) -> bool {
        self.held > 0
    }

    /// When there is something to do; `None` while streams are held and functions have to return.
    pub fn next(&self) -> Option<Instant> {
        self.queue.next().filter(|_| !self.is_held())
    }

    /// Whether functions are to be called sooner or later.
    pub fn has_functions(&self) -> bool {
        self.queue.has_functions()
    }

    /// Takes out the next work whose time has come.
    pub fn due(&mut self, now: Instant) -> Option<Work> {
        while !self.is_held() {
            let over = self.queue.due(now)?;
            if let Task::Work(work) = self.end(over) {
                return Some(work);
            }
        }
        None
    }

    /// The function to call now.
    pub fn next_function(&mut self) -> Option<Turn> {
        match self.is_held() {
            true => None,
            false => self.queue.call(),
        }
    }

    pub fn function_returned(&mut self, turn: Turn, now: Instant) {
        if let Some(over) = self.queue.returned(turn, now) {
            self.end(over);
        }
    }

    /// What a stream and an event learn from the end of a step.
    fn end(&mut self, over: Over) -> Task {
        if let Some(stream) = self.all.get_mut(&over.stream)
            && stream.last == Some(over.step)
        {
            stream.last = None;
            self.busy.remove(&over.stream);
            self.bury(over.stream);
        }
        if let Task::Mark(event) = over.task
            && let Some(event) = self.events.get_mut(&event)
            && let Some(Recorded::Behind(step)) = event.recorded
            && step == over.step
        {
            event.recorded = Some(Recorded::At(over.at));
        }
        over.task
    }

    pub fn queued(&self) -> impl Iterator<Item = &Work> {
        self.queue.work()
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
