//! Where channels come from: listeners, their paths, and who may connect.

use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use vmm_ipc::wire::{BufferId, Message};
use vmm_ipc::{Channel, ErrorKind, Listener, PeerPolicy};

const SOON: Duration = Duration::from_millis(150);

/// Something to say.
fn word(number: u8) -> Message {
    let id = BufferId([number; 16]);
    Message::Retired { id }
}

#[test]
fn a_listener_has_a_folder_of_its_own_that_goes_with_it() {
    let listener = Listener::new().unwrap();
    let other = Listener::new().unwrap();
    let path = listener.path().to_owned();
    let folder = path.parent().unwrap().to_owned();
    assert_ne!(path, other.path());
    assert!(path.metadata().unwrap().file_type().is_socket());
    assert_eq!(
        folder.metadata().unwrap().permissions().mode() & 0o777,
        0o700
    );
    let mut client = Channel::connect(&path).unwrap();
    let mut server = listener.accept(SOON).unwrap();
    assert_eq!(server.peer().pid, std::process::id() as i32);
    client.send(&word(3), &[]).unwrap();
    assert_eq!(server.receive().unwrap().message, word(3));
    drop(listener);
    assert!(!path.exists() && !folder.exists());
    assert_eq!(
        Channel::connect(&path).unwrap_err().kind(),
        ErrorKind::Hangup
    );
    // What was connected stays so.
    server.send(&word(4), &[]).unwrap();
    assert_eq!(client.receive().unwrap().message, word(4));
}

#[test]
fn a_listener_at_a_path_of_the_callers_leaves_alone_what_it_did_not_make() {
    let folder = Listener::new().unwrap();
    let folder_path = folder.path().parent().unwrap().to_owned();
    let path = folder_path.join("mine");
    let listener = Listener::bind(&path, PeerPolicy::SameUser).unwrap();
    let taken = Listener::bind(&path, PeerPolicy::SameUser).unwrap_err();
    assert!(taken.to_string().contains("remove the file"), "{taken}");
    assert!(
        path.exists(),
        "the socket of the one that is there was removed"
    );
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "another's").unwrap();
    drop(listener);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "another's");
    std::fs::remove_file(&path).unwrap();
    let long = folder_path.join("x".repeat(200));
    let nowhere = Listener::bind(path.join("no/such"), PeerPolicy::SameUser).unwrap_err();
    assert_eq!(nowhere.kind(), ErrorKind::System);
    let error = Listener::bind(&long, PeerPolicy::SameUser).unwrap_err();
    assert!(error.to_string().contains("107 bytes"), "{error}");
    let error = Channel::connect(long).unwrap_err();
    assert!(error.to_string().contains("107 bytes"), "{error}");
    let error = Channel::connect(path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Hangup, "{error}");
}

#[test]
fn who_may_not_reach_the_socket_is_told_what_it_takes() {
    let listener = Listener::new().unwrap();
    let path = listener.path().to_owned();
    let closed = std::fs::Permissions::from_mode(0o000);
    std::fs::set_permissions(&path, closed).unwrap();
    let folder = path.parent().unwrap().to_owned();
    let closed = std::fs::Permissions::from_mode(0o500);
    std::fs::set_permissions(&folder, closed).unwrap();
    let attempts = move || {
        // Permissions do not bind root, who can be another user instead.
        if rustix::process::geteuid().is_root() {
            let nobody = rustix::process::Uid::from_raw(65_534);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        }
        let connected = Channel::connect(&path).unwrap_err();
        (
            connected,
            Listener::bind(folder.join("mine"), PeerPolicy::SameUser).unwrap_err(),
        )
    };
    let (connected, bound) = std::thread::spawn(attempts).join().unwrap();
    for (error, advice) in [(connected, "chown"), (bound, "writable")] {
        assert_eq!(error.kind(), ErrorKind::System, "{error}");
        assert!(error.to_string().contains("Permission denied"), "{error}");
        assert!(error.to_string().contains(advice), "{error}");
    }
    // So that the folder can be removed.
    let open = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(listener.path().parent().unwrap(), open).unwrap();
}

#[test]
fn a_stranger_is_refused_and_the_next_is_served() {
    let mut listener = Listener::new().unwrap();
    let path = listener.path().to_owned();
    let stranger = rustix::process::geteuid().as_raw().wrapping_add(1);
    listener.set_policy(PeerPolicy::User(stranger));
    let mut client = Channel::connect(&path).unwrap();
    let error = listener.accept(SOON).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Peer, "{error}");
    // A loop that accepts goes on with the next one.
    assert!(error.is_retryable());
    assert_eq!(client.receive().unwrap_err().kind(), ErrorKind::Hangup);
    listener.set_policy(PeerPolicy::SameUser);
    let _client = Channel::connect(&path).unwrap();
    listener.accept(SOON).unwrap();
    let error = Channel::connect_with(&path, PeerPolicy::User(stranger)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Peer, "{error}");
    assert!(!error.is_retryable());
}

#[test]
fn a_client_that_is_gone_again_does_not_keep_the_next_from_being_served() {
    let listener = Listener::new().unwrap();
    let gone = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    let address = rustix::net::SocketAddrUnix::new(listener.path()).unwrap();
    rustix::net::connect(&gone, &address).unwrap();
    drop(gone);
    let _client = Channel::connect(listener.path()).unwrap();
    listener.accept(SOON).unwrap();
}

#[test]
fn those_that_connect_and_go_do_not_keep_a_listener_past_its_deadline() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let listener = Listener::new().unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let address = rustix::net::SocketAddrUnix::new(listener.path()).unwrap();
            while !over.load(Ordering::Relaxed) {
                let socket = rustix::net::socket_with(
                    AddressFamily::UNIX,
                    SocketType::SEQPACKET,
                    // With a full queue and nobody to accept it would wait for ever.
                    SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
                    None,
                )
                .unwrap();
                let _ = rustix::net::connect(&socket, &address);
            }
        });
        let begin = Instant::now();
        let mut ended = ErrorKind::Hangup;
        // One that is not gone yet when it is greeted is a channel like any other.
        while ended != ErrorKind::Timeout && begin.elapsed() < 40 * SOON {
            let call = Instant::now();
            ended = listener.accept(SOON).map_or_else(|e| e.kind(), |_| ended);
            assert!(call.elapsed() < 20 * SOON, "{:?}", call.elapsed());
        }
        over.store(true, Ordering::Relaxed);
    });
}
