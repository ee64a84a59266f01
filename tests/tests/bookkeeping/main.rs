//! What the crates keep for many chunks, counted: in a program of its own, for it has an allocator of
//! its own.
//!
//! The driver here is the emulator, except that memory and mappings are numbers: 100 000 mappings are
//! more than Linux gives a process by default, and as many descriptors, too.

mod counting;
mod numbers;

use std::time::{Duration, Instant};

use counting::{Cost, cost};
use numbers::{EXPORT, FREE, IMPORT, KINDS, MAP, RELEASE, SET_ACCESS, UNMAP};
use vmm::dlpark::ffi::{DLDataType, DLDataTypeCode};
use vmm::{
    Allocator, Buffer, ChunkPolicy, Driver, Granularity, HandleTypes, Location, Progress, Stream,
};
use vmm_ipc::{Export, Exporter, ImportOptions, Imported, Limits};

const CHUNK: usize = 4096;

fn allocator(driver: &Driver, handle_types: HandleTypes) -> Allocator {
    let builder = Allocator::builder(&driver.device(0).unwrap());
    builder
        .handle_types(handle_types)
        .granularity(Granularity::Minimum)
        .chunk_policy(ChunkPolicy::exact().largest(CHUNK))
        .build()
        .unwrap()
}

/// Ten times the chunks cost at most ten times as much, and what does not depend on them.
fn assert_linear(what: &str, one: Cost, ten: Cost) {
    const SLACK: usize = 4096;
    let allocations = one.allocations * 10 + 64;
    assert!(ten.allocations <= allocations, "{what}: {one:?}, {ten:?}");
    assert!(
        ten.bytes <= one.bytes * 10 + SLACK,
        "{what}: {one:?}, {ten:?}"
    );
}

fn allocate(allocator: &Allocator, chunks: usize) -> (Buffer, Cost) {
    let room = (chunks + 1) * CHUNK;
    let (buffer, cost) = cost(|| {
        allocator
            .allocate_with_capacity(chunks * CHUNK, room)
            .unwrap()
    });
    let n = chunks as u64;
    assert_eq!(buffer.chunk_count(), chunks);
    assert_eq!(
        cost.calls,
        [n, 0, 1, 0, n, 0, 1, 0, 0, 0],
        "{chunks} chunks"
    );
    assert!(
        cost.kept <= 128 * chunks as isize + 2048,
        "{chunks} chunks keep {} bytes",
        cost.kept
    );
    (buffer, cost)
}

#[test]
fn a_hundred_thousand_chunks_cost_ten_times_what_ten_thousand_do() {
    let allocator = allocator(&numbers::driver(), HandleTypes::POSIX_FD);
    drop(allocate(&allocator, 1)); // what is asked once for good is asked now

    let (few, few_made) = allocate(&allocator, 10_000);
    let (many, many_made) = allocate(&allocator, 100_000);
    assert_linear("allocate", few_made, many_made);

    // A grow by one chunk costs the same whatever the buffer's size.
    let (few_grown, few_grow) = cost(|| few.grow(few.len() + CHUNK).unwrap());
    let (many_grown, many_grow) = cost(|| many.grow(many.len() + CHUNK).unwrap());
    assert_eq!(many_grow, few_grow);
    assert_eq!(many_grow.calls, [1, 0, 0, 0, 1, 0, 1, 0, 0, 0]);

    // What is shared is not taken down twice.
    let ((), shared) = cost(|| drop(many));
    assert_eq!(shared.calls, [0; KINDS]);
    drop(few);

    let ((), few_gone) = cost(|| few_grown.close().unwrap());
    let ((), many_gone) = cost(|| many_grown.close().unwrap());
    assert_linear("close", few_gone, many_gone);
    assert_eq!(many_gone.calls[RELEASE], 100_001);
    assert_eq!(many_gone.calls[FREE], 1);
    assert!(many_gone.calls[UNMAP] <= 100_001);
    // Nothing is kept of it all.
    let kept = many_made.kept + many_grow.kept + shared.kept + many_gone.kept;
    assert!(kept.abs() < 4096, "{kept} bytes are left");

    // A buffer that grows by one chunk, again and again.
    let grow_to = |chunks: usize| {
        let mut buffer = allocator
            .allocate_with_capacity(CHUNK, chunks * CHUNK)
            .unwrap();
        cost(move || {
            for count in 2..=chunks {
                buffer = buffer.grow(count * CHUNK).unwrap();
            }
            buffer
        })
    };
    let (_few, few_steps) = grow_to(1_001);
    let (_many, many_steps) = grow_to(10_001);
    assert_linear("grow step by step", few_steps, many_steps);
}

/// A buffer, its export, its import and what that is passed on by, which grow together.
struct Shared {
    buffer: Buffer,
    export: Export,
    imported: Imported,
    relay: Export,
}

impl Shared {
    fn new(driver: &Driver, chunks: usize) -> Self {
        let allocator = allocator(driver, HandleTypes::FABRIC);
        let room = (chunks + 1000) * CHUNK;
        let buffer = allocator
            .allocate_with_capacity(chunks * CHUNK, room)
            .unwrap();
        let device = driver.device(0).unwrap();
        let export = Exporter::for_fabric(&device).export(&buffer).unwrap();
        let (bytes, fds) = export.to_parts().unwrap();
        let limits = Limits::new().chunks(u32::MAX).bytes(u64::MAX);
        let options = ImportOptions::read_write().limits(limits);
        let imported = options.import_parts(driver, &bytes, fds).unwrap();
        let relay = imported.export().unwrap();
        Shared {
            buffer,
            export,
            imported,
            relay,
        }
    }

    /// One chunk more everywhere; what that took the export, the import and the relay.
    fn grow(&mut self) -> [Cost; 3] {
        self.buffer = self.buffer.grow(self.buffer.len() + CHUNK).unwrap();
        let (update, exported) = cost(|| self.export.grow(&self.buffer).unwrap().clone());
        let ((), imported) = cost(|| self.imported.extend(&update, Vec::new()).unwrap());
        let (updates, relayed) = cost(|| self.imported.export_growth(&mut self.relay).unwrap());
        assert_eq!(updates, 1);
        let generation = self.relay.generation();
        let (bytes, _) = self.relay.update_to_parts(generation).unwrap();
        assert_eq!(bytes, update.encode());
        [exported, imported, relayed]
    }
}

/// The median time that something takes.
fn pace(mut work: impl FnMut()) -> Duration {
    let mut times: Vec<_> = (0..31)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed()
        })
        .collect();
    times.sort();
    times[times.len() / 2]
}

/// A walk over what was there already allocates nothing and calls nobody, and a hundred times the
/// chunks are a hundred times the steps.
fn assert_flat(what: &str, few: Duration, many: Duration) {
    assert!(
        many < 5 * few,
        "{what} takes {few:?} with 1000 chunks, and {many:?} with 100 000"
    );
}

#[test]
fn what_a_shared_buffer_grows_by_costs_the_same_whatever_its_size() {
    let driver = numbers::driver();
    let mut few = Shared::new(&driver, 1_000);
    let mut many = Shared::new(&driver, 100_000);
    // Lists that were as long as their contents have room from here on.
    few.grow();
    many.grow();

    let costs = few.grow();
    assert_eq!(many.grow(), costs);
    let calls = |kinds: &[usize]| std::array::from_fn(|kind| u64::from(kinds.contains(&kind)));
    let expected = [
        calls(&[EXPORT]),
        calls(&[IMPORT, MAP, SET_ACCESS]),
        calls(&[]),
    ];
    assert_eq!(costs.map(|cost| cost.calls), expected);

    let many = pace(|| _ = many.grow());
    assert_flat("a grow", pace(|| _ = few.grow()), many);
}

#[test]
fn what_touches_a_part_costs_the_same_whatever_the_buffer_s_size() {
    let driver = numbers::driver();
    let allocator = allocator(&driver, HandleTypes::NONE);
    let device = driver.device(0).unwrap();
    let streams = [(); 2].map(|()| Stream::new(&device).unwrap());
    let [one, other] = &streams;
    type Operation<'a> = (&'static str, &'a dyn Fn(&mut Buffer));
    let operations: &[Operation<'_>] = &[
        ("alias", &|buffer| drop(buffer.alias())),
        ("slice", &|buffer| drop(buffer.slice(5..10).unwrap())),
        ("shrink", &|buffer| {
            drop(buffer.shrink(buffer.len() - CHUNK).unwrap())
        }),
        ("read", &|buffer| buffer.read(0, &mut [0]).unwrap()),
        ("write", &|buffer| buffer.write(0, &[1]).unwrap()),
        ("fill", &|buffer| buffer.fill(0, 1, 1).unwrap()),
        ("chunks_from", &|buffer| {
            assert_eq!(buffer.chunks_from(buffer.chunk_count() - 1).count(), 1);
        }),
        ("starts_with", &|buffer| {
            let prefix = buffer.prefix();
            assert!(buffer.starts_with(&prefix));
        }),
        ("set_stream", &|buffer| {
            buffer.set_stream(Some(one));
            buffer.set_stream(Some(other));
            buffer.set_stream(None);
        }),
        ("into_dlpack", &|buffer| {
            let bytes = DLDataType {
                code: DLDataTypeCode::UINT,
                bits: 8,
                lanes: 1,
            };
            let last = buffer.slice(buffer.len() - CHUNK..).unwrap();
            drop(last.into_dlpack(bytes, &[CHUNK as i64]).unwrap());
        }),
    ];
    let [mut few, mut many] = [1_000, 100_000].map(|chunks| {
        let buffer = allocator.allocate(chunks * CHUNK).unwrap();
        assert_eq!(buffer.chunk_count(), chunks);
        buffer
    });
    for (what, work) in operations {
        // What is made once is made now.
        work(&mut few);
        work(&mut many);
        let (((), cheap), ((), dear)) = (cost(|| work(&mut few)), cost(|| work(&mut many)));
        assert_eq!(cheap, dear, "{what}");
        let times = |buffer: &mut Buffer| pace(|| (0..20).for_each(|_| work(buffer)));
        let quick = times(&mut few);
        assert_flat(what, quick, times(&mut many));
    }
}

/// Buffers of host memory are looked through for where a copy has to be cut, and yet every chunk once.
#[test]
fn the_sleep_of_ten_times_the_chunks_takes_ten_times_as_long() {
    let driver = numbers::driver();
    let allocator = Allocator::builder(&driver.device(0).unwrap())
        .location(Location::HostNuma(0))
        .granularity(Granularity::Minimum)
        .chunk_policy(ChunkPolicy::exact().largest(CHUNK))
        .build()
        .unwrap();
    let sleep_and_wake = |chunks: usize| {
        let mut buffer = Some(allocator.allocate(chunks * CHUNK).unwrap());
        let quiet = |_: Progress| {};
        let mut times = [(); 3].map(|()| {
            let start = Instant::now();
            let asleep = buffer.take().unwrap().sleep_with_contents(quiet).unwrap();
            buffer = Some(asleep.wake().unwrap());
            start.elapsed()
        });
        times.sort();
        times[1]
    };
    let (few, many) = (sleep_and_wake(1_000), sleep_and_wake(10_000));
    // Were it a walk for each chunk, it would be a hundred times.
    assert!(many < 30 * few, "{few:?} and {many:?}");
}

#[test]
fn a_buffer_that_grows_without_room_moves_seldom() {
    let driver = numbers::driver();
    let allocator = allocator(&driver, HandleTypes::NONE);
    let mut buffer = allocator.allocate(CHUNK).unwrap();
    let (moves, cost) = cost(|| {
        let mut moves = 0;
        for chunks in 2..=10_000 {
            let grown = buffer.grow(chunks * CHUNK).unwrap();
            moves += usize::from(grown.address() != buffer.address());
            buffer = grown;
        }
        moves
    });
    // Twice the size each time.
    assert!((2..=14).contains(&moves), "{moves} moves");
    // What is there is mapped again at each move: in all less than twice what there is in the end.
    assert!(cost.calls[MAP] < 3 * 10_000, "{cost:?}");
}
