//! What streams have still to do, and what of it waits for what.

use crate::copy::Work;
use crate::host_function::HostFunction;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// What a stream does at one point.
#[derive(Debug)]
pub(crate) enum Task {
    Work(Work),
    /// It is over when the function has returned.
    Call(HostFunction),
    /// An event learns the time.
    Mark(u64),
    /// Only the order counts.
    Nothing,
}

/// A task in its place.
#[derive(Debug)]
struct Step {
    stream: u64,
    context: u64,
    task: Task,
    latency: Duration,
    /// When it was issued, or when the last of what it waited for was over.
    earliest: Instant,
    /// How many steps it still waits for.
    waits_for: usize,
    awaited_by: Vec<u64>,
}

impl Step {
    fn due(&self) -> Instant {
        self.earliest + self.latency
    }
}

/// A step that is over.
#[derive(Debug)]
pub(crate) struct Over {
    pub step: u64,
    pub stream: u64,
    pub at: Instant,
    pub task: Task,
}

/// A function whose turn it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    pub step: u64,
    pub context: u64,
    pub function: HostFunction,
}

/// The steps that are not over, by number in the order of issue.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    steps: BTreeMap<u64, Step>,
    /// The steps that wait for no other, by the time at which they are over or, if functions, to be
    /// called.
    ready: BTreeSet<(Instant, u64)>,
    /// Functions to be called, in that order.
    calls: VecDeque<u64>,
    /// The function that was called and has not returned.
    called: Option<u64>,
    /// How many steps are functions.
    functions: usize,
    issued: u64,
}

impl Queue {
    /// A step behind others, of which some may be over.
    pub fn push(
        &mut self,
        (stream, context): (u64, u64),
        task: Task,
        latency: Duration,
        after: &[u64],
        now: Instant,
    ) -> u64 {
        self.issued += 1;
        let number = self.issued;
        let mut step = Step {
            stream,
            context,
            task,
            latency,
            earliest: now,
            waits_for: 0,
            awaited_by: Vec::new(),
        };
        for earlier in after {
            if let Some(earlier) = self.steps.get_mut(earlier) {
                earlier.awaited_by.push(number);
                step.waits_for += 1;
            }
        }
        if step.waits_for == 0 {
            self.ready.insert((step.due(), number));
        }
        self.functions += usize::from(matches!(step.task, Task::Call(_)));
        self.steps.insert(number, step);
        number
    }

    pub fn is_over(&self, step: u64) -> bool {
        !self.steps.contains_key(&step)
    }

    /// When there is something to do; `None` while functions have to return first.
    pub fn next(&self) -> Option<Instant> {
        self.ready.first().map(|first| first.0)
    }

    /// Ends the next step whose time has come. A function is only put up to be called.
    pub fn due(&mut self, now: Instant) -> Option<Over> {
        loop {
            let &(at, number) = self.ready.first().filter(|first| first.0 <= now)?;
            if let Some(step) = self.steps.get(&number)
                && matches!(step.task, Task::Call(_))
            {
                self.ready.pop_first();
                self.calls.push_back(number);
                continue;
            }
            return self.end(number, at);
        }
    }

    /// The function to call now. One at a time, whatever stream it is of, as recorded.
    pub fn call(&mut self) -> Option<Turn> {
        while let Some(step) = self.calls.pop_front() {
            // It may have gone with its context.
            if let Some(Step {
                context,
                task: Task::Call(function),
                ..
            }) = self.steps.get(&step)
            {
                self.called = Some(step);
                return Some(Turn {
                    step,
                    context: *context,
                    function: *function,
                });
            }
        }
        None
    }

    /// The function that was called has returned.
    pub fn returned(&mut self, turn: Turn, at: Instant) -> Option<Over> {
        self.called = None;
        self.end(turn.step, at)
    }

    /// Whether functions are to be called sooner or later.
    pub fn has_functions(&self) -> bool {
        self.functions > 0
    }

    /// Forgets what a context had still to do, but for a function that has been called.
    pub fn drop_context(&mut self, context: u64, now: Instant) {
        let gone: Vec<u64> = self
            .steps
            .iter()
            .filter(|(number, step)| step.context == context && self.called != Some(**number))
            .map(|(number, _)| *number)
            .collect();
        for number in gone {
            self.end(number, now);
        }
    }

    pub fn work(&self) -> impl Iterator<Item = &Work> {
        self.steps.values().filter_map(|step| match &step.task {
            Task::Work(work) => Some(work),
            _ => None,
        })
    }

    fn end(&mut self, number: u64, at: Instant) -> Option<Over> {
        let over = self.steps.remove(&number)?;
        self.ready.remove(&(over.due(), number));
        self.functions -= usize::from(matches!(over.task, Task::Call(_)));
        for follower in over.awaited_by {
            if let Some(step) = self.steps.get_mut(&follower) {
                step.earliest = step.earliest.max(at);
                step.waits_for -= 1;
                if step.waits_for == 0 {
                    self.ready.insert((step.due(), follower));
                }
            }
        }
        Some(Over {
            step: number,
            stream: over.stream,
            at,
            task: over.task,
        })
    }
}
