//! `cargo xtask ci syscalls`: the system calls of a share, counted by strace on the emulator.

use std::collections::BTreeMap;

use xshell::{Shell, cmd};

use crate::result::Result;
use crate::workspace::root;

/// Rounds whose calls are counted: what one more round adds, times as many.
const ROUNDS: usize = 10;
const CHUNKS: usize = 64;

/// A round is a first share, a second share, two grows with their updates, and two retirements. Its
/// messages: offer, handles, accepted; the same again; twice update, handles, accepted; and twice two
/// retirements.
const SENDS: usize = 3 + 3 + 2 * 3 + 4;

/// File descriptors that are received: all of the first and of the second share, and one with each grow.
/// Each is asked for its type, and told not to linger.
const RECEIVED: usize = 2 * CHUNKS + 2;

/// How often it is looked whether there is room for as many file descriptors: by the exporter, and by
/// each importer. A list of those that are open would take two calls, whose cost grows with them.
const LOOKS: usize = 3;

/// The calls that receive and wait may find that nothing is there yet, once or twice a message.
const MOST_RECEIVES: usize = 2 * SENDS;
const MOST_WAITS: usize = 2 * SENDS;

pub fn check(shell: &Shell) -> Result {
    cmd!(
        shell,
        "cargo build --quiet --release --package vmm-tests --bin bench-crate"
    )
    .run()?;
    let (one, many) = (count(shell, 1)?, count(shell, 1 + ROUNDS)?);
    let each = |name: &str| {
        let of = |calls: &BTreeMap<String, usize>| calls.get(name).copied().unwrap_or(0);
        (of(&many) - of(&one)).div_ceil(ROUNDS)
    };
    // From Linux 6.2 on the size of the folder is how many there are, and no list is needed.
    let lists = match std::fs::metadata("/proc/self/fd")?.len() {
        0 => 2 * LOOKS,
        _ => 0,
    };
    let mut found = Vec::new();
    let mut wrong = Vec::new();
    for (name, least, most) in [
        ("sendmsg", SENDS, SENDS),
        ("recvmsg", 0, MOST_RECEIVES),
        ("ppoll", 0, MOST_WAITS),
        ("statx", RECEIVED, RECEIVED),
        ("setsockopt", RECEIVED, RECEIVED),
        ("getdents64", lists, lists),
    ] {
        let made = each(name);
        found.push(format!("{made} {name}"));
        if made < least || made > most {
            let right = if least == most { "" } else { "at most " };
            wrong.push(format!("{made} {name} instead of {right}{most}"));
        }
    }
    println!(
        "a round with {CHUNKS} chunks, both sides: {}",
        found.join(", ")
    );
    if !wrong.is_empty() {
        return Err(format!("a round makes {}", wrong.join("; ")).into());
    }
    Ok(())
}

/// The system calls of so many rounds, by name.
fn count(shell: &Shell, rounds: usize) -> Result<BTreeMap<String, usize>> {
    let folder = root().join("target/syscalls");
    shell.create_dir(&folder)?;
    let summary = folder.join(format!("{rounds}.txt"));
    let program = crate::bundle::target_directory(shell)?.join("release/bench-crate");
    let lines = format!("share {CHUNKS} 2097152\n").repeat(rounds);
    cmd!(
        shell,
        "strace -f -c -e trace=sendmsg,recvmsg,ppoll,statx,setsockopt,getdents64 -o {summary} {program}"
    )
    .env("VMM_TEST_DRIVER", "emulator")
    .stdin(lines)
    .ignore_stdout()
    .run()?;
    let text = shell.read_file(&summary)?;
    let mut calls = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [_, _, _, number, .., name] = words.as_slice()
            && let Ok(number) = number.parse()
        {
            calls.insert((*name).to_owned(), number);
        }
    }
    Ok(calls)
}
