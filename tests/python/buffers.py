"""Buffers of python/vmm_ipc.py on a driver found by the loader, used in the right and the wrong ways.

The emulator is meant: VMM_EMULATOR_DEVICES=2 for the cases with two devices.
"""

import array
import contextlib
import copy
import gc
import os
import pathlib
import resource
import socket
import sys
import threading
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parent / "../../python"))

import vmm_ipc
from vmm_ipc import Channel, Device, _call

UNIT = Device().granularity()


def channels():
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    both = []
    # Short: a side that is left waiting is what some of these cases would find.
    other = threading.Thread(target=lambda: both.append(Channel(there, timeout=10.0)))
    other.start()
    here = Channel(here, timeout=10.0)
    other.join()
    return here, both[0]


def current():
    return int(_call("cuCtxGetCurrent"))


def exchange(send, receive):
    """Runs both at once; the value or the error of each."""
    results = {}

    def run(name, work):
        try:
            results[name] = work()
        except BaseException as error:
            results[name] = error

    thread = threading.Thread(target=run, args=("sent", send))
    thread.start()
    run("received", receive)
    thread.join()
    return results["sent"], results["received"]


def open_files():
    return len(os.listdir("/proc/self/fd"))


def free():
    with Device():
        return int(_call("cuMemGetInfo")[0])


def launch_failed():
    return vmm_ipc.CudaError("cuda", vmm_ipc._cuda().CUresult.CUDA_ERROR_LAUNCH_FAILED)


def raising(failure):
    def call(*_arguments):
        raise failure

    return call


@contextlib.contextmanager
def replaced(name, value):
    original = getattr(vmm_ipc, name)
    setattr(vmm_ipc, name, value)
    try:
        yield
    finally:
        setattr(vmm_ipc, name, original)


class Counting:
    """Calls the driver, and counts the calls of one function."""

    def __init__(self, counted):
        self.counted, self.calls = counted, 0

    def __call__(self, name, *arguments):
        self.calls += name == self.counted
        return _call(name, *arguments)


class Waiting:
    """Calls the driver, and notes in which contexts it is waited."""

    def __init__(self):
        self.contexts = []

    def __call__(self, name, *arguments):
        if name == "cuCtxSynchronize":
            self.contexts.append(current())
        return _call(name, *arguments)


class Failing:
    """Calls the driver, but for the first call of each of these functions."""

    def __init__(self, *names, error=None):
        self.names, self.error = list(names), error

    def __call__(self, name, *arguments):
        if name in self.names:
            self.names.remove(name)
            raise self.error or vmm_ipc.CudaError(name, launch_failed().code)
        return _call(name, *arguments)


@contextlib.contextmanager
def capture():
    """A capture of a stream into a graph, which waiting for the device ends."""
    mode = vmm_ipc._cuda().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
    with Device():
        stream = _call("cuStreamCreate", 1)
        _call("cuStreamBeginCapture", stream, mode)
        try:
            yield
        finally:
            vmm_ipc._cuda().cuStreamEndCapture(stream)
            _call("cuStreamDestroy", stream)


class Buffers(unittest.TestCase):
    def test_a_closed_buffer_refuses_everything(self):
        first = vmm_ipc.allocate([UNIT])
        address = first.address
        update = vmm_ipc.grow(first, [UNIT])
        first.close()
        second = vmm_ipc.allocate([UNIT])
        second.write(0, b"mine")
        here, there = channels()
        for use in (
            lambda: first.write(0, b"others"),
            lambda: first.read(0, 4),
            lambda: first.array(),
            lambda: vmm_ipc.grow(first, [UNIT]),
            lambda: vmm_ipc.share(here, first),
            lambda: vmm_ipc.send_update(here, first, update),
        ):
            with self.assertRaisesRegex(ValueError, "closed"):
                use()
        self.assertNotEqual(first.address, address)
        self.assertEqual(second.read(0, 4), b"mine")
        first.close()
        second.close()
        here.close()
        there.close()

    def test_a_copy_is_refused(self):
        buffer = vmm_ipc.allocate([UNIT])
        self.assertRaises(TypeError, copy.copy, buffer)
        self.assertRaises(TypeError, copy.deepcopy, buffer)
        buffer.write(0, b"still there")
        buffer.close()

    def test_what_is_written_is_counted_in_bytes(self):
        buffer = vmm_ipc.allocate([UNIT])
        words = array.array("I", range(8))
        buffer.write(4, words)
        self.assertEqual(buffer.read(4, 32), words.tobytes())
        with self.assertRaises(ValueError):
            buffer.write(UNIT - 16, words)
        self.assertRaises(TypeError, buffer.write, 0, "text")
        buffer.close()

    def test_shapes_that_are_none_are_refused(self):
        buffer = vmm_ipc.allocate([UNIT])
        for typestr, shape, offset in (
            ("|u1", (-1,), 0),
            ("|u1", (-5, -100), 0),
            ("|V0", None, 0),
            ("<f-4", None, 0),
            ("<f4", None, 2),
            ("<f4", (UNIT // 4 + 1,), 0),
            ("<f4", None, -4),
        ):
            with self.assertRaises(ValueError, msg=(typestr, shape, offset)):
                buffer.array(typestr, shape, offset)
        for use in (
            lambda: buffer.array("|u1", (1.5,)),
            lambda: buffer.array("|u1", (1,), 4.0),
            lambda: buffer.read(4.0, 1),
            lambda: buffer.write(4.0, b"x"),
            lambda: vmm_ipc.allocate([float(UNIT)]),
        ):
            self.assertRaises(TypeError, use)
        view = buffer.array("<f4", (2, 3), 8)
        self.assertEqual(view.__cuda_array_interface__["data"], (buffer.address + 8, False))
        self.assertRaises(RuntimeError, buffer.close)
        del view
        buffer.close()

    def test_sizes_may_come_from_a_generator(self):
        buffer = vmm_ipc.allocate(units * UNIT for units in (1, 2))
        self.assertEqual((buffer.sizes, buffer.length), ([UNIT, 2 * UNIT], 3 * UNIT))
        self.assertEqual(vmm_ipc.grow(buffer, (UNIT for _ in range(1))).sizes, [UNIT])
        self.assertEqual(buffer.length, 4 * UNIT)
        buffer.close()

    def test_the_context_of_a_device_is_retained_once(self):
        Device()
        with replaced("_call", counting := Counting("cuDevicePrimaryCtxRetain")):
            Device()
            Device.by_uuid(Device().uuid)
            vmm_ipc.allocate([UNIT]).close()
        self.assertEqual(counting.calls, 0)

    def test_the_callers_context_stays_current(self):
        if _call("cuDeviceGetCount") < 2:
            self.fail("two devices are needed: VMM_EMULATOR_DEVICES=2")
        other = Device(1)
        other.use()
        mine = current()
        buffer = vmm_ipc.allocate([UNIT], device=Device(0))
        buffer.write(0, b"x")
        buffer.read(0, 1)
        here, there = channels()
        sent, received = exchange(
            lambda: vmm_ipc.share(here, buffer), lambda: vmm_ipc.receive(there)
        )
        self.assertIsNone(sent)
        received.close()
        del buffer
        gc.collect()
        self.assertEqual(current(), mine)
        here.close()
        there.close()

    def test_what_is_shared_is_waited_for_on_its_own_device(self):
        if _call("cuDeviceGetCount") < 2:
            self.fail("two devices are needed: VMM_EMULATOR_DEVICES=2")
        with Device(0):
            its_own = current()
        here, there = channels()
        buffer = vmm_ipc.allocate([UNIT], capacity=2 * UNIT)

        def export(send):
            with replaced("_call", waiting := Waiting()), Device(1):
                send()
            return waiting.contexts

        sent, received = exchange(
            lambda: export(lambda: vmm_ipc.share(here, buffer)), lambda: vmm_ipc.receive(there)
        )
        self.assertEqual(sent, [its_own])
        update = vmm_ipc.grow(buffer, [UNIT])
        sent, _ = exchange(
            lambda: export(lambda: vmm_ipc.send_update(here, buffer, update)),
            lambda: vmm_ipc.receive_update(there, received),
        )
        self.assertEqual(sent, [its_own])
        received.close()
        buffer.close()
        here.close()
        there.close()

    def test_any_thread_shares_and_grows(self):
        here, there = channels()
        buffer = vmm_ipc.allocate([UNIT], capacity=4 * UNIT)
        buffer.write(0, b"first")
        sent, received = exchange(
            lambda: vmm_ipc.share(here, buffer), lambda: vmm_ipc.receive(there, writable=False)
        )
        self.assertIsNone(sent)
        self.assertEqual(received.read(0, 5), b"first")
        self.assertTrue(received.array().__cuda_array_interface__["data"][1])
        self.assertFalse(received.array(read_only=False).__cuda_array_interface__["data"][1])
        gc.collect()
        sent, again = exchange(
            lambda: vmm_ipc.send_update(here, buffer, vmm_ipc.grow(buffer, [UNIT])),
            lambda: vmm_ipc.receive_update(there, received),
        )
        self.assertIsNone(sent)
        self.assertIs(again, received)
        self.assertEqual(received.length, 2 * UNIT)
        received.close()
        buffer.close()
        here.close()
        there.close()

    def test_buffers_come_and_are_retired_over_one_connection(self):
        here, there = channels()
        buffers = [vmm_ipc.allocate([UNIT], capacity=2 * UNIT) for _ in range(2)]
        received = []
        for buffer in buffers:
            sent, one = exchange(
                lambda: vmm_ipc.share(here, buffer), lambda: vmm_ipc.receive(there)
            )
            self.assertIsNone(sent)
            received.append(one)
            # What is told between two exchanges waits for the next.
            if buffer is buffers[0]:
                here.send(vmm_ipc.RETIRED, buffer.id)
        self.assertEqual([one.retired for one in received], [True, False])
        self.assertRaises(EOFError, vmm_ipc.receive_update, there, received[0])
        here.send(vmm_ipc.RETIRED, buffers[0].id)
        sent, again = exchange(
            lambda: vmm_ipc.send_update(here, buffers[1], vmm_ipc.grow(buffers[1], [UNIT])),
            lambda: vmm_ipc.receive_update(there, received[1]),
        )
        self.assertIsNone(sent)
        self.assertIs(again, received[1])
        here.send(vmm_ipc.RETIRED, buffers[1].id)
        self.assertRaises(EOFError, vmm_ipc.receive_update, there, received[1])
        self.assertEqual(received[1].length, 2 * UNIT)
        for buffer in (*received, *buffers):
            buffer.close()
        here.close()
        there.close()

    def test_more_chunks_than_descriptors_are_received(self):
        chunks = 300
        buffer = vmm_ipc.allocate([UNIT] * chunks)
        here, there = channels()
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        # For the batch that is sent, the one that arrives, and what is open anyway.
        resource.setrlimit(resource.RLIMIT_NOFILE, (2 * chunks - 100, limit[1]))
        try:
            sent, received = exchange(
                lambda: vmm_ipc.share(here, buffer), lambda: vmm_ipc.receive(there)
            )
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        self.assertIsNone(sent)
        self.assertEqual(len(received.sizes), chunks)
        received.close()
        buffer.close()
        here.close()
        there.close()

    def test_whatever_fails_in_the_importer_is_told(self):
        here, there = channels()
        buffer = vmm_ipc.allocate([UNIT])
        before = open_files()
        for failure in (launch_failed(), MemoryError("no room"), ImportError("no bindings")):
            for place in ("_import", "Buffer"):
                with replaced(place, raising(failure)):
                    sent, received = exchange(
                        lambda: vmm_ipc.share(here, buffer), lambda: vmm_ipc.receive(there)
                    )
                self.assertIsInstance(sent, vmm_ipc.RefusedError, (place, failure))
                self.assertIs(received, failure)
                self.assertEqual(open_files(), before)
        # Both are in step still.
        sent, received = exchange(
            lambda: vmm_ipc.share(here, buffer), lambda: vmm_ipc.receive(there)
        )
        self.assertIsNone(sent)
        received.close()
        buffer.close()
        here.close()
        there.close()

    def test_handles_that_came_before_a_failure_are_given_back(self):
        before = free()
        here, there = channels()
        buffer = vmm_ipc.allocate([UNIT] * 129)  # which are two messages
        imported = []

        def import_once(fds, original=vmm_ipc._import):
            if imported:
                raise launch_failed()
            imported.extend(original(fds))
            return imported

        with replaced("_import", import_once):
            sent, received = exchange(
                lambda: vmm_ipc.share(here, buffer), lambda: vmm_ipc.receive(there)
            )
        self.assertIsInstance(sent, vmm_ipc.RefusedError)
        self.assertIsInstance(received, vmm_ipc.CudaError)
        self.assertEqual(len(imported), 128)
        del received
        buffer.close()
        self.assertEqual(free(), before)
        here.close()
        there.close()

    def test_one_that_is_interrupted_hangs_up(self):
        buffer = vmm_ipc.allocate([UNIT])
        exporter, importer = "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle"
        for place in (exporter, importer):
            here, there = channels()
            with replaced("_call", Failing(place, error=KeyboardInterrupt())):
                results = exchange(
                    lambda: vmm_ipc.share(here, buffer), lambda: vmm_ipc.receive(there)
                )
            expected = [KeyboardInterrupt, EOFError]
            self.assertEqual(
                [type(one) for one in results], expected if place == exporter else expected[::-1]
            )
            here.close()
            there.close()
        buffer.close()

    def test_a_release_that_fails_goes_on_and_can_be_tried_again(self):
        before = free()
        steps = ("cuCtxPushCurrent", "cuCtxSynchronize", "cuMemUnmap", "cuMemRelease")
        for failing in (*steps, "cuMemAddressFree"):
            buffer = vmm_ipc.allocate([UNIT, UNIT])
            with replaced("_call", Failing(failing)):
                self.assertRaises(vmm_ipc.CudaError, buffer.close)
            buffer.close()
            self.assertEqual(free(), before, failing)

    def test_a_grow_that_fails_is_undone_and_said_also_where_undoing_fails(self):
        for also in ((), ("cuMemUnmap",), ("cuMemRelease",), ("cuMemAddressFree",)):
            before = free()
            buffer = vmm_ipc.allocate([UNIT])
            buffer.write(0, b"still there")
            with replaced("_call", Failing("cuMemSetAccess", *also)):
                with self.assertRaisesRegex(vmm_ipc.CudaError, "cuMemSetAccess"):
                    vmm_ipc.grow(buffer, [UNIT])
            self.assertEqual((buffer.length, buffer.sizes), (UNIT, [UNIT]))
            self.assertEqual(buffer.read(0, 11), b"still there")
            vmm_ipc.grow(buffer, [UNIT])
            buffer.close()
            if also != ("cuMemRelease",):  # which leaves nothing to try again with
                self.assertEqual(free(), before, also)

    def test_what_goes_during_a_capture_is_unmapped_with_the_next(self):
        before = free()
        let_go, closed = vmm_ipc.allocate([UNIT]), vmm_ipc.allocate([UNIT])
        closed.write(0, b"still there")
        with replaced("_call", counting := Counting("cuMemUnmap")), capture():
            del let_go
            gc.collect()
            with self.assertRaisesRegex(vmm_ipc.CudaError, "CAPTURE"):
                closed.close()
        self.assertEqual(counting.calls, 0)
        self.assertEqual(closed.read(0, 11), b"still there")
        closed.close()
        self.assertEqual(free(), before)


if __name__ == "__main__":
    unittest.main()
