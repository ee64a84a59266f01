//! The Rust end of `tests/c/export.c`: takes a descriptor from standard input, which is a socket,
//! maps the memory, checks every byte for 0x11, fills it with 0x22, and answers one byte, `k`.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use vmm::{Access, Allocation, Buffer, Driver, MapOptions};

const SIZE: usize = 4 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let socket = std::io::stdin();
    let fd = receive(socket.as_fd())?;
    let driver = Driver::load()?;
    let device = driver.device(0)?;
    let allocation = Allocation::import_posix_fd(&device, fd.as_fd(), SIZE)?;
    let options = MapOptions::new(Access::ReadWrite);
    let buffer = Buffer::from_allocations(&device, vec![allocation], SIZE, &options)?;
    let mut bytes = vec![0; SIZE];
    buffer.read(0, &mut bytes)?;
    if let Some(at) = bytes.iter().position(|byte| *byte != 0x11) {
        return Err(format!("byte {at} is {:#x}", bytes[at]).into());
    }
    buffer.fill(0, SIZE, 0x22)?;
    buffer.synchronize()?;
    rustix::io::write(socket.as_fd(), b"k")?;
    Ok(())
}

fn receive(socket: impl AsFd) -> Result<OwnedFd, Box<dyn std::error::Error>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut byte)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let received = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    Ok(received.ok_or("no descriptor came")?)
}
