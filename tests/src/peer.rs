//! Peer processes: the suite's own program, executed again in a named role.
//!
//! A role is exec'd, not forked, because a driver does not survive a fork. Two sockets connect the
//! two sides. The *data* socket (SEQPACKET) is for what is under test: hand it to a `vmm-ipc`
//! channel. The *control* socket carries lines of text, with which the case steps the peer and
//! the peer reports: [`Peer::tell`] and [`Peer::expect`] on the side of the case, [`Link::hear`]
//! and [`Link::say`] on the side of the role. A peer that dies, or says nothing in time, fails the
//! case; it is killed and reaped when its [`Peer`] is dropped.

use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::context::wait_for;
use crate::driver::Choice;
use crate::{Context, Failure};

/// How long either side waits for the other's next line, or for its end.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A function that runs in a peer process.
#[derive(Clone, Copy, Debug)]
pub struct Role {
    /// The name that [`Context::peer`] starts it by.
    pub name: &'static str,
    /// What it does. Its failure is printed and ends the peer with status 1.
    pub run: fn(&Context, Link) -> Result<(), Failure>,
}

/// A peer process, as the case sees it. Dropping it kills it.
#[derive(Debug)]
pub struct Peer {
    child: Child,
    data: Option<OwnedFd>,
    control: BufReader<UnixStream>,
}

impl Peer {
    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Takes the case's end of the data socket. The second time there is none to take.
    pub fn take_data(&mut self) -> Result<OwnedFd, Failure> {
        self.data
            .take()
            .ok_or_else(|| Failure::new("the data socket was taken before"))
    }

    /// Sends one line of control.
    #[track_caller]
    pub fn tell(&mut self, line: &str) -> Result<(), Failure> {
        send_line(self.control.get_mut(), line)
            .map_err(|error| Failure::new(format!("telling the peer `{line}`: {error}")))
    }

    /// The peer's next line.
    #[track_caller]
    pub fn hear(&mut self) -> Result<String, Failure> {
        receive_line(&mut self.control)
            .map_err(|error| Failure::new(format!("waiting for a line of the peer: {error}")))
    }

    /// Waits for the peer's next line, which must be `line`.
    #[track_caller]
    pub fn expect(&mut self, line: &str) -> Result<(), Failure> {
        let heard = self.hear()?;
        if heard == line {
            Ok(())
        } else {
            Err(Failure::new(format!(
                "expected `{line}` of the peer, heard `{heard}`"
            )))
        }
    }

    /// Kills the peer with SIGKILL, at once, and waits until it is gone.
    pub fn kill(&mut self) -> Result<(), Failure> {
        self.child.kill()?;
        self.wait().map(|_| ())
    }

    /// Waits for the peer to end by itself.
    #[track_caller]
    pub fn wait(&mut self) -> Result<ExitStatus, Failure> {
        wait_for(PATIENCE, || self.child.try_wait().transpose())
            .ok_or_else(|| Failure::new("the peer did not end in time"))?
            .map_err(Failure::from)
    }

    /// Waits for the peer to end by itself, which it must do without a failure.
    #[track_caller]
    pub fn finish(mut self) -> Result<(), Failure> {
        let status = self.wait()?;
        if status.success() {
            Ok(())
        } else {
            Err(Failure::new(format!("the peer failed: {status}")))
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Both fail only for a peer that has been waited for already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A peer's connection to the case that started it.
#[derive(Debug)]
pub struct Link {
    data: Option<OwnedFd>,
    control: BufReader<UnixStream>,
    arguments: Vec<String>,
}

impl Link {
    /// Takes the peer's end of the data socket. The second time there is none to take.
    pub fn take_data(&mut self) -> Result<OwnedFd, Failure> {
        self.data
            .take()
            .ok_or_else(|| Failure::new("the data socket was taken before"))
    }

    /// The `index`th argument that the case gave.
    pub fn argument(&self, index: usize) -> Result<&str, Failure> {
        self.arguments
            .get(index)
            .map(String::as_str)
            .ok_or_else(|| Failure::new(format!("the role wants an argument {index}")))
    }

    /// Sends one line to the case.
    pub fn say(&mut self, line: &str) -> Result<(), Failure> {
        Ok(send_line(self.control.get_mut(), line)?)
    }

    /// The case's next line.
    pub fn hear(&mut self) -> Result<String, Failure> {
        Ok(receive_line(&mut self.control)?)
    }

    /// Says `step` and waits until the case answers `go`: the case then decides whether this
    /// process gets any further.
    pub fn step(&mut self, step: &str) -> Result<(), Failure> {
        self.say(step)?;
        match self.hear()?.as_str() {
            "go" => Ok(()),
            other => Err(Failure::new(format!("expected `go`, heard `{other}`"))),
        }
    }
}

pub(crate) const ARGUMENT: &str = "--peer";

pub(crate) fn spawn(
    context: &Context,
    role: &str,
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> Result<Peer, Failure> {
    let (data, peer_data) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let (control, peer_control) = UnixStream::pair()?;
    // The peer finds its data socket where standard input usually is and its control socket where
    // standard output is: descriptors that survive exec without any being made inheritable.
    let child = Command::new(std::env::current_exe()?)
        .args([ARGUMENT, role, &context.choice().to_string()])
        .arg(context.devices().to_string())
        .args(arguments)
        .envs(environment.iter().copied())
        .stdin(Stdio::from(peer_data))
        .stdout(Stdio::from(OwnedFd::from(peer_control)))
        .spawn()?;
    control.set_read_timeout(Some(PATIENCE))?;
    control.set_write_timeout(Some(PATIENCE))?;
    Ok(Peer {
        child,
        data: Some(data),
        control: BufReader::new(control),
    })
}

/// Runs in the peer: finds the role by name and gives it the link.
pub(crate) fn run(roles: &[Role], mut words: std::vec::IntoIter<String>) -> Result<(), Failure> {
    let mut word = |what| {
        words
            .next()
            .ok_or_else(|| Failure::new(format!("no {what}")))
    };
    let name = word("role")?;
    let choice = Choice::parse(&word("driver")?).map_err(Failure::new)?;
    let devices = word("number of devices")?.parse()?;
    let role = roles
        .iter()
        .find(|role| role.name == name)
        .ok_or_else(|| Failure::new(format!("no role is named `{name}`")))?;
    let data = take_standard(io::stdin().as_fd())?;
    let control = UnixStream::from(take_standard(io::stdout().as_fd())?);
    control.set_read_timeout(Some(PATIENCE))?;
    control.set_write_timeout(Some(PATIENCE))?;
    detach_standard()?;
    let link = Link {
        data: Some(data),
        control: BufReader::new(control),
        arguments: words.collect(),
    };
    (role.run)(&Context::new(choice, devices), link)
}

fn take_standard(fd: impl AsFd) -> io::Result<OwnedFd> {
    Ok(rustix::io::fcntl_dupfd_cloexec(fd, 3)?)
}

/// Points standard input at nothing and standard output at standard error, so that the sockets are
/// closed when their owners are dropped, and what a role prints cannot be taken for a control line.
fn detach_standard() -> io::Result<()> {
    let nothing = std::fs::File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nothing)?;
    rustix::stdio::dup2_stdout(io::stderr().as_fd())?;
    Ok(())
}

fn send_line(control: &mut UnixStream, line: &str) -> io::Result<()> {
    control.write_all(format!("{line}\n").as_bytes())
}

fn receive_line(control: &mut BufReader<UnixStream>) -> io::Result<String> {
    let mut line = String::new();
    match control.read_line(&mut line) {
        Ok(_) if line.ends_with('\n') => {
            line.pop();
            Ok(line)
        }
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "the other side is gone",
        )),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the other side said nothing in time",
        )),
        Err(error) => Err(error),
    }
}
