"""Buffers of python/vmm_ipc.py on a driver found by the loader, used in the right and the wrong ways.

The emulator is meant: VMM_EMULATOR_DEVICES=2 for the cases with two devices.
"""

import array
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
    other = threading.Thread(target=lambda: both.append(Channel(there)))
    other.start()
    here = Channel(here)
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
        except Exception as error:
            results[name] = error

    thread = threading.Thread(target=run, args=("sent", send))
    thread.start()
    run("received", receive)
    thread.join()
    return results["sent"], results["received"]


class Buffers(unittest.TestCase):
    def test_a_closed_buffer_refuses_everything(self):
        first = vmm_ipc.allocate([UNIT])
        address = first.address
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
        self.assertRaises(TypeError, buffer.array, "|u1", (1.5,))
        view = buffer.array("<f4", (2, 3), 8)
        self.assertEqual(view.__cuda_array_interface__["data"], (buffer.address + 8, False))
        self.assertRaises(RuntimeError, buffer.close)
        del view
        buffer.close()

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
        before = len(os.listdir("/proc/self/fd"))
        original = vmm_ipc._import

        def broken(_fds):
            raise vmm_ipc.CudaError("cuMemImport", _call_code())

        vmm_ipc._import = broken
        try:
            sent, received = exchange(
                lambda: vmm_ipc.share(here, buffer), lambda: vmm_ipc.receive(there)
            )
        finally:
            vmm_ipc._import = original
        self.assertIsInstance(sent, vmm_ipc.RefusedError)
        self.assertIsInstance(received, vmm_ipc.CudaError)
        self.assertEqual(len(os.listdir("/proc/self/fd")), before)
        # Both are in step still.
        sent, received = exchange(
            lambda: vmm_ipc.share(here, buffer), lambda: vmm_ipc.receive(there)
        )
        self.assertIsNone(sent)
        received.close()
        buffer.close()
        here.close()
        there.close()

    def test_a_release_that_fails_goes_on_and_can_be_tried_again(self):
        free = lambda: int(_call("cuMemGetInfo")[0])
        with Device():
            before = free()
        for failing in ("cuCtxSynchronize", "cuMemUnmap", "cuMemRelease", "cuMemAddressFree"):
            buffer = vmm_ipc.allocate([UNIT, UNIT])
            original, calls = vmm_ipc._call, []

            def call(name, *arguments):
                if name == failing and not calls:
                    calls.append(name)
                    raise vmm_ipc.CudaError(name, _call_code())
                return original(name, *arguments)

            vmm_ipc._call = call
            try:
                self.assertRaises(vmm_ipc.CudaError, buffer.close)
            finally:
                vmm_ipc._call = original
            self.assertEqual(calls, [failing])
            buffer.close()
            with Device():
                self.assertEqual(free(), before, failing)


def _call_code():
    return vmm_ipc._cuda().CUresult.CUDA_ERROR_LAUNCH_FAILED


if __name__ == "__main__":
    unittest.main()
