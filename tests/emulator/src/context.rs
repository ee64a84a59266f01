//! Contexts, and the stack of them that every thread has.

use crate::code::{Code, Result};
use crate::host_function;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::c_uint;

const FIRST_CONTEXT: u64 = 0x5000_0000_0000;
const CONTEXT_STEP: u64 = 0x100;

/// The contexts of one thread, the current one last. It owns nothing, so that it is there until the
/// thread is gone: destructors of other thread-local values may still call the driver.
struct Stack {
    depth: Cell<usize>,
    contexts: [Cell<u64>; MOST_PUSHED],
}

/// A real driver has no such bound.
const MOST_PUSHED: usize = 256;

thread_local! {
    static STACK: Stack = const {
        Stack {
            depth: Cell::new(0),
            contexts: [const { Cell::new(0) }; MOST_PUSHED],
        }
    };
}

#[derive(Debug)]
pub(crate) struct Context {
    /// Ordinal among the visible devices.
    pub device: usize,
    pub flags: c_uint,
    /// Retains of a primary context; 1 for one that was created.
    pub references: usize,
    pub primary: bool,
    /// What every use answers once work has failed.
    pub error: Option<Code>,
}

/// Every context of the process, dead primary ones included: their value comes back.
#[derive(Debug, Default)]
pub(crate) struct Contexts {
    all: BTreeMap<u64, Context>,
    made: u64,
    primary_flags: BTreeMap<usize, c_uint>,
}

impl Contexts {
    pub fn create(&mut self, device: usize, flags: c_uint, primary: bool) -> u64 {
        self.made += 1;
        let id = FIRST_CONTEXT + self.made * CONTEXT_STEP;
        self.all.insert(
            id,
            Context {
                device,
                flags,
                references: 1,
                primary,
                error: None,
            },
        );
        id
    }

    pub fn retain_primary(&mut self, device: usize) -> u64 {
        let flags = self.primary_flags.get(&device).copied().unwrap_or(0);
        let known = self
            .all
            .iter_mut()
            .find(|(_, context)| context.primary && context.device == device);
        match known {
            Some((&id, context)) => {
                if context.references == 0 {
                    context.error = None;
                    context.flags = flags;
                }
                context.references += 1;
                id
            }
            None => self.create(device, flags, true),
        }
    }

    /// The context that died with this release, if it was the last one.
    pub fn release_primary(&mut self, device: usize) -> Result<Option<u64>> {
        let (id, context) = self.primary(device).ok_or(Code::INVALID_CONTEXT)?;
        context.references -= 1;
        Ok((context.references == 0).then_some(id))
    }

    /// The context that died, if there was one.
    pub fn reset_primary(&mut self, device: usize) -> Option<u64> {
        let (id, context) = self.primary(device)?;
        context.references = 0;
        Some(id)
    }

    /// The context of a device that lives.
    pub fn primary_id(&mut self, device: usize) -> Option<u64> {
        self.primary(device).map(|(id, _)| id)
    }

    /// The context that dies with the next release.
    pub fn primary_with_one_reference(&mut self, device: usize) -> Option<u64> {
        let (id, context) = self.primary(device)?;
        (context.references == 1).then_some(id)
    }

    pub fn primary_state(&mut self, device: usize) -> (c_uint, bool) {
        let set = self.primary_flags.get(&device).copied().unwrap_or(0);
        self.primary(device)
            .map_or((set, false), |(_, context)| (context.flags, true))
    }

    pub fn set_primary_flags(&mut self, device: usize, flags: c_uint) {
        self.primary_flags.insert(device, flags);
        if let Some((_, context)) = self.primary(device) {
            context.flags = flags;
        }
    }

    pub fn destroy(&mut self, id: u64) -> Result {
        self.check_created(id)?;
        self.all.remove(&id);
        if top() == Some(id) {
            pop();
        }
        Ok(())
    }

    /// Whether it is one that can be destroyed.
    pub fn check_created(&self, id: u64) -> Result {
        match self.all.get(&id) {
            Some(context) if !context.primary => Ok(()),
            _ => Err(Code::INVALID_CONTEXT),
        }
    }

    /// One that is current somewhere, or that a stream or an event belongs to, stays known by its
    /// value when another thread has destroyed it.
    pub fn get(&self, id: u64) -> Result<&Context> {
        match self.all.get(&id) {
            Some(context) if context.references > 0 => Ok(context),
            None if !self.was_made(id) => Err(Code::INVALID_CONTEXT),
            _ => Err(Code::CONTEXT_IS_DESTROYED),
        }
    }

    /// Whether the program may name it: a primary context after its end too, since its value comes
    /// back.
    pub fn check_known(&self, id: u64) -> Result {
        match self.all.contains_key(&id) {
            true => Ok(()),
            false => Err(Code::INVALID_CONTEXT),
        }
    }

    /// The one that the program names by its value.
    pub fn named(&self, id: u64) -> Result<&Context> {
        self.check_known(id)?;
        self.get(id)
    }

    fn was_made(&self, id: u64) -> bool {
        let made = FIRST_CONTEXT + CONTEXT_STEP..=FIRST_CONTEXT + self.made * CONTEXT_STEP;
        made.contains(&id) && id.is_multiple_of(CONTEXT_STEP)
    }

    /// Fails the context for good.
    pub fn poison(&mut self, id: u64, code: Code) {
        if let Some(context) = self.all.get_mut(&id) {
            context.error.get_or_insert(code);
        }
    }

    /// The context whose work this thread may queue, unless something there has failed before.
    pub fn usable(&self) -> Result<u64> {
        if host_function::is_inside() {
            return Err(Code::NOT_PERMITTED);
        }
        let id = top().ok_or(Code::INVALID_CONTEXT)?;
        match self.get(id)?.error {
            Some(code) => Err(code),
            None => Ok(id),
        }
    }

    pub fn alive(&self) -> usize {
        self.all
            .values()
            .filter(|context| context.references > 0)
            .count()
    }

    fn primary(&mut self, device: usize) -> Option<(u64, &mut Context)> {
        let mut alive = self
            .all
            .iter_mut()
            .filter(|(_, context)| context.references > 0);
        alive
            .find(|(_, context)| context.primary && context.device == device)
            .map(|(&id, context)| (id, context))
    }
}

/// The calling thread's current context.
pub(crate) fn top() -> Option<u64> {
    STACK.with(|stack| {
        let place = stack.contexts.get(stack.depth.get().checked_sub(1)?)?;
        Some(place.get())
    })
}

pub(crate) fn push(context: u64) -> Result {
    STACK.with(|stack| {
        let depth = stack.depth.get();
        let place = stack.contexts.get(depth).ok_or(Code::OUT_OF_MEMORY)?;
        place.set(context);
        stack.depth.set(depth + 1);
        Ok(())
    })
}

pub(crate) fn pop() -> Option<u64> {
    let context = top()?;
    STACK.with(|stack| stack.depth.set(stack.depth.get() - 1));
    Some(context)
}
