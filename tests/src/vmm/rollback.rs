//! An operation that fails at any step leaves everything as it was: invariant 3.
//!
//! Every operation in [`OPERATIONS`] is run once for each driver call that it makes, with that call
//! failing. A new operation is covered by adding it to the list.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use vmm::sys::CUresult;
use vmm::{
    Access, Allocation, Allocator, Buffer, ChunkPolicy, HandleTypes, Location, MapOptions,
    SleepingBuffer, Stream,
};

use super::{expect_pattern, pattern, write_pattern};
use crate::emulated::{self, Calls};
use crate::{Case, Context, Failure, cases};

pub const CASES: &[Case] = cases![
    invariant_03_a_failure_of_any_driver_call_leaves_everything_as_it_was: emulator_only() timeout(120),
    invariant_03_running_out_of_memory_in_the_middle_leaves_everything_as_it_was,
];

/// What the operations work on.
struct Fixture {
    device: vmm::Device,
    allocator: Allocator,
    granularity: usize,
    /// Two chunks, with capacity for more.
    roomy: Buffer,
    /// Two chunks; the place behind is taken.
    tight: Buffer,
    /// What takes it.
    _taken: Buffer,
    /// Two chunks that fill their reservation; the place behind is free.
    full: Buffer,
    /// No chunk, with capacity for some.
    empty: Buffer,
    /// One chunk that the operations may write to.
    scratch: Buffer,
    stream: Stream,
    /// What can be imported.
    fd: std::os::fd::OwnedFd,
    /// The bytes of `roomy` and of `tight`.
    contents: [Vec<u8>; 2],
}

/// The operations that release memory on their way, in good order too.
const RELEASING: &[&str] = &["sleep", "sleep and wake"];

/// The codes that each call fails with: one that some calls are given a meaning for, and one that
/// none is.
const CODES: [CUresult; 2] = [
    CUresult::CUDA_ERROR_OUT_OF_MEMORY,
    CUresult::CUDA_ERROR_UNKNOWN,
];

/// What an operation returns, to be kept until it has been counted.
type Made = Box<dyn Any>;

struct Operation {
    name: &'static str,
    run: fn(&Fixture) -> Result<Made, Failure>,
}

const OPERATIONS: &[Operation] = &[
    Operation {
        name: "allocate",
        run: |on| made(on.allocator.allocate(3 * on.granularity)),
    },
    Operation {
        name: "allocate with capacity",
        run: |on| {
            made(
                on.allocator
                    .allocate_with_capacity(on.granularity, 9 * on.granularity),
            )
        },
    },
    Operation {
        name: "allocate in many chunks",
        run: |on| {
            let policy = ChunkPolicy::exact().largest(on.granularity);
            let builder = Allocator::builder(&on.device).chunk_policy(policy);
            made(builder.build()?.allocate(4 * on.granularity))
        },
    },
    Operation {
        name: "allocate on the host",
        run: |on| {
            let builder = Allocator::builder(&on.device).location(Location::HostNuma(0));
            made(builder.build()?.allocate(2 * on.granularity))
        },
    },
    Operation {
        name: "allocate on any host node",
        run: |on| {
            let builder = Allocator::builder(&on.device).location(Location::Host);
            made(builder.build()?.allocate(2 * on.granularity))
        },
    },
    Operation {
        name: "allocate unmapped",
        run: |on| made(on.allocator.allocate_unmapped(on.granularity)),
    },
    Operation {
        name: "grow in place",
        run: |on| made(on.roomy.grow(5 * on.granularity)),
    },
    Operation {
        name: "grow moved",
        run: |on| made(on.tight.grow(5 * on.granularity)),
    },
    Operation {
        name: "grow beside",
        run: |on| made(on.full.grow(5 * on.granularity)),
    },
    Operation {
        name: "grow from nothing",
        run: |on| made(on.empty.grow(3 * on.granularity)),
    },
    Operation {
        name: "grow with other access",
        run: |on| {
            let builder = Allocator::builder(&on.device).access(Access::Read);
            made(on.roomy.grow_with(&builder.build()?, 5 * on.granularity))
        },
    },
    Operation {
        name: "shrink",
        run: |on| made(on.roomy.shrink(on.granularity)),
    },
    Operation {
        name: "slice",
        run: |on| made(on.roomy.slice(1..9)),
    },
    Operation {
        name: "map given allocations",
        run: |on| {
            let chunks = on
                .roomy
                .chunks()
                .map(|chunk| chunk.allocation.clone())
                .collect();
            let options = MapOptions::new(Access::Read).capacity(8 * on.granularity);
            made(Buffer::from_allocations(
                &on.device,
                chunks,
                on.granularity,
                &options,
            ))
        },
    },
    Operation {
        name: "extend",
        run: |on| {
            let chunks = on
                .tight
                .chunks()
                .map(|chunk| chunk.allocation.clone())
                .collect();
            made(on.roomy.extend(chunks, 3 * on.granularity))
        },
    },
    Operation {
        name: "import",
        run: |on| {
            use std::os::fd::AsFd;
            let chunk = Allocation::import_posix_fd(&on.device, on.fd.as_fd(), 2 * on.granularity)?;
            let options = MapOptions::default();
            made(Buffer::from_allocations(
                &on.device,
                vec![chunk],
                on.granularity,
                &options,
            ))
        },
    },
    Operation {
        name: "export",
        run: |on| {
            let chunk = on.roomy.chunks().next();
            made(
                chunk
                    .map(|chunk| chunk.allocation.export_posix_fd())
                    .transpose(),
            )
        },
    },
    Operation {
        name: "sleep",
        run: |on| made(Ok(sleeping(on)?)),
    },
    Operation {
        name: "sleep and wake",
        run: |on| made(Ok(woken(on)?)),
    },
    Operation {
        name: "stream",
        run: |on| made(vmm::Stream::new(&on.device)),
    },
    Operation {
        name: "read",
        run: |on| made(on.roomy.read(0, &mut [0; 64])),
    },
    Operation {
        name: "write",
        run: |on| made(on.scratch.write(0, &[5; 64])),
    },
    Operation {
        name: "write on a stream",
        run: |on| {
            let mut alias = on.scratch.alias();
            alias.set_stream(Some(&on.stream));
            made(alias.write(0, &[6; 64]))
        },
    },
    Operation {
        name: "fill",
        run: |on| {
            on.scratch.fill(0, on.granularity, 7)?;
            made(on.scratch.synchronize())
        },
    },
    Operation {
        name: "copy",
        run: |on| {
            on.roomy.copy_to(0, &on.scratch, 0, on.granularity)?;
            made(on.scratch.synchronize())
        },
    },
    Operation {
        name: "memory info",
        run: |on| made(on.device.memory_info()),
    },
];

fn made<T: 'static>(result: Result<T, vmm::Error>) -> Result<Made, Failure> {
    Ok(Box::new(result?))
}

/// A sleeping buffer. One that could not sleep is checked to be what it was.
fn sleeping(on: &Fixture) -> Result<SleepingBuffer, Failure> {
    let buffer = on
        .allocator
        .allocate_with_capacity(2 * on.granularity, 4 * on.granularity)?;
    write_pattern(&buffer, 3)?;
    let layout = buffer.layout();
    buffer.sleep_with_contents(|_| {}).map_err(|failed| {
        assert_eq!(failed.buffer.layout(), layout);
        // An error here would count as the one that was to come.
        expect_pattern(&failed.buffer, 2 * on.granularity, 3).expect("its bytes");
        write_pattern(&failed.buffer, 3).expect("that it can be written");
        failed.error.into()
    })
}

/// A buffer that has slept. One that could not wake is checked to sleep as before, and to wake then.
fn woken(on: &Fixture) -> Result<Buffer, Failure> {
    let asleep = sleeping(on)?;
    let (address, capacity) = (asleep.address(), 4 * on.granularity);
    let check = |buffer: &Buffer| {
        assert_eq!((buffer.address(), buffer.capacity()), (address, capacity));
        expect_pattern(buffer, 2 * on.granularity, 3).expect("its bytes");
    };
    match asleep.wake() {
        Ok(buffer) => {
            // A call may fail without harm after which this one is read.
            assert_eq!(buffer.address(), address);
            Ok(buffer)
        }
        Err(failed) => {
            assert!(failed.buffer.has_contents());
            check(&failed.buffer.wake().expect("that it can wake now"));
            Err(failed.error.into())
        }
    }
}

impl Fixture {
    fn new(context: &Context) -> Result<Fixture, Failure> {
        let device = context.device()?;
        let allocator = Allocator::builder(&device)
            .handle_types(HandleTypes::POSIX_FD)
            .chunk_policy(ChunkPolicy::exact())
            .build()?;
        let granularity = allocator.granularity();
        let roomy = allocator
            .allocate_with_capacity(granularity, 8 * granularity)?
            .grow(2 * granularity)?;
        let tight = allocator
            .allocate_with_capacity(granularity, 3 * granularity)?
            .grow(2 * granularity)?;
        let taken = tight.grow(3 * granularity)?;
        // Drivers give out neighbours, from above or from below: this one's are gone again.
        let below = allocator.allocate_with_capacity(0, 256 * granularity)?;
        let full = allocator.allocate_with_capacity(2 * granularity, 2 * granularity)?;
        let above = allocator.allocate_with_capacity(0, 256 * granularity)?;
        drop((below, above));
        let empty = allocator.allocate_with_capacity(0, 8 * granularity)?;
        let scratch = allocator.allocate(granularity)?;
        write_pattern(&roomy, 1)?;
        write_pattern(&tight, 2)?;
        let shared = allocator.allocate(2 * granularity)?;
        let fd = shared
            .chunks()
            .next()
            .ok_or_else(|| Failure::new("a buffer without a chunk"))?
            .allocation
            .export_posix_fd()?;
        Ok(Fixture {
            allocator,
            granularity,
            roomy,
            tight,
            _taken: taken,
            full,
            empty,
            scratch,
            stream: Stream::new(&device)?,
            fd,
            contents: [pattern(2 * granularity, 1), pattern(2 * granularity, 2)],
            device,
        })
    }

    /// The buffers as they should always be.
    fn check(&self, layouts: &(vmm::Layout, vmm::Layout)) -> Result<(), Failure> {
        assert_eq!((self.roomy.layout(), self.tight.layout()), *layouts);
        for (buffer, contents) in [&self.roomy, &self.tight].into_iter().zip(&self.contents) {
            let mut bytes = vec![0; buffer.len()];
            buffer.read(0, &mut bytes)?;
            assert!(bytes == *contents, "other bytes");
            // Still writable: access is part of what must not change.
            buffer.write(0, contents)?;
        }
        Ok(())
    }
}

fn invariant_03_a_failure_of_any_driver_call_leaves_everything_as_it_was(
    context: &Context,
) -> Result<(), Failure> {
    let fixture = Fixture::new(context)?;
    let layouts = (fixture.roomy.layout(), fixture.tight.layout());
    let told = Arc::new(AtomicUsize::new(0));
    let counter = told.clone();
    context.driver()?.on_release_error(move |event| {
        if event.to_string().contains("cuMemRelease") {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    });
    let beside = fixture.full.grow(5 * fixture.granularity)?;
    assert_eq!(beside.address(), fixture.full.address(), "it moved");
    drop(beside);
    for (operation, code) in OPERATIONS
        .iter()
        .flat_map(|operation| CODES.map(|code| (operation, code)))
    {
        // Twice without a failure: what is set up once for good is set up now.
        drop((operation.run)(&fixture)?);
        let mut before = context.snapshot()?;
        drop((operation.run)(&fixture)?);
        context.assert_as(&before)?;
        let mut calls = 0;
        loop {
            let failing = emulated::fail(Calls::AnyHere, calls + 1, code);
            let result = (operation.run)(&fixture);
            let fired = failing.fired() > 0;
            drop(failing);
            let at = format!("{}, {} of call {}", operation.name, code.0, calls + 1);
            if !fired {
                result.map_err(|error| Failure::new(format!("{at}: {error}")))?;
                break;
            }
            // A call that may fail without harm, such as an exchange of the capture mode, is no
            // failure of the operation; then its result has to be as good as ever.
            drop(result);
            if told.swap(0, Ordering::Relaxed) > 0 {
                // An operation that gives memory back was refused just that. It cannot be undone
                // and is no failure of the operation: it was reported, and the rest must hold.
                assert!(
                    RELEASING.contains(&operation.name),
                    "{at}: left something behind"
                );
                println!("{at}: reported");
                before = context.snapshot()?;
            }
            context
                .assert_as(&before)
                .map_err(|failure| Failure::new(format!("{at}: {failure}")))?;
            fixture
                .check(&layouts)
                .map_err(|failure| Failure::new(format!("{at}: {failure}")))?;
            calls += 1;
        }
        println!(
            "{}: {calls} driver calls, each failed by {}",
            operation.name, code.0
        );
    }
    Ok(())
}

fn invariant_03_running_out_of_memory_in_the_middle_leaves_everything_as_it_was(
    context: &Context,
) -> Result<(), Failure> {
    let fixture = Fixture::new(context)?;
    let layouts = (fixture.roomy.layout(), fixture.tight.layout());
    let total = fixture.device.memory_info()?.total;
    // Several chunks, of which the last do not fit.
    let greedy = Allocator::builder(&fixture.device)
        .chunk_policy(
            ChunkPolicy::exact().largest(total / 4 / fixture.granularity * fixture.granularity),
        )
        .build()?;
    let before = context.snapshot()?;
    for attempt in [
        greedy.allocate(2 * total).err(),
        fixture.roomy.grow_with(&greedy, 2 * total).err(),
        fixture.tight.grow_with(&greedy, 2 * total).err(),
    ] {
        let kind = attempt.as_ref().map(vmm::Error::kind);
        assert_eq!(kind, Some(vmm::ErrorKind::OutOfMemory), "{attempt:?}");
        context.assert_as(&before)?;
        fixture.check(&layouts)?;
    }
    Ok(())
}
