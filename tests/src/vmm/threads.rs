//! Many threads at once: invariant 12.

use std::cell::RefCell;
use std::sync::Barrier;

use vmm::Buffer;

use super::{exact, expect_pattern, write_pattern};
use crate::{Case, Context, Failure, cases};

pub const CASES: &[Case] = cases![
    invariant_12_threads_that_grow_aliases_of_one_buffer_never_mix,
    invariant_12_buffers_are_made_and_dropped_on_any_thread,
    invariant_12_a_buffer_in_a_thread_local_goes_with_the_thread,
];

const THREADS: usize = 8;

fn on_threads(work: impl Fn(usize) -> Result<(), Failure> + Sync) -> Result<(), Failure> {
    let work = &work;
    let start = &Barrier::new(THREADS);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|number| {
                scope.spawn(move || {
                    start.wait();
                    work(number)
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err(Failure::new("a thread panicked")))
        })
    })
}

fn invariant_12_threads_that_grow_aliases_of_one_buffer_never_mix(
    context: &Context,
) -> Result<(), Failure> {
    context.leaves_nothing(|| {
        let (allocator, granularity) = exact(context)?;
        let buffer = allocator.allocate_with_capacity(2 * granularity, 64 * granularity)?;
        write_pattern(&buffer, 1)?;
        on_threads(|number| {
            for round in 0..6 {
                let alias = buffer.alias();
                let mut grown = alias.grow((3 + round) * granularity)?;
                drop(alias);
                let own = number as u8 + 1;
                grown.fill(2 * granularity, (1 + round) * granularity, own)?;
                grown = grown.grow(grown.len() + granularity)?;
                let mut bytes = vec![0; (1 + round) * granularity];
                grown.read(2 * granularity, &mut bytes)?;
                assert!(
                    bytes.iter().all(|byte| *byte == own),
                    "thread {number} sees another's"
                );
                expect_pattern(&grown, 2 * granularity, 1)?;
            }
            Ok(())
        })?;
        expect_pattern(&buffer, buffer.len(), 1)
    })
}

fn invariant_12_buffers_are_made_and_dropped_on_any_thread(
    context: &Context,
) -> Result<(), Failure> {
    context.leaves_nothing(|| {
        let (allocator, granularity) = exact(context)?;
        let (send, receive) = std::sync::mpsc::channel();
        on_threads(|number| {
            for _ in 0..16 {
                let buffer = allocator.allocate(granularity * (1 + number % 3))?;
                write_pattern(&buffer, number as u8)?;
                let half = buffer.slice(..buffer.len() / 2)?;
                send.send((number, buffer, half))
                    .map_err(|_| Failure::new("no receiver"))?;
            }
            Ok(())
        })?;
        drop(send);
        for (number, buffer, half) in receive {
            expect_pattern(&buffer, buffer.len(), number as u8)?;
            drop(buffer);
            drop(half);
        }
        Ok(())
    })
}

thread_local! {
    static OF_THE_THREAD: RefCell<Option<Buffer>> = const { RefCell::new(None) };
}

fn invariant_12_a_buffer_in_a_thread_local_goes_with_the_thread(
    context: &Context,
) -> Result<(), Failure> {
    context.leaves_nothing(|| {
        let (allocator, granularity) = exact(context)?;
        let work = || -> Result<(), Failure> {
            // Registered before anything that the driver keeps for the thread, so it goes after that.
            OF_THE_THREAD.with_borrow_mut(|slot| *slot = None);
            let buffer = allocator.allocate(granularity)?;
            write_pattern(&buffer, 4)?;
            OF_THE_THREAD.set(Some(buffer));
            Ok(())
        };
        std::thread::scope(|scope| scope.spawn(work).join())
            .unwrap_or_else(|_| Err(Failure::new("the thread panicked")))
    })
}
