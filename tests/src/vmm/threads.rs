//! Many threads at once: invariant 12.

use std::cell::RefCell;
use std::sync::Barrier;

use vmm::Buffer;

use super::{exact, expect_pattern, write_pattern};
use crate::{Case, Context, Failure, cases};

pub const CASES: &[Case] = cases![
    invariant_12_threads_that_grow_aliases_of_one_buffer_never_mix,
    invariant_12_threads_share_one_buffer_in_every_way,
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

/// Numbers that look random, the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) as usize % sides
    }
}

/// Each thread has a granule of the buffer to itself, and sees it through whatever it makes of it.
fn invariant_12_threads_share_one_buffer_in_every_way(context: &Context) -> Result<(), Failure> {
    const ROUNDS: usize = 30;
    let (allocator, granule) = exact(context)?;
    let device = context.device()?;
    context.leaves_nothing(|| {
        let buffer = allocator.allocate_with_capacity(THREADS * granule, 16 * granule)?;
        buffer.fill(0, buffer.len(), 0xff)?;
        buffer.synchronize()?;
        on_threads(|number| {
            let mut dice = Dice(number as u64);
            let mut expected = 0xff;
            let (start, own) = (number * granule, vmm::Stream::new(&device)?);
            for round in 0..ROUNDS {
                let mut view = match dice.roll(5) {
                    0 => buffer.alias(),
                    1 => buffer.shrink((number + 1) * granule)?,
                    2 => buffer.slice(start..)?.buffer().alias(),
                    3 => {
                        let grown = buffer.grow((THREADS + 1 + dice.roll(4)) * granule)?;
                        grown.write(THREADS * granule, &[number as u8; 16])?;
                        let mut bytes = [0; 16];
                        grown.read(THREADS * granule, &mut bytes)?;
                        assert_eq!(bytes, [number as u8; 16], "another's chunk");
                        grown
                    }
                    _ => {
                        let longer = buffer.grow((THREADS + 1) * granule)?;
                        longer.shrink(start + granule)?
                    }
                };
                let mut bytes = [0; 32];
                let at = start + dice.roll(granule - bytes.len());
                view.read(at, &mut bytes)?;
                assert_eq!(bytes, [expected; 32], "thread {number}, round {round}");
                expected = dice.roll(255) as u8;
                match dice.roll(3) {
                    0 => {
                        view.fill(start, granule, expected)?;
                        view.synchronize()?;
                    }
                    1 => {
                        view.set_stream(Some(&own));
                        view.fill(start, granule, expected)?;
                        own.synchronize()?;
                    }
                    _ => view
                        .slice(start..start + granule)?
                        .write(0, &vec![expected; granule])?,
                }
            }
            Ok(())
        })
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
