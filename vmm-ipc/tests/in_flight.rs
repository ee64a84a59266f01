//! Too many descriptors on their way between processes: in a program of its own, for it lowers the
//! limit of open files.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::set_thread_res_uid;
use vmm_ipc::wire::{BufferId, Message};
use vmm_ipc::{Channel, ErrorKind};

/// The kernel counts what is on its way for each user, against the limit of open files, and lets
/// those off who may do everything.
#[test]
fn too_many_descriptors_in_flight_are_waited_for_and_then_named() {
    if rustix::process::geteuid().is_root() {
        let nobody = rustix::process::Uid::from_raw(65_534);
        set_thread_res_uid(nobody, nobody, nobody).expect("becoming another user");
    }
    let file = std::fs::File::open("/dev/null").expect("a file");
    let (mut ours, mut theirs) = Channel::pair().expect("a pair of channels");
    let limit = Rlimit {
        current: Some(64),
        maximum: getrlimit(Resource::Nofile).maximum,
    };
    setrlimit(Resource::Nofile, limit).expect("lowering the limit of open files");
    let fds: [BorrowedFd<'_>; 40] = [file.as_fd(); 40];
    let message = Message::Handles {
        id: BufferId([1; 16]),
        first: 0,
        count: 40,
    };
    let timeout = Duration::from_millis(200);
    ours.set_timeout(timeout);
    ours.send(&message, &fds).expect("the first forty");
    ours.send(&message, &fds)
        .expect("the second forty, with less than the limit before");
    let begin = Instant::now();
    let error = ours.send(&message, &fds).expect_err("the third forty");
    assert_eq!(error.kind(), ErrorKind::InFlight, "{error}");
    assert!(error.is_retryable(), "{error}");
    let took = begin.elapsed();
    assert!((timeout / 2..10 * timeout).contains(&took), "{took:?}");
    // As soon as the receiver has caught up, it goes on, also in the middle of a wait.
    ours.set_timeout(Duration::from_secs(10));
    std::thread::scope(|scope| {
        let receiving = scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            for _ in 0..3 {
                let received = theirs.receive().expect("forty");
                assert_eq!(received.fds.len(), 40);
            }
        });
        ours.send(&message, &fds).expect("the third forty again");
        receiving.join().expect("the receiver");
    });
}
