//! Any parts: any bytes as a descriptor, any file descriptors beside, then any bytes as an update.
//! An error or a buffer that has what was said, and nothing left afterwards.
//!
//! The input is how many file descriptors there are, one byte for each that picks it, one byte of
//! options, two bytes of length of the descriptor, the descriptor, and the update.
#![no_main]

use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use vmm::Driver;
use vmm_emulator::{Emulator, Snapshot};
use vmm_ipc::wire::Update;
use vmm_ipc::{Capacity, ImportOptions, Limits};

fuzz_target!(|input: &[u8]| {
    let Some((&count, rest)) = input.split_first() else {
        return;
    };
    let Some((picks, rest)) = rest.split_at_checked(usize::from(count & 15)) else {
        return;
    };
    let Some((&[options, low, high], rest)) = rest.split_first_chunk() else {
        return;
    };
    let length = usize::from(u16::from_le_bytes([low, high])).min(rest.len());
    let (descriptor, update) = rest.split_at(length);
    let fixture = fixture();
    let before = live();
    import(fixture, picks, options, descriptor, update);
    assert_eq!(live(), before);
});

fn import(fixture: &Fixture, picks: &[u8], options: u8, descriptor: &[u8], update: &[u8]) {
    let pick = |pick: &u8| {
        let at = usize::from(*pick) % fixture.fds.len();
        fixture.fds[at].try_clone().ok()
    };
    let Some(fds) = picks.iter().map(pick).collect::<Option<Vec<_>>>() else {
        return;
    };
    let access = if options & 1 == 0 {
        ImportOptions::read_only()
    } else {
        ImportOptions::read_write()
    };
    let capacity = if options & 2 == 0 {
        Capacity::AsExported
    } else {
        Capacity::Exact
    };
    let choice = access
        .capacity(capacity)
        .keep_handles(options & 4 != 0)
        .limits(Limits::new().capacity(1 << 40));
    let Ok(mut imported) = choice.import_parts(&fixture.driver, descriptor, fds) else {
        return;
    };
    let buffer = imported.buffer();
    assert_eq!(buffer.len() as u64, imported.descriptor().len());
    assert_eq!(buffer.chunk_count(), imported.descriptor().sizes().len());
    let _ = imported.export();
    let Ok(update) = Update::decode(update) else {
        return;
    };
    let fds = fixture.fds[0].try_clone().into_iter().collect();
    if imported.extend(&update, fds).is_ok() {
        assert_eq!(imported.generation(), update.generation());
        assert_eq!(imported.buffer().len() as u64, update.len());
    }
}

fn live() -> (usize, Snapshot) {
    let fds = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    (fds, Emulator::current().snapshot())
}

struct Fixture {
    driver: Driver,
    /// Handles of the emulator, of one granule and of two, and things that are none.
    fds: Vec<OwnedFd>,
}

fn fixture() -> &'static Fixture {
    static FIXTURE: OnceLock<Fixture> = OnceLock::new();
    FIXTURE.get_or_init(|| {
        let driver = Driver::new(vmm_emulator::driver().expect("the emulator")).expect("a driver");
        let device = driver.device(0).expect("a device");
        let allocator = vmm::Allocator::builder(&device)
            .handle_types(vmm::HandleTypes::POSIX_FD)
            .build()
            .expect("an allocator");
        let handle = |size: usize| {
            let memory = allocator.allocate_unmapped(size).expect("memory");
            memory.export_posix_fd().expect("a handle")
        };
        let (reader, _) = std::io::pipe().expect("a pipe");
        let file = std::fs::File::open("/dev/null").expect("a device");
        let fds = vec![handle(2 << 20), handle(4 << 20), reader.into(), file.into()];
        Fixture { driver, fds }
    })
}
