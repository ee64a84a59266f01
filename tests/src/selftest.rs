//! Cases that prove the runner: it must report the bad ones as failures. They are listed only when
//! asked for by an environment variable; `tests/runner.rs` asks.

use std::time::Duration;

use crate::context::wait_for;
use crate::{Case, Context, Failure, Link, Role, cases};

/// Lists these cases too.
pub(crate) const VARIABLE: &str = "VMM_SUITE_SELFTEST";

pub(crate) const CASES: &[Case] = cases![
    good,
    good_with_a_peer,
    bad_returns_a_failure,
    bad_panics,
    bad_crashes,
    bad_exits_with_status_zero,
    bad_hangs: timeout(1),
    bad_peer_dies,
    bad_peer_is_unknown,
    injected: emulator_only(),
];

pub(crate) const ROLES: &[Role] = &[
    Role {
        name: "selftest-echo",
        run: echo,
    },
    Role {
        name: "selftest-dead",
        run: |_, _| Err(Failure::new("on purpose")),
    },
];

fn good(context: &Context) -> Result<(), Failure> {
    let before = context.open_fds();
    let pipe = std::io::pipe()?;
    assert_eq!(context.open_fds(), before + 2);
    drop(pipe);
    assert_eq!(context.open_fds(), before);
    Ok(())
}

fn good_with_a_peer(context: &Context) -> Result<(), Failure> {
    let before = context.open_fds();
    let mut peer =
        context.peer_with("selftest-echo", &["argument"], &[("VMM_ECHO", "variable")])?;
    let data = peer.take_data()?;
    peer.expect("argument")?;
    peer.expect("variable")?;
    peer.tell("go")?;
    peer.expect("went")?;
    rustix::io::write(&data, b"data")?;
    let mut answer = [0; 16];
    assert_eq!(rustix::io::read(&data, &mut answer)?, 4);
    assert_eq!(&answer[..4], b"data");
    // Both of its sockets are closed when it ends.
    assert_eq!(rustix::io::read(&data, &mut answer)?, 0);
    peer.finish()?;
    drop(data);
    assert_eq!(context.open_fds(), before);
    let mut killed = context.peer("selftest-echo")?;
    killed.kill()?;
    Ok(())
}

fn echo(_: &Context, mut link: Link) -> Result<(), Failure> {
    let argument = link.argument(0)?.to_owned();
    link.say(&argument)?;
    link.step(&std::env::var("VMM_ECHO")?)?;
    println!("a role may print; it is not taken for a control line");
    link.say("went")?;
    let data = link.take_data()?;
    let mut bytes = [0; 16];
    let length = rustix::io::read(&data, &mut bytes)?;
    rustix::io::write(&data, bytes.get(..length).unwrap_or_default())?;
    Ok(())
}

fn bad_returns_a_failure(_: &Context) -> Result<(), Failure> {
    std::fs::File::open("/nonexistent/by-design")?;
    Ok(())
}

fn bad_panics(_: &Context) -> Result<(), Failure> {
    panic!("on purpose");
}

fn bad_crashes(_: &Context) -> Result<(), Failure> {
    std::process::abort();
}

fn bad_exits_with_status_zero(_: &Context) -> Result<(), Failure> {
    std::process::exit(0);
}

fn bad_hangs(_: &Context) -> Result<(), Failure> {
    let never: Option<()> = wait_for(Duration::MAX, || None);
    never.ok_or_else(|| Failure::new("unreachable"))
}

fn bad_peer_dies(context: &Context) -> Result<(), Failure> {
    context.peer("selftest-dead")?.finish()
}

fn bad_peer_is_unknown(context: &Context) -> Result<(), Failure> {
    context.peer("no-such-role")?.finish()
}

fn injected(_: &Context) -> Result<(), Failure> {
    Ok(())
}
