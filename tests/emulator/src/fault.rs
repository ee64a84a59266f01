//! What happens to a call before the driver sees it: it is counted, written down, delayed, refused.

use crate::calls::Calls;
use crate::code::Code;
use crate::config::{Config, LONGEST};
use crate::thread::Thread;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

static FAULTS: Mutex<Faults> = Mutex::new(Faults::new());

#[derive(Debug)]
struct Faults {
    calls: BTreeMap<&'static str, u64>,
    rules: Vec<Rule>,
    next_rule: u64,
    latencies: Vec<(String, Duration)>,
    trace: Option<Vec<Call>>,
}

#[derive(Debug)]
struct Rule {
    id: u64,
    function: Option<String>,
    thread: Option<Thread>,
    /// Calls that still pass before the rule applies.
    pass: u64,
    once: bool,
    code: Code,
    fired: Arc<AtomicU64>,
}

/// A call as the trace shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The C name, such as `cuMemMap`.
    pub function: &'static str,
    /// The thread that called.
    pub thread: Thread,
    /// What it was answered.
    pub code: Code,
}

/// A failure that was asked for. It ends when this is dropped.
#[derive(Debug)]
#[must_use = "the failure ends when this is dropped"]
pub struct Failure {
    id: u64,
    fired: Arc<AtomicU64>,
}

impl Failure {
    /// How many calls were refused so far.
    pub fn fired(&self) -> u64 {
        self.fired.load(Ordering::Relaxed)
    }

    /// Lets the failure go on until the process ends.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Failure {
    fn drop(&mut self) {
        lock().rules.retain(|rule| rule.id != self.id);
    }
}

/// Refuses the `nth` call from now (from 1), or that one and all after it.
pub(crate) fn fail(calls: Calls<'_>, nth: u64, once: bool, code: Code) -> Failure {
    let here = Some(Thread::current());
    let (function, thread) = match calls {
        Calls::Of(function) => (Some(function.to_owned()), None),
        Calls::OfHere(function) => (Some(function.to_owned()), here),
        Calls::AnyHere => (None, here),
        Calls::Any => (None, None),
    };
    let fired = Arc::new(AtomicU64::new(0));
    let mut faults = lock();
    let id = faults.next_rule;
    faults.next_rule += 1;
    let pass = nth.saturating_sub(1);
    faults.rules.push(Rule {
        id,
        function,
        thread,
        pass,
        once,
        code,
        fired: fired.clone(),
    });
    Failure { id, fired }
}

/// What is asked for from the start.
pub(crate) fn configure(config: &Config) {
    for (function, latency) in &config.latencies {
        set_latency(function, *latency);
    }
    for failure in &config.failures {
        let calls = Calls::Of(&failure.function);
        fail(calls, failure.nth, failure.once, failure.code).keep();
    }
}

pub(crate) fn set_latency(function: &str, latency: Duration) {
    let mut faults = lock();
    faults.latencies.retain(|entry| entry.0 != function);
    if !latency.is_zero() {
        faults
            .latencies
            .push((function.to_owned(), latency.min(LONGEST)));
    }
}

pub(crate) fn latency(function: &str) -> Duration {
    lock()
        .latencies
        .iter()
        .find(|entry| entry.0 == function)
        .map_or(Duration::ZERO, |entry| entry.1)
}

pub(crate) fn calls() -> BTreeMap<&'static str, u64> {
    lock().calls.clone()
}

pub(crate) fn start_trace() {
    lock().trace = Some(Vec::new());
}

pub(crate) fn take_trace() -> Vec<Call> {
    lock().trace.take().unwrap_or_default()
}

/// Counts a call and says whether it is to be refused.
pub(crate) fn enter(function: &'static str) -> Result<(), Code> {
    let thread = Thread::current();
    let mut faults = lock();
    *faults.calls.entry(function).or_default() += 1;
    let mut refused = None;
    for rule in &mut faults.rules {
        let counted = match &rule.function {
            Some(wanted) => wanted == function,
            None => !is_quiet(function),
        };
        if !counted || rule.thread.is_some_and(|wanted| wanted != thread) {
            continue;
        }
        if rule.pass > 0 {
            rule.pass -= 1;
        } else if refused.is_none() && !(rule.once && rule.fired.load(Ordering::Relaxed) > 0) {
            rule.fired.fetch_add(1, Ordering::Relaxed);
            refused = Some(rule.code);
        }
    }
    refused.map_or(Ok(()), Err)
}

/// Writes down what the call was answered.
pub(crate) fn leave(function: &'static str, code: Code) {
    if let Some(trace) = &mut lock().trace {
        trace.push(Call {
            function,
            thread: Thread::current(),
            code,
        });
    }
}

fn is_quiet(function: &str) -> bool {
    matches!(
        function,
        "cuGetErrorName" | "cuGetErrorString" | "cuDriverGetVersion" | "cuGetProcAddress"
    )
}

fn lock() -> MutexGuard<'static, Faults> {
    FAULTS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Faults {
    const fn new() -> Self {
        Self {
            calls: BTreeMap::new(),
            rules: Vec::new(),
            next_rule: 0,
            latencies: Vec::new(),
            trace: None,
        }
    }
}
