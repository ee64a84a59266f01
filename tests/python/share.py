"""NVIDIA's cuda-bindings, unmodified: allocate, map, copy, export, send, import elsewhere, read.

Run without arguments on a driver found by the loader. The exporter starts the importer, a second
Python process, and sends it the descriptor over a socket.
"""

import socket
import subprocess
import sys

from cuda.bindings import driver as cu

SIZE = 4 << 20
FD = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


def ok(answer):
    code, *values = answer
    if code != cu.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"the driver answered {code!r}")
    return values[0] if len(values) == 1 else values


def start():
    ok(cu.cuInit(0))
    device = ok(cu.cuDeviceGet(0))
    ok(cu.cuCtxSetCurrent(ok(cu.cuDevicePrimaryCtxRetain(device))))
    return device


def properties():
    prop = cu.CUmemAllocationProp()
    prop.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    prop.requestedHandleTypes = FD
    prop.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    prop.location.id = 0
    return prop


def map_whole(handle):
    address = ok(cu.cuMemAddressReserve(SIZE, 0, 0, 0))
    ok(cu.cuMemMap(address, SIZE, 0, handle, 0))
    access = cu.CUmemAccessDesc()
    access.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.location.id = 0
    access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    ok(cu.cuMemSetAccess(address, SIZE, [access], 1))
    return address


def undo(address, handle):
    ok(cu.cuMemUnmap(address, SIZE))
    ok(cu.cuMemRelease(handle))
    ok(cu.cuMemAddressFree(address, SIZE))


def pattern(seed):
    return bytes((i * 7 + seed) % 251 for i in range(SIZE))


def read(address):
    back = bytearray(SIZE)
    ok(cu.cuMemcpyDtoH(back, address, SIZE))
    return bytes(back)


def exporter():
    device = start()
    name = ok(cu.cuDeviceGetName(64, device)).split(b"\0")[0].decode()
    prop = properties()
    granularity = ok(
        cu.cuMemGetAllocationGranularity(
            prop, cu.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        )
    )
    assert SIZE % granularity == 0, granularity
    handle = ok(cu.cuMemCreate(SIZE, prop, 0))
    address = map_whole(handle)
    ok(cu.cuMemcpyHtoD(address, pattern(1), SIZE))
    fd = int(ok(cu.cuMemExportToShareableHandle(handle, FD, 0)))
    here, there = socket.socketpair()
    importing = subprocess.Popen(
        [sys.executable, __file__, str(there.fileno())], pass_fds=[there.fileno()]
    )
    there.close()
    socket.send_fds(here, [b"x"], [fd])
    answer = here.recv(1)
    assert answer == b"k", f"the importer answered {answer!r}"
    assert importing.wait() == 0
    assert read(address) == pattern(2), "what the importer wrote did not arrive"
    undo(address, handle)
    print(f"OK on {name}")


def importer(number):
    start()
    here = socket.socket(fileno=number)
    _, fds, _, _ = socket.recv_fds(here, 1, 1)
    handle = ok(cu.cuMemImportFromShareableHandle(fds[0], FD))
    address = map_whole(handle)
    assert read(address) == pattern(1), "the exporter's bytes did not arrive"
    ok(cu.cuMemcpyHtoD(address, pattern(2), SIZE))
    undo(address, handle)
    here.send(b"k")


if __name__ == "__main__":
    importer(int(sys.argv[1])) if len(sys.argv) > 1 else exporter()
