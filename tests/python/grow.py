"""Buffers of python/vmm_ipc.py that grow beyond their capacity, chunk by chunk, and what that costs.

The emulator is meant: one case has it refuse addresses.
"""

import contextlib
import os
import subprocess
import sys
import unittest

from buffers import UNIT, Counting, Failing, channels, exchange, free, replaced, vmm_ipc

RESERVE = "cuMemAddressReserve"
POWERS = [1 << n for n in range(11)]


@contextlib.contextmanager
def shared(capacity=None):
    """A buffer of one chunk here and where it was imported, and a function that grows both."""
    here, there = channels()
    buffer = vmm_ipc.allocate([UNIT], capacity)
    buffer.write(0, b"first")
    sent, received = exchange(lambda: vmm_ipc.share(here, buffer), lambda: vmm_ipc.receive(there))
    assert sent is None, sent

    def grow():
        results = exchange(
            lambda: vmm_ipc.send_update(here, buffer, vmm_ipc.grow(buffer, [UNIT])),
            lambda: vmm_ipc.receive_update(there, received),
        )
        assert results == (None, received), results

    yield buffer, received, grow
    for one in (received, buffer, here, there):
        one.close()


class Growing(unittest.TestCase):
    def test_growing_by_one_chunk_moves_a_buffer_seldom(self):
        before, grows = free(), 1000
        buffer = vmm_ipc.allocate([UNIT])
        buffer.write(0, b"first")
        with replaced("_call", counting := Counting("cuMemMap")):
            for _ in range(grows):
                vmm_ipc.grow(buffer, [UNIT])
        self.assertEqual(buffer.length, (1 + grows) * UNIT)
        self.assertEqual(buffer.read(0, 5), b"first")
        # At 1, 2, 4 .. 512 chunks it moves, each of which is mapped again then.
        self.assertEqual([size // UNIT for _, size in buffer._ranges], POWERS)
        self.assertEqual(counting.calls, grows + 1023)
        self.assertEqual(len(buffer._mappings), 1 + counting.calls)
        buffer.close()
        self.assertEqual(free(), before)

    def test_an_imported_buffer_moves_as_seldom(self):
        with shared() as (buffer, received, grow):
            for _ in range(100):
                grow()
            self.assertEqual(received.length, 101 * UNIT)
            for one in (buffer, received):
                self.assertEqual([size // UNIT for _, size in one._ranges], POWERS[:8])
                self.assertEqual(len(one._mappings), 101 + 127)
                self.assertEqual(one.read(0, 5), b"first")

    def test_a_large_chunk_has_all_the_addresses_that_it_needs(self):
        buffer = vmm_ipc.allocate([UNIT], capacity=2 * UNIT)
        vmm_ipc.grow(buffer, [6 * UNIT])
        self.assertEqual(buffer.capacity, 7 * UNIT)
        vmm_ipc.grow(buffer, [UNIT])
        self.assertEqual(buffer.capacity, 14 * UNIT)
        buffer.close()

    def test_a_view_of_the_old_place_sees_the_same_bytes(self):
        buffer = vmm_ipc.allocate([UNIT])
        view = buffer.array()
        old = view.__cuda_array_interface__["data"][0]
        vmm_ipc.grow(buffer, [UNIT])
        self.assertNotEqual(buffer.address, old)
        buffer.write(0, b"written at the new place")
        data = bytearray(24)
        with buffer.device:
            vmm_ipc._call("cuMemcpyDtoH", data, old, len(data))
        self.assertEqual(data, b"written at the new place")
        del view
        buffer.close()

    def test_where_twice_the_addresses_are_refused_it_takes_what_it_needs(self):
        # The third and the fifth reservation are those of twice the size, here and there.
        refused = f"{RESERVE}:3:2,{RESERVE}:5:2"
        subprocess.run(
            [sys.executable, __file__, "refused"],
            env=os.environ | {"VMM_EMULATOR_FAIL": refused},
            check=True,
        )

    def test_a_move_that_gets_no_addresses_changes_nothing(self):
        exhausted = vmm_ipc._cuda().CUresult.CUDA_ERROR_OUT_OF_MEMORY
        before = free()
        buffer = vmm_ipc.allocate([UNIT, UNIT])
        state = (buffer.address, buffer.capacity, buffer.length, list(buffer._ranges))
        for names, error in (
            ([RESERVE], None),  # where fewer addresses would not help
            ([RESERVE, RESERVE], vmm_ipc.CudaError(RESERVE, exhausted)),
        ):
            failing = Failing(*names, error=error)
            with replaced("_call", failing), self.assertRaisesRegex(vmm_ipc.CudaError, RESERVE):
                vmm_ipc.grow(buffer, [UNIT])
            self.assertEqual(failing.names, [])
            now = (buffer.address, buffer.capacity, buffer.length, buffer._ranges)
            self.assertEqual(now, state)
        vmm_ipc.grow(buffer, [UNIT])
        buffer.close()
        self.assertEqual(free(), before)


def refused():
    with shared(4 * UNIT) as (buffer, received, grow):
        for units in (2, 3, 4, 5):
            grow()
        for one in (buffer, received):
            assert one.capacity == one.length == 5 * UNIT, one.capacity
            assert one.read(0, 5) == b"first"
        # The next is not refused.
        grow()
        for one in (buffer, received):
            assert one.capacity == 10 * UNIT, one.capacity


if __name__ == "__main__":
    refused() if sys.argv[1:] == ["refused"] else unittest.main()
