"""Share CUDA virtual memory buffers with other processes: docs/protocol.md, spoken from Python.

    channel = vmm_ipc.Channel.connect("/run/buffers/socket")
    buffer = vmm_ipc.receive(channel)
    tensor = torch.as_tensor(buffer.array("<f4"), device="cuda")

One file: the standard library and, for what touches a GPU, NVIDIA's `cuda-bindings`. Sizes are in
bytes. Handles travel as file descriptors; fabric handles are decoded, but not imported.
"""

import array
import contextlib
import math
import operator
import os
import re
import socket
import struct
import time
import weakref
from dataclasses import dataclass, field

VERSION = 1
HELLO, OFFER, UPDATE, HANDLES, ACCEPTED, REFUSED, RETIRED = range(1, 8)
DEVICE, HOST_NUMA = 1, 3
POSIX_FD, FABRIC = 1, 8
OTHER, NOT_VISIBLE, LIMIT, RESOURCES, MISMATCH, OUT_OF_ORDER, TOO_LONG = range(7)
PART = 32768  # bytes of payload in a full frame
MOST_FDS = 253
MOST_CHUNKS = 1 << 20
LARGEST = (1 << 63) - 1


class ProtocolError(Exception):
    """The other side said something that docs/protocol.md does not allow."""


class RefusedError(Exception):
    """The importer, here or there, did not take the buffer; `reason` is the number of the cause."""

    def __init__(self, reason, text):
        super().__init__(f"the importer refused (reason {reason}): {text}")
        self.reason, self.text = reason, text


def _check(condition, what):
    if not condition:
        raise ProtocolError(what)


# ---- what travels: bytes to values and back, without a socket and without CUDA ----

_DESCRIPTOR = struct.Struct("<4sHHII16sQ16sBB2siQQQ")
_UPDATE = struct.Struct("<4sHHII16sQIB11sQQQ")
_FRAME = struct.Struct("<BBHIII")


@dataclass
class Descriptor:
    """All about a buffer but where it is mapped."""

    id: bytes
    generation: int
    device: bytes
    granularity: int
    length: int
    capacity: int
    sizes: list
    location: int = DEVICE
    handle_type: int = POSIX_FD
    numa: int = 0
    fabric: list = field(default_factory=list)

    def encode(self):
        tail = _chunks(self.sizes, self.fabric)
        return _DESCRIPTOR.pack(
            b"VMMD", VERSION, 0, _DESCRIPTOR.size + len(tail), len(self.sizes), self.id,
            self.generation, self.device, self.location, self.handle_type, bytes(2), self.numa,
            self.granularity, self.length, self.capacity,
        ) + tail  # fmt: skip

    @classmethod
    def decode(cls, data):
        _check(len(data) >= _DESCRIPTOR.size, "a descriptor is cut short")
        (magic, version, flags, total, count, id, generation, device, location, kind, reserved,
         numa, granularity, length, capacity) = _DESCRIPTOR.unpack_from(data)  # fmt: skip
        _check(magic == b"VMMD", "not a descriptor")
        _check(location in (DEVICE, HOST_NUMA), "unknown location")
        _check(numa >= 0 if location == HOST_NUMA else numa == 0, "not a NUMA node")
        head = (version, flags, total, count, reserved, granularity)
        sizes, fabric = _read_chunks(data, _DESCRIPTOR.size, kind, *head)
        _check(length <= sum(sizes), "longer than its chunks")
        _check(sum(sizes) <= capacity <= LARGEST, "a capacity that cannot be")
        _check(capacity % granularity == 0, "a capacity off the granularity")
        return cls(id, generation, device, granularity, length, capacity, sizes, location, kind,
                   numa, fabric)  # fmt: skip


@dataclass
class Update:
    """From one generation of a buffer to the next: the chunks that came behind the others."""

    id: bytes
    generation: int
    first: int
    granularity: int
    before: int
    length: int
    sizes: list
    handle_type: int = POSIX_FD
    fabric: list = field(default_factory=list)

    def encode(self):
        tail = _chunks(self.sizes, self.fabric)
        return _UPDATE.pack(
            b"VMMU", VERSION, 0, _UPDATE.size + len(tail), len(self.sizes), self.id,
            self.generation, self.first, self.handle_type, bytes(11), self.granularity,
            self.before, self.length,
        ) + tail  # fmt: skip

    @classmethod
    def decode(cls, data):
        _check(len(data) >= _UPDATE.size, "an update is cut short")
        (magic, version, flags, total, count, id, generation, first, kind, reserved, granularity,
         before, length) = _UPDATE.unpack_from(data)  # fmt: skip
        _check(magic == b"VMMU", "not an update")
        head = (version, flags, total, count, reserved, granularity)
        sizes, fabric = _read_chunks(data, _UPDATE.size, kind, *head)
        _check(generation >= 1, "an update to generation 0")
        _check(before + sum(sizes) <= LARGEST, "more chunks than can be")
        _check(length <= before + sum(sizes), "longer than its chunks")
        return cls(id, generation, first, granularity, before, length, sizes, kind, fabric)


def _chunks(sizes, fabric):
    return struct.pack(f"<{len(sizes)}Q", *sizes) + b"".join(fabric)


def _read_chunks(data, at, kind, version, flags, total, count, reserved, granularity):
    _check(version == VERSION, f"version {version} of the format")
    _check(flags == 0 and not any(reserved), "a reserved field that is not zero")
    _check(kind in (POSIX_FD, FABRIC), "unknown handle type")
    _check(count >= 1, "no chunks")
    each = 72 if kind == FABRIC else 8
    _check(total == len(data) == at + each * count, "lengths that do not agree")
    _check(granularity.bit_count() == 1, "a granularity that is no power of two")
    sizes = list(struct.unpack_from(f"<{count}Q", data, at))
    _check(all(s and s % granularity == 0 for s in sizes), "a chunk off the granularity")
    _check(sum(sizes) <= LARGEST, "more chunks than can be")
    rest = data[at + 8 * count :]
    return sizes, [bytes(rest[i : i + 64]) for i in range(0, len(rest), 64)]


def encode_message(kind, *values):
    """The payload of a message of fixed form; of an offer or update, of its value."""
    if kind in (OFFER, UPDATE):
        return values[0].encode()
    if kind == HELLO:
        return struct.pack("<8sH6x", b"VMM-IPC\0", VERSION)
    if kind == REFUSED:
        id, generation, reason, text = values
        text = text.encode()[:1024].decode(errors="ignore").encode()
        return struct.pack("<16sQH6x", id, generation, reason) + text
    return struct.pack({HANDLES: "<16sII", ACCEPTED: "<16sQ", RETIRED: "<16s"}[kind], *values)


def decode_message(kind, data):
    """The values of a message, as `encode_message` takes them; none for hello."""
    if kind == OFFER:
        return (Descriptor.decode(data),)
    if kind == UPDATE:
        return (Update.decode(data),)
    if kind == HELLO:
        _check(data == encode_message(HELLO), "another protocol, or another version of it")
        return ()
    if kind == REFUSED:
        _check(32 <= len(data) <= 1056, "a refusal of the wrong length")
        id, generation, reason, reserved = struct.unpack_from("<16sQH6s", data)
        _check(not any(reserved) and reason <= TOO_LONG, "a refusal that is not known")
        try:
            return id, generation, reason, data[32:].decode()
        except UnicodeDecodeError:
            raise ProtocolError("a refusal that is not UTF-8") from None
    form = {HANDLES: "<16sII", ACCEPTED: "<16sQ", RETIRED: "<16s"}.get(kind)
    _check(form, f"unknown message {kind}")
    _check(len(data) == struct.calcsize(form), "a message of the wrong length")
    values = struct.unpack(form, data)
    _check(kind != HANDLES or 1 <= values[2] <= MOST_FDS, "a number of descriptors that cannot be")
    return values


def _most(kind):
    bulk = 128 + 72 * MOST_CHUNKS
    return {HELLO: 16, OFFER: bulk, UPDATE: bulk, HANDLES: 24, ACCEPTED: 24, REFUSED: 1056,
            RETIRED: 16}.get(kind, -1)  # fmt: skip


def decode_frame(data):
    """One packet: kind, fds, total, offset and the part of the payload."""
    _check(len(data) >= _FRAME.size, "a frame is cut short")
    kind, flags, fds, length, total, offset = _FRAME.unpack_from(data)
    part = data[_FRAME.size :]
    _check(flags == 0, "a reserved field that is not zero")
    _check(0 <= total <= _most(kind), "an unknown message, or one that is too long")
    _check(offset % PART == 0 and offset <= total, "a frame out of its place")
    _check(length == len(part) == min(PART, total - offset), "a frame that is not full")
    _check(offset == 0 or length, "an empty frame behind others")
    _check((1 <= fds <= MOST_FDS) if kind == HANDLES else fds == 0, "file descriptors out of place")
    return kind, fds, total, offset, part


def encode_frames(kind, payload, fds=0):
    """The packets of a message, header and part each."""
    return [
        _FRAME.pack(kind, 0, fds, len(payload[at : at + PART]), len(payload), at)
        + payload[at : at + PART]
        for at in range(0, max(1, len(payload)), PART)
    ]


# ---- the connection ----


class Channel:
    """One SEQPACKET socket after the hellos. Any error closes it: there is no way back into step."""

    def __init__(self, sock, timeout=30.0, uids=None):
        """`uids`: the users that the other side may be; by default the own one."""
        self._socket, self.timeout = sock, timeout
        self._received = weakref.WeakSet()  # buffers whose end the other side may tell
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        self.peer_pid, self.peer_uid, _ = struct.unpack("iII", credentials)
        if self.peer_uid not in ([os.geteuid()] if uids is None else uids):
            sock.close()
            raise PermissionError(f"the other side is user {self.peer_uid}, who is not allowed")
        self.send(HELLO)
        kind, _, _ = self._receive()
        if kind != HELLO:
            self._fail("the first message is no hello")

    @classmethod
    def connect(cls, path, timeout=30.0, uids=None):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        until = time.monotonic() + timeout
        try:
            sock.settimeout(timeout)
            while True:
                try:
                    sock.connect(os.fspath(path))
                    break
                except (FileNotFoundError, ConnectionRefusedError) as error:
                    raise ConnectionRefusedError(f"nobody listens at {os.fspath(path)}") from error
                except BlockingIOError:  # many others wait for the same listener
                    if time.monotonic() > until:
                        raise
                    time.sleep(0.002)
        except BaseException:
            sock.close()
            raise
        return cls(sock, timeout, uids)

    def close(self):
        self._socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def send(self, kind, *values, fds=()):
        """Sends a message, and the descriptors with the first byte of its frame."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            for packet in encode_frames(kind, encode_message(kind, *values), len(fds)):
                self._socket.settimeout(self.timeout)
                self._socket.sendmsg([packet], rights, socket.MSG_NOSIGNAL)
        except BaseException:
            self.close()
            raise

    def receive(self):
        """The next message: kind, values, and descriptors that are now the caller's."""
        kind, values, fds = self._receive()
        if kind == HELLO:
            self._fail("a second hello")
        return kind, values, fds

    def expect(self, *kinds, until=None):
        """As `receive`, for one of these kinds; any other ends the connection. `until` is a time of
        `time.monotonic`, for an exchange of several messages."""
        kind, values, fds = self._receive(until)
        if kind not in kinds:
            for fd in fds:
                os.close(fd)
            self._fail(f"message {kind} where {' or '.join(map(str, kinds))} was expected")
        return kind, values, fds

    def _receive(self, until=None):
        fds, payload, message = [], bytearray(), None
        until = until or time.monotonic() + self.timeout
        try:
            while message is None or len(payload) < message[1]:
                left = until - time.monotonic()
                if left <= 0:
                    raise TimeoutError("the other side was too slow")
                self._socket.settimeout(left)
                kind, total, part = self._frame(fds, len(payload))
                _check(message in (None, (kind, total)), "another message between the frames")
                message = (kind, total)
                payload += part
            return kind, decode_message(kind, bytes(payload)), self._stated(kind, payload, fds)
        except BaseException:
            for fd in fds:
                os.close(fd)
            self.close()
            raise

    def _frame(self, fds, expected):
        room = socket.CMSG_SPACE(4 * MOST_FDS)
        flags = socket.MSG_CMSG_CLOEXEC
        data, control, flags, _ = self._socket.recvmsg(_FRAME.size + PART, room, flags)
        for level, type, rights in control:
            if (level, type) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                numbers = array.array("i")
                numbers.frombytes(rights[: len(rights) // 4 * 4])
                fds.extend(numbers)
        if not data:
            raise EOFError("the other side hung up")
        _check(not flags & socket.MSG_TRUNC, "a packet longer than a frame")
        _check(not flags & socket.MSG_CTRUNC, "file descriptors lost: is their limit reached?")
        kind, count, total, offset, part = decode_frame(data)
        _check(offset == expected, "a frame out of its place")
        _check(count == len(fds), "other file descriptors than stated")
        return kind, total, part

    def _stated(self, kind, payload, fds):
        stated = decode_message(HANDLES, bytes(payload))[2] if kind == HANDLES else 0
        _check(stated == len(fds), "other file descriptors than stated")
        return fds

    def _fail(self, what):
        self.close()
        raise ProtocolError(what)


# ---- the memory ----


def _cuda():
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise ImportError("NVIDIA's bindings are missing: pip install cuda-bindings") from error
    return driver


class CudaError(Exception):
    """A call of the driver failed."""

    def __init__(self, name, code):
        super().__init__(f"{name}: {code.name} ({int(code)})")
        self.code = code


def _call(name, *arguments):
    code, *values = getattr(_cuda(), name)(*arguments)
    if int(code):
        raise CudaError(name, code)
    return values[0] if len(values) == 1 else values


def _give_back(name, items, failed):
    """Calls `name` with each of `items`; returns those for which it failed, the errors in `failed`."""
    left = []
    for item in items:
        try:
            _call(name, *item)
        except CudaError as error:
            failed.append(error)
            left.append(item)
    return left


def _release_handles(handles):
    """For a failure that is raised already, which another one would hide."""
    _give_back("cuMemRelease", [(handle,) for handle in handles], [])


def _uuid(device):
    v2 = hasattr(_cuda(), "cuDeviceGetUuid_v2")
    return bytes(_call("cuDeviceGetUuid_v2" if v2 else "cuDeviceGetUuid", device).bytes)


class Device:
    """A GPU of this process. `with device:` has its primary context current, and then the caller's
    again; `use` leaves it current in this thread, for calls of your own."""

    # The primary context of each GPU, retained once and kept until the process ends.
    _contexts = {}

    def __init__(self, ordinal=0):
        _call("cuInit", 0)
        self.ordinal, self._device = ordinal, _call("cuDeviceGet", ordinal)
        self.uuid = _uuid(self._device)
        if ordinal not in Device._contexts:
            Device._contexts[ordinal] = _call("cuDevicePrimaryCtxRetain", self._device)
        self._context = Device._contexts[ordinal]

    def __enter__(self):
        _call("cuCtxPushCurrent", self._context)
        return self

    def __exit__(self, *_):
        _call("cuCtxPopCurrent")

    @classmethod
    def by_uuid(cls, uuid):
        """None where no device that is visible here has this UUID."""
        _call("cuInit", 0)
        for ordinal in range(_call("cuDeviceGetCount")):
            # Only the one that is wanted gets a context.
            if _uuid(_call("cuDeviceGet", ordinal)) == uuid:
                return cls(ordinal)
        return None

    def use(self):
        _call("cuCtxSetCurrent", self._context)

    def _place(self, value):
        value.type = _cuda().CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        value.id = self.ordinal

    def properties(self):
        cu = _cuda()
        properties = cu.CUmemAllocationProp()
        properties.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.requestedHandleTypes = _fd_type()
        self._place(properties.location)
        return properties

    def granularity(self):
        flags = _cuda().CUmemAllocationGranularity_flags
        minimum = flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        return _call("cuMemGetAllocationGranularity", self.properties(), minimum)

    def access(self, writable):
        cu = _cuda()
        access = cu.CUmemAccessDesc()
        self._place(access.location)
        flags = cu.CUmemAccess_flags
        access.flags = (
            flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            if writable
            else flags.CU_MEM_ACCESS_FLAGS_PROT_READ
        )
        return access


def _fd_type():
    return _cuda().CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


class Array:
    """A buffer, or a part of it, for `torch.as_tensor(..., device="cuda")` and `cupy.asarray`."""

    def __init__(self, buffer, typestr, shape, offset, read_only):
        self.buffer = buffer  # stays mapped as long as somebody looks at it
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": typestr,
            "data": (buffer.address + offset, read_only),
            "strides": None,
            "stream": None,
        }


class Buffer:
    """Chunks at one contiguous range of addresses. `close` it, or let it go, to unmap it: either waits
    for the device, which ends a capture of a stream into a graph that goes on: do neither then.

    One that grows beyond its `capacity` moves to twice the addresses, so that moves stay few. Arrays of
    the old place stay valid and see the same bytes: it stays mapped until the buffer is closed.

    `retired`: the other side has said that it will send no more updates of it."""

    # Those that were let go and could not be unmapped, tried again when another buffer goes.
    _left = []

    def __init__(self, device, capacity, granularity, writable=True):
        self.device, self.granularity = device, granularity
        self.writable, self.closed, self.retired = writable, False, False
        self.length = self.mapped = self.capacity = self.address = 0
        self.id, self.generation = os.urandom(16), 0
        self.sizes, self._handles, self._ranges, self._mappings = [], [], [], []
        self._arrays = weakref.WeakSet()
        self._reserve(capacity)

    def array(self, typestr="|u1", shape=None, offset=0, read_only=None):
        """An object with `__cuda_array_interface__`; `typestr` as in NumPy, such as "<f4".

        The array of a buffer that was received with `writable=False` says that it is read-only.
        PyTorch takes no such array: `read_only=False` is for that, and then a kernel that writes to the
        tensor ends in a fault that the context does not survive."""
        self._open()
        if not re.fullmatch("[<|][biufc][1-9][0-9]*", typestr):
            raise ValueError(f'{typestr!r} is no type such as "<f4" or "|u1"')
        item, offset = int(typestr[2:]), operator.index(offset)
        if shape is None:
            shape = (max(self.length - offset, 0) // item,)
        shape = tuple(operator.index(count) for count in shape)
        inside = offset >= 0 and offset + item * math.prod(shape) <= self.length
        if offset % item or min(shape, default=0) < 0 or not inside:
            raise ValueError(f"{shape} of {typestr} at {offset} is not in {self.length} bytes")
        read_only = not self.writable if read_only is None else read_only
        view = Array(self, typestr, shape, offset, read_only)
        self._arrays.add(view)
        return view

    def read(self, offset, length):
        address = self._inside(offset, length)
        data = bytearray(length)
        with self.device:
            _call("cuMemcpyDtoH", data, address, length)
        return bytes(data)

    def write(self, offset, data):
        """`data` is anything with bytes: also an array of larger items."""
        data = memoryview(data).tobytes()
        address = self._inside(offset, len(data))
        with self.device:
            _call("cuMemcpyHtoD", address, data, len(data))

    def close(self):
        """Waits for the device, unmaps and releases. Not while a tensor still looks at it."""
        if len(self._arrays):
            raise RuntimeError("a tensor or an array still looks at this buffer")
        self._release()

    def _release(self):
        """As much as can be; the first failure is raised then, and what is left can be tried again."""
        if not self._holds():
            return
        failed = []
        try:
            with self.device:
                _call("cuCtxSynchronize")
        except CudaError as error:
            # Work may go on where a stream is being captured: nothing is taken from under it. In a
            # context that is broken or gone none does, and the memory is given back.
            if "CAPTURE" in error.code.name:
                raise
            failed.append(error)
        self.closed = True
        self.length = self.mapped = self.capacity = self.address = 0
        self.sizes = []
        self._mappings = _give_back("cuMemUnmap", self._mappings, failed)
        handles = [(handle,) for handle in self._handles]
        self._handles = [handle for (handle,) in _give_back("cuMemRelease", handles, failed)]
        if not self._mappings:
            self._ranges = _give_back("cuMemAddressFree", self._ranges, failed)
        if failed:
            raise failed[0]
        with contextlib.suppress(IndexError):  # another thread was faster
            for _ in range(len(Buffer._left)):
                Buffer._left.pop(0).__del__()

    def _holds(self):
        return self._mappings or self._handles or self._ranges

    def _no_copy(self, *_):
        raise TypeError("a copy would unmap the same memory again: pass the buffer itself on")

    __copy__ = __deepcopy__ = __reduce_ex__ = _no_copy

    def __del__(self):
        try:
            self._release()
        except CudaError:
            if self._holds():
                Buffer._left.append(self)
        except Exception:  # the interpreter ends, and so does the driver
            pass

    def _open(self):
        if self.closed:
            raise ValueError("the buffer is closed")

    def _inside(self, offset, length):
        """The address of `offset`, from where on there are `length` bytes."""
        self._open()
        if offset < 0 or length < 0 or offset + length > self.length:
            raise ValueError(f"{length} bytes at {offset} are not in {self.length}")
        return self.address + operator.index(offset)

    def _reserve(self, capacity):
        address = int(_call("cuMemAddressReserve", capacity, 0, 0, 0))
        self._ranges.append((address, capacity))
        self.address, self.capacity, self.mapped = address, capacity, 0

    def _move(self, total):
        """Addresses for the whole buffer, with room to grow into: every move maps all chunks again."""
        ample = max(total, 2 * self.capacity)
        try:
            self._reserve(ample)
        except CudaError as error:
            if ample == total or error.code.name != "CUDA_ERROR_OUT_OF_MEMORY":
                raise
            self._reserve(total)

    def _extend(self, handles, sizes, length):
        """Takes the handles over and maps them behind the others; as a whole or not at all."""
        before = (self.address, self.capacity, self.mapped, len(self._mappings), len(self._ranges))
        try:
            self._open()
            new = list(zip(handles, sizes))
            total = sum(self.sizes) + sum(sizes)
            if total > self.capacity:
                # What looks at the old range keeps it; the buffer continues at a larger one.
                new = list(zip(self._handles, self.sizes)) + new
                self._move(total)
            start = self.address + self.mapped
            for handle, size in new:
                _call("cuMemMap", self.address + self.mapped, size, 0, handle, 0)
                self._mappings.append((self.address + self.mapped, size))
                self.mapped += size
            access = [self.device.access(self.writable)]
            _call("cuMemSetAccess", start, self.address + self.mapped - start, access, 1)
        except BaseException:
            # What cannot be undone waits for the buffer's end.
            self.address, self.capacity, self.mapped, mappings, ranges = before
            self._mappings[mappings:] = _give_back("cuMemUnmap", self._mappings[mappings:], [])
            if len(self._mappings) == mappings:
                self._ranges[ranges:] = _give_back("cuMemAddressFree", self._ranges[ranges:], [])
            _release_handles(handles)
            raise
        self._handles += handles
        self.sizes += sizes
        self.length = length


# ---- importing ----


def receive(channel, writable=True):
    """Receives an offer, maps it and accepts; a `Buffer` of the same bytes as the exporter's."""
    offer = _awaited(channel, OFFER)

    def start():
        device = Device.by_uuid(offer.device)
        if device is None:
            raise RefusedError(NOT_VISIBLE, f"the importer does not see device {offer.device.hex()}")
        buffer = Buffer(device, offer.capacity, offer.granularity, writable)
        buffer.id, buffer.generation = offer.id, offer.generation
        return buffer

    return _answer(channel, offer, 0, start)


def receive_update(channel, buffer):
    """Receives an update of `buffer`, which is longer afterwards; take new arrays of it then.

    EOFError where the other side has said that no more will come; the buffer stays as it is."""
    channel._received.add(buffer)
    update = _awaited(channel, UPDATE, buffer)

    def start():
        buffer._open()
        ours = (buffer.id, buffer.generation + 1, len(buffer.sizes), sum(buffer.sizes))
        theirs = (update.id, update.generation, update.first, update.before)
        if ours != theirs:
            raise RefusedError(OUT_OF_ORDER, "not the update that the importer needs next")
        if update.granularity != buffer.granularity or update.length < buffer.length:
            raise RefusedError(MISMATCH, "an update of another buffer")
        return buffer

    return _answer(channel, update, update.first, start)


def _awaited(channel, kind, buffer=None):
    """The next offer or update. Between two of them the end of any buffer may be told."""
    until = time.monotonic() + channel.timeout  # for whatever comes before it, too
    while buffer is None or not buffer.retired:
        found, (value,), _ = channel.expect(kind, RETIRED, until=until)
        if found == kind:
            return value
        for known in list(channel._received):
            known.retired |= known.id == value
    raise EOFError("no more updates of this buffer will come")


def _answer(channel, offer, first, start):
    """Receives the handles whatever becomes of them, so that both sides stay in step, and tells the
    other side how it went. They are imported, and their descriptors closed, message by message."""
    buffer, handles, failed, in_step = None, [], None, False
    until = time.monotonic() + channel.timeout  # for all of them together
    try:
        try:
            if offer.handle_type != POSIX_FD:
                raise RefusedError(OTHER, "the importer takes file descriptors only")
            buffer = start()
        except Exception as error:
            failed = error
        arrived = 0
        while offer.handle_type == POSIX_FD and arrived < len(offer.sizes):
            fds = _next_handles(channel, offer, first, arrived, until)
            if fds is None:
                in_step = True
                raise EOFError("the exporter took its offer back")
            arrived += len(fds)
            try:
                if failed is None:
                    handles += _import(fds)
            except Exception as error:
                failed = error
            finally:
                for fd in fds:
                    os.close(fd)
        if failed is None:
            try:
                mine, handles = handles, []
                buffer._extend(mine, offer.sizes, offer.length)
                buffer.generation = offer.generation
            except Exception as error:
                failed = error
        if failed is not None:
            channel.send(REFUSED, offer.id, offer.generation, *_reason(failed))
            in_step = True
            raise failed
        channel.send(ACCEPTED, offer.id, offer.generation)
        in_step = True
        channel._received.add(buffer)
        return buffer
    finally:
        failed = None  # which would keep this frame, and the buffer with it
        _release_handles(handles)
        if not in_step:  # somebody waits for an answer that does not come
            channel.close()


def _next_handles(channel, offer, first, arrived, until):
    """The descriptors of the next message; None where the offer is taken back instead."""
    kind, values, fds = channel.expect(HANDLES, RETIRED, until=until)
    if kind == RETIRED and values[0] == offer.id:
        return None
    expected = kind == HANDLES and values[:2] == (offer.id, first + arrived)
    if not expected or not fds or arrived + len(fds) > len(offer.sizes):
        for fd in fds:
            os.close(fd)
        channel._fail("not the handles that come next")
    return fds


def _reason(error):
    """Why an offer is refused, as it is sent."""
    if isinstance(error, RefusedError):
        return error.reason, error.text
    exhausted = isinstance(error, CudaError) and error.code.name == "CUDA_ERROR_OUT_OF_MEMORY"
    return RESOURCES if exhausted or isinstance(error, MemoryError) else OTHER, str(error)


def _import(fds):
    handles = []
    try:
        for fd in fds:
            handles.append(_call("cuMemImportFromShareableHandle", fd, _fd_type()))
    except BaseException:
        _release_handles(handles)
        raise
    return handles


# ---- exporting ----


def allocate(sizes, capacity=None, device=None):
    """A buffer of one chunk for each of `sizes`, that can be shared; see `share` and `grow`."""
    device = device or Device()
    granularity = device.granularity()
    sizes = _whole(sizes, granularity)
    total = sum(sizes)
    capacity = -(-max(operator.index(capacity or 0), total) // granularity) * granularity
    buffer = Buffer(device, capacity, granularity)
    buffer._extend(_create(device, sizes), sizes, total)
    return buffer


def grow(buffer, sizes):
    """Puts chunks behind those of a buffer that `allocate` made; returns the update to send."""
    buffer._open()
    sizes = _whole(sizes, buffer.granularity)
    update = Update(buffer.id, buffer.generation + 1, len(buffer.sizes), buffer.granularity,
                    sum(buffer.sizes), sum(buffer.sizes) + sum(sizes), sizes)  # fmt: skip
    buffer._extend(_create(buffer.device, sizes), sizes, update.length)
    buffer.generation += 1
    return update


def share(channel, buffer):
    """Offers `buffer` and waits until the other side has mapped it."""
    buffer._open()
    with buffer.device:
        _call("cuCtxSynchronize")
    offer = Descriptor(buffer.id, buffer.generation, buffer.device.uuid, buffer.granularity,
                       buffer.length, buffer.capacity, buffer.sizes)  # fmt: skip
    _offer(channel, OFFER, offer, buffer, 0)


def send_update(channel, buffer, update):
    """Sends what `grow` returned, to a side that has the generation before."""
    buffer._open()
    with buffer.device:
        _call("cuCtxSynchronize")
    _offer(channel, UPDATE, update, buffer, update.first)


def _whole(sizes, granularity):
    sizes = [operator.index(size) for size in sizes]
    if not sizes or any(size <= 0 or size % granularity for size in sizes):
        raise ValueError(f"a chunk is a multiple of {granularity} bytes on this device")
    return sizes


def _create(device, sizes):
    handles = []
    try:
        for size in sizes:
            handles.append(_call("cuMemCreate", size, device.properties(), 0))
    except BaseException:
        _release_handles(handles)
        raise
    return handles


def _offer(channel, kind, offer, buffer, first):
    """After an error of the driver's, or a refusal, both sides are in step; any other ends it, and so
    does a refusal for a message that was too long, whose sender is gone."""
    try:
        _exchange(channel, kind, offer, buffer, first)
    except CudaError:
        raise
    except RefusedError as error:
        if error.reason == TOO_LONG:
            channel.close()
        raise
    except BaseException:
        channel.close()
        raise


def _exchange(channel, kind, offer, buffer, first):
    channel.send(kind, offer)
    end, at = first + len(offer.sizes), first
    while at < end:
        fds = []
        try:
            for handle in buffer._handles[at : min(end, at + 128)]:
                fds.append(int(_call("cuMemExportToShareableHandle", handle, _fd_type(), 0)))
            channel.send(HANDLES, offer.id, at, len(fds), fds=fds)
        except CudaError:
            channel.send(RETIRED, offer.id)
            raise
        finally:
            for fd in fds:
                os.close(fd)
        at += 128
    kind, values, _ = channel.expect(ACCEPTED, REFUSED)
    if kind == REFUSED and values[:2] == (offer.id, offer.generation):
        raise RefusedError(*values[2:])
    if (kind, values) != (ACCEPTED, (offer.id, offer.generation)):
        channel._fail("not the answer to what was offered")
