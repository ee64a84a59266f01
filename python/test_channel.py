"""A channel without CUDA, over a socket pair: `python3 python/test_channel.py`."""

import contextlib
import os
import socket
import threading
import time
import unittest

import vmm_ipc
from vmm_ipc import Channel, ProtocolError

HELLO = vmm_ipc.encode_frames(vmm_ipc.HELLO, vmm_ipc.encode_message(vmm_ipc.HELLO))[0]


def raw_pair(timeout=5.0):
    """A channel, and the bare socket at its other end, which has said hello."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    there.send(HELLO)
    channel = Channel(here, timeout)
    assert there.recv(100) == HELLO
    return channel, there


class Known:
    """Stands in for a buffer that was received."""

    id, retired = bytes(16), False


class Unmapped:
    """Stands in for a buffer that is shared: without a driver it has no handles."""

    _handles = ()


def frame(kind, *values):
    (packet,) = vmm_ipc.encode_frames(kind, vmm_ipc.encode_message(kind, *values))
    return packet


def open_files():
    return len(os.listdir("/proc/self/fd"))


class Channels(unittest.TestCase):
    def test_descriptors_arrive_with_their_message(self):
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        both = []
        other = threading.Thread(target=lambda: both.append(Channel(there)))
        other.start()
        sender = Channel(here)
        other.join()
        read, write = os.pipe()
        sender.send(vmm_ipc.HANDLES, bytes(16), 0, 1, fds=[write])
        os.close(write)
        kind, values, (fd,) = both[0].receive()
        self.assertEqual((kind, values), (vmm_ipc.HANDLES, (bytes(16), 0, 1)))
        self.assertFalse(os.get_inheritable(fd))
        os.write(fd, b"x")
        self.assertEqual(os.read(read, 1), b"x")
        for number in (fd, read):
            os.close(number)
        both[0].close()
        sender.close()

    def test_descriptors_of_another_message_are_closed(self):
        before = open_files()
        for wait in (vmm_ipc.receive, lambda channel: vmm_ipc.receive_update(channel, Known())):
            channel, there = raw_pair()
            payload = vmm_ipc.encode_message(vmm_ipc.HANDLES, bytes(16), 0, 2)
            (packet,) = vmm_ipc.encode_frames(vmm_ipc.HANDLES, payload, 2)
            socket.send_fds(there, [packet], [there.fileno(), there.fileno()])
            self.assertRaises(ProtocolError, wait, channel)
            there.close()
            self.assertEqual(open_files(), before)

    def test_the_end_of_a_buffer_may_be_told_before_an_offer(self):
        channel, there = raw_pair()
        # One that is refused before any driver is asked.
        fabric = [bytes(64)]
        offer = vmm_ipc.Descriptor(
            bytes(16), 0, bytes(16), 1, 1, 1, [1], handle_type=vmm_ipc.FABRIC, fabric=fabric
        )
        for packet in (frame(vmm_ipc.RETIRED, bytes(16)), frame(vmm_ipc.OFFER, offer)):
            there.send(packet)
        self.assertRaises(vmm_ipc.RefusedError, vmm_ipc.receive, channel)
        self.assertEqual(there.recv(2000)[0], vmm_ipc.REFUSED)
        channel.close()
        there.close()

    def test_a_refusal_ends_the_connection_only_where_the_importer_is_gone(self):
        offer = vmm_ipc.Descriptor(bytes(16), 0, bytes(16), 1, 1, 1, [1])
        for reason in range(vmm_ipc.TOO_LONG + 1):
            channel, there = raw_pair()
            there.send(frame(vmm_ipc.REFUSED, offer.id, offer.generation, reason, "no room"))
            with self.assertRaisesRegex(vmm_ipc.RefusedError, "the importer refused.*no room"):
                vmm_ipc._offer(channel, vmm_ipc.OFFER, offer, Unmapped(), 0)
            closed = channel._socket.fileno() == -1
            self.assertEqual(closed, reason == vmm_ipc.TOO_LONG, reason)
            channel.close()
            there.close()

    def test_the_end_of_another_buffer_may_be_told_before_that_of_this_one(self):
        channel, there = raw_pair()
        buffer = Known()
        for id in (b"another's number", buffer.id):
            there.send(frame(vmm_ipc.RETIRED, id))
        self.assertRaises(EOFError, vmm_ipc.receive_update, channel, buffer)
        # It stays so, and nothing is waited for; the connection goes on.
        channel.timeout = 60.0
        self.assertRaises(EOFError, vmm_ipc.receive_update, channel, buffer)
        channel.send(vmm_ipc.RETIRED, bytes(16))
        channel.close()
        there.close()

    def test_waiting_for_an_offer_has_one_deadline_whatever_is_told_before_it(self):
        for wait in (vmm_ipc.receive, lambda channel: vmm_ipc.receive_update(channel, Known())):
            channel, there = raw_pair(timeout=0.2)
            until = time.monotonic() + 10

            def chatter(there=there, until=until):
                with contextlib.suppress(OSError):  # nobody listens any more
                    while time.monotonic() < until:
                        there.send(frame(vmm_ipc.RETIRED, b"another's number"))
                        time.sleep(0.02)

            other = threading.Thread(target=chatter)
            other.start()
            self.assertRaises(TimeoutError, wait, channel)
            self.assertLess(time.monotonic(), until)
            other.join()
            there.close()

    def test_many_messages_have_one_deadline(self):
        channel, there = raw_pair()
        there.send(frame(vmm_ipc.RETIRED, bytes(16)))
        self.assertRaises(TimeoutError, channel.expect, vmm_ipc.RETIRED, until=time.monotonic() - 1)
        there.close()

    def test_nobody_is_not_the_own_user(self):
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.assertRaises(PermissionError, Channel, here, uids=[])
        there.close()

    def test_descriptors_out_of_place_are_closed(self):
        before = open_files()
        for stated in (0, 2):
            channel, there = raw_pair()
            kind = vmm_ipc.HANDLES if stated else vmm_ipc.RETIRED
            values = (bytes(16), 0, 2) if stated else (bytes(16),)
            payload = vmm_ipc.encode_message(kind, *values)
            (packet,) = vmm_ipc.encode_frames(kind, payload, stated)
            socket.send_fds(there, [packet], [there.fileno()])
            with self.assertRaises(ProtocolError):
                channel.receive()
            there.close()
            self.assertEqual(open_files(), before)

    def test_a_second_hello_a_hangup_and_silence_end_it(self):
        channel, there = raw_pair()
        there.send(HELLO)
        self.assertRaises(ProtocolError, channel.receive)
        there.close()
        channel, there = raw_pair()
        there.close()
        self.assertRaises(EOFError, channel.receive)
        channel, there = raw_pair(timeout=0.05)
        self.assertRaises(TimeoutError, channel.receive)
        there.close()

    def test_another_user_is_sent_nothing(self):
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with self.assertRaises(PermissionError):
            Channel(here, uids=[os.geteuid() + 1])
        self.assertEqual(there.recv(100), b"")
        there.close()


if __name__ == "__main__":
    unittest.main()
