//! The one driver of the process, and the way into it.

use crate::abi::MemLocation;
use crate::capture::Captures;
use crate::code::{Code, Result};
use crate::config::{Config, Peers};
use crate::context::Contexts;
use crate::copy::Work;
use crate::device::{self, Device};
use crate::fault;
use crate::linear::Linear;
use crate::memory::Memory;
use crate::misuse::Misuse;
use crate::queue::Turn;
use crate::space::Space;
use crate::stream::Streams;
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

static CONFIG: OnceLock<std::result::Result<Config, String>> = OnceLock::new();
static CORE: LazyLock<Mutex<Core>> =
    LazyLock::new(|| Mutex::new(Core::new(config().clone().unwrap_or_default())));
static CHANGED: Condvar = Condvar::new();
/// The process that called `cuInit`; 0 before. Read without the lock: a forked child may find the
/// lock held for ever.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// Host memory of a context.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pinned {
    pub size: u64,
    /// Not the program's own.
    pub allocated: bool,
    pub context: u64,
}

/// Everything the driver knows.
#[derive(Debug)]
pub(crate) struct Core {
    pub config: Config,
    pub devices: Vec<Device>,
    pub space: Space,
    pub memory: Memory,
    pub contexts: Contexts,
    pub streams: Streams,
    pub captures: Captures,
    pub misuse: Misuse,
    /// Host memory that `cuMemAllocHost` gave and `cuMemHostRegister` knows, by its start.
    pub pinned: BTreeMap<u64, Pinned>,
    /// What `cuMemAlloc` gave.
    pub linear: Linear,
    /// Which device of a context may use which other one's memory under `cuCtxEnablePeerAccess`.
    pub enabled_peers: Vec<(u64, usize)>,
    /// Bytes of the host.
    pub host_memory: u64,
    /// Whether there is a thread that calls functions of the program.
    pub calls_functions: bool,
}

impl Core {
    fn new(config: Config) -> Self {
        let mut space = Space::default();
        space.host_touch = config.host_touch;
        Self {
            devices: device::visible(&config),
            space,
            config,
            memory: Memory::default(),
            contexts: Contexts::default(),
            streams: Streams::default(),
            captures: Captures::default(),
            misuse: Misuse::default(),
            pinned: BTreeMap::new(),
            linear: Linear::default(),
            enabled_peers: Vec::new(),
            host_memory: host_memory(),
            calls_functions: false,
        }
    }

    /// The device of an ordinal.
    pub fn device(&self, ordinal: i32) -> Result<&Device> {
        usize::try_from(ordinal)
            .ok()
            .and_then(|index| self.devices.get(index))
            .ok_or(Code::INVALID_DEVICE)
    }

    /// The ordinal of a UUID, where that device is visible.
    pub fn ordinal_of(&self, uuid: [u8; 16]) -> Option<usize> {
        self.devices
            .iter()
            .position(|device| device.config.uuid == uuid)
    }

    /// Whether the device with one ordinal may use the memory of the other's.
    pub fn may_access(&self, from: usize, to: usize) -> bool {
        let (Some(from), Some(to)) = (self.devices.get(from), self.devices.get(to)) else {
            return false;
        };
        from.machine_index == to.machine_index
            || match &self.config.peers {
                Peers::All => true,
                Peers::None => false,
                Peers::Pairs(pairs) => pairs.contains(&(from.machine_index, to.machine_index)),
            }
    }

    /// The current context, usable, with the place of its device.
    pub fn current(&self) -> Result<(u64, MemLocation)> {
        let context = self.contexts.usable()?;
        Ok((context, self.location_of(context)?))
    }

    /// Whether nothing has failed in a context that lives.
    pub fn usable(&self, context: u64) -> Result {
        self.contexts.get(context)?.error.map_or(Ok(()), Err)
    }

    pub fn location_of(&self, context: u64) -> Result<MemLocation> {
        let device = self.contexts.get(context)?.device;
        Ok(MemLocation {
            kind: MemLocation::DEVICE,
            id: i32::try_from(device).unwrap_or(-1),
        })
    }

    /// Does all work whose time has come.
    pub fn advance(&mut self, now: Instant) {
        while let Some(work) = self.streams.due(now) {
            self.perform_on_stream(&work);
        }
    }

    /// Work on a stream has nobody to answer: what fails there fails the context.
    pub fn perform_on_stream(&mut self, work: &Work) {
        if self
            .contexts
            .get(work.context)
            .is_ok_and(|context| context.error.is_none())
            && work.perform(&self.space).is_err()
        {
            self.misuse.use_after_unmap += 1;
            self.contexts.poison(work.context, Code::ILLEGAL_ADDRESS);
        }
    }
}

/// The driver, locked by the calling thread.
pub(crate) struct Locked(MutexGuard<'static, Core>);

impl Locked {
    pub fn new() -> Self {
        let mut core = CORE.lock().unwrap_or_else(PoisonError::into_inner);
        core.advance(Instant::now());
        Self(core)
    }

    /// Lets other threads in until these steps are over. What is queued after them is not waited for.
    pub fn wait_for(mut self, steps: &[u64]) -> Self {
        while !steps.iter().all(|step| self.streams.is_over(*step)) {
            let next = self.streams.next();
            self = self.wait_until(next);
        }
        self
    }

    /// The same for all that a context was given so far, which may be using what goes next.
    pub fn finish(self, context: u64) -> Self {
        let steps = self.streams.left_in(context);
        self.wait_for(&steps)
    }

    /// Lets other threads in until there may be a function to call. The rest is left to whoever waits
    /// for it.
    pub fn wait_for_functions(self) -> Self {
        let next = self.streams.next().filter(|_| self.streams.has_functions());
        self.wait_until(next)
    }

    /// Without a time, whoever makes something to do wakes us.
    fn wait_until(self, next: Option<Instant>) -> Self {
        let core = match next {
            Some(next) => {
                let time = next.saturating_duration_since(Instant::now());
                let waited = CHANGED.wait_timeout(self.0, time);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            None => CHANGED.wait(self.0).unwrap_or_else(PoisonError::into_inner),
        };
        let mut core = Self(core);
        core.advance(Instant::now());
        core
    }

    /// Takes hold of all streams, or lets go of one hold.
    pub fn hold_streams(&mut self, more: bool) {
        self.streams.hold(more);
        self.wake();
    }

    /// Something was made to do: those who wait look again.
    pub fn wake(&self) {
        CHANGED.notify_all();
    }

    pub fn function_returned(&mut self, turn: Turn) {
        let now = Instant::now();
        self.streams.function_returned(turn, now);
        self.advance(now);
        self.wake();
    }

    /// What a context had queued goes with it, and whoever waits for that goes on.
    pub fn drop_streams(&mut self, context: u64) {
        self.drop_captures(|_, stream| stream.context == context);
        self.streams.drop_context(context, Instant::now());
        self.wake();
    }
}

impl Deref for Locked {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.0
    }
}

impl DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut Core {
        &mut self.0
    }
}

/// Fixes the configuration; `false` when the emulator was used or configured before.
pub(crate) fn install(config: Config) -> bool {
    let mut taken = false;
    let _ = CONFIG.get_or_init(|| {
        taken = true;
        fault::configure(&config);
        Ok(config)
    });
    taken
}

/// The configuration in force; the environment's when nobody installed one.
pub(crate) fn config() -> &'static std::result::Result<Config, String> {
    CONFIG.get_or_init(|| {
        let config = Config::from_env()?;
        config.check()?;
        fault::configure(&config);
        Ok(config)
    })
}

/// The process that initialised the driver; 0 before.
pub(crate) fn owner() -> i32 {
    OWNER.load(Ordering::Acquire)
}

/// This process has initialised the driver.
pub(crate) fn own() {
    OWNER.store(process(), Ordering::Release);
}

/// Whether this very process has initialised the driver.
pub(crate) fn is_ready() -> bool {
    owner() == process()
}

/// Whether this is a child of the process that has initialised the driver.
pub(crate) fn is_forked() -> bool {
    owner() != 0 && !is_ready()
}

fn process() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

fn host_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.map_or(u64::MAX, |kib| kib << 10)
}
