"""NVIDIA's cuda.core, unmodified: its VirtualMemoryResource allocates, copies and grows, and a
program of another language reads its memory.

    core.py IMPORTER

IMPORTER is tests/emulator/examples/importer.rs. It gets the descriptor over its standard input.

cuda.core 1.2.2 warns on standard error that a buffer which grew elsewhere could not be deallocated: it
frees the old addresses itself, and again where the old buffer goes. So growing comes last.
"""

import socket
import subprocess
import sys

import numpy
from cuda.bindings import driver as cu
from cuda.core import Device, VirtualMemoryResource, VirtualMemoryResourceOptions

from share import FD, SIZE, ok

CHUNK = 2 << 20


def read(buffer):
    back = numpy.empty(buffer.size, numpy.uint8)
    ok(cu.cuMemcpyDtoH(back.ctypes.data, int(buffer.handle), buffer.size))
    return back


def copies(memory, stream):
    """Work of a stream, told to be over by an event."""
    one, other = memory.allocate(CHUNK), memory.allocate(CHUNK)
    one.fill(0x5A, stream=stream)
    other.copy_from(one, stream=stream)
    stream.record().sync()
    assert (read(other) == 0x5A).all()
    one.close()
    other.close()


def grows(memory, stream):
    buffer = memory.allocate(CHUNK)
    buffer.fill(0x33, stream=stream)
    stream.sync()
    larger = memory.modify_allocation(buffer, 3 * CHUNK)
    assert larger.size == 3 * CHUNK, larger.size
    assert (read(larger)[:CHUNK] == 0x33).all(), "growing lost what was written"
    larger.fill(0x44, stream=stream)
    stream.sync()
    assert (read(larger) == 0x44).all()
    larger.close()


def shares(memory, stream, importer):
    buffer = memory.allocate(SIZE)
    buffer.fill(0x11, stream=stream)
    stream.sync()
    handle = ok(cu.cuMemRetainAllocationHandle(int(buffer.handle)))
    fd = int(ok(cu.cuMemExportToShareableHandle(handle, FD, 0)))
    ok(cu.cuMemRelease(handle))
    here, there = socket.socketpair()
    with here, there:
        importing = subprocess.Popen([importer], stdin=there)
        there.close()
        socket.send_fds(here, [b"x"], [fd])
        answer = here.recv(1)
    assert importing.wait() == 0 and answer == b"k", f"the importer answered {answer!r}"
    assert (read(buffer) == 0x22).all(), "what the importer wrote did not arrive"
    buffer.close()


def main(importer):
    device = Device(0)
    device.set_current()
    options = VirtualMemoryResourceOptions(handle_type="posix_fd")
    memory = VirtualMemoryResource(device, config=options)
    stream = device.create_stream()
    copies(memory, stream)
    shares(memory, stream, importer)
    grows(memory, stream)
    print(f"OK on {device.name}")


if __name__ == "__main__":
    main(*sys.argv[1:])
