//! The thread that calls functions of the program.

use crate::code::{Code, Result};
use crate::core::Locked;

/// Sees to it that the functions that are queued will be called.
///
/// The thread waits for more as long as the process lives: what a function keeps in thread-local
/// values is there at the next one on a real driver too.
pub(crate) fn start(core: &mut Locked) -> Result {
    if !core.calls_functions {
        let thread = std::thread::Builder::new().name("vmm-emulator".into());
        thread.spawn(serve).map_err(|_| Code::OPERATING_SYSTEM)?;
        core.calls_functions = true;
    }
    core.wake();
    Ok(())
}

fn serve() {
    let mut core = Locked::new();
    loop {
        let Some(turn) = core.streams.next_function() else {
            core = core.wait_for_functions();
            continue;
        };
        // A context in which work has failed calls no functions any more.
        if core.usable(turn.context).is_ok() {
            // The program may call the driver, here and in the threads that the function waits for.
            drop(core);
            turn.function.call();
            core = Locked::new();
        }
        core.function_returned(turn);
    }
}
