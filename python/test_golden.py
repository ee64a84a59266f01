"""The golden files of docs/golden, decoded and encoded again: `python3 python/test_golden.py`."""

import pathlib
import unittest

import vmm_ipc
from vmm_ipc import Descriptor, ProtocolError, Update

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "docs" / "golden"
MESSAGES = {
    "hello": vmm_ipc.HELLO,
    "handles": vmm_ipc.HANDLES,
    "accepted": vmm_ipc.ACCEPTED,
    "refused": vmm_ipc.REFUSED,
    "retired": vmm_ipc.RETIRED,
    "descriptor-fd": vmm_ipc.OFFER,
    "descriptor-numa": vmm_ipc.OFFER,
    "descriptor-fabric": vmm_ipc.OFFER,
    "update-fd": vmm_ipc.UPDATE,
    "update-fabric": vmm_ipc.UPDATE,
}
FRAMES = ["frame", "frame-handles"]


def golden(name):
    lines = (GOLDEN / f"{name}.hex").read_text().splitlines()
    return bytes.fromhex(" ".join(line.split("#")[0] for line in lines))


class Golden(unittest.TestCase):
    def test_every_file_is_known(self):
        files = {path.stem for path in GOLDEN.glob("*.hex")}
        self.assertEqual(files, set(MESSAGES) | set(FRAMES))

    def test_every_message_decodes_and_encodes_to_itself(self):
        for name, kind in MESSAGES.items():
            with self.subTest(name):
                values = vmm_ipc.decode_message(kind, golden(name))
                self.assertEqual(vmm_ipc.encode_message(kind, *values), golden(name))

    def test_the_frame_is_the_second_of_a_long_offer(self):
        frames = vmm_ipc.encode_frames(vmm_ipc.OFFER, bytes(88 + 8 * 5000))
        self.assertEqual(len(frames), 2)
        self.assertEqual(frames[1][:16], golden("frame"))

    def test_the_packet_of_handles_decodes_and_encodes_to_itself(self):
        kind, fds, total, offset, part = vmm_ipc.decode_frame(golden("frame-handles"))
        self.assertEqual((kind, fds, total, offset), (vmm_ipc.HANDLES, 2, 24, 0))
        self.assertEqual(part, golden("handles"))
        self.assertEqual(vmm_ipc.encode_frames(kind, part, fds), [golden("frame-handles")])

    def test_the_fields_are_those_of_the_comments(self):
        descriptor = Descriptor.decode(golden("descriptor-fd"))
        self.assertEqual(descriptor.sizes, [2 << 20, 4 << 20, 16 << 20])
        self.assertEqual(descriptor.length, 23068667)
        self.assertEqual(descriptor.capacity, 134217728)
        self.assertEqual(descriptor.device, bytes(range(0xA0, 0xB0)))
        update = Update.decode(golden("update-fd"))
        self.assertEqual((update.generation, update.first, update.before), (1, 3, 23068672))
        refused = vmm_ipc.decode_message(vmm_ipc.REFUSED, golden("refused"))
        self.assertEqual(refused[2:], (vmm_ipc.RESOURCES, "no room for 64 bytes"))

    def test_what_is_cut_short_or_goes_on_is_refused(self):
        for name, kind in MESSAGES.items():
            data = golden(name)
            # A refusal ends with text of any length: only its head can be cut short.
            ends = range(32) if name == "refused" else range(len(data))
            for end in ends:
                with self.subTest(name, end=end), self.assertRaises(ProtocolError):
                    vmm_ipc.decode_message(kind, data[:end])
            if name != "refused":
                with self.subTest(name), self.assertRaises(ProtocolError):
                    vmm_ipc.decode_message(kind, data + b"\0")

    def test_reserved_fields_are_zero(self):
        places = {"descriptor-fd": [6, 58, 59], "update-fd": [6, 45, 55], "hello": [10, 15],
                  "refused": [26, 31]}  # fmt: skip
        for name, offsets in places.items():
            for offset in offsets:
                data = bytearray(golden(name))
                data[offset] = 1
                with self.subTest(name, offset=offset), self.assertRaises(ProtocolError):
                    vmm_ipc.decode_message(MESSAGES[name], bytes(data))

    def test_a_long_message_is_several_full_frames(self):
        frames = vmm_ipc.encode_frames(vmm_ipc.OFFER, bytes(70000))
        parts = [vmm_ipc.decode_frame(frame) for frame in frames]
        self.assertEqual([len(part[4]) for part in parts], [32768, 32768, 4464])
        self.assertEqual([part[3] for part in parts], [0, 32768, 65536])


if __name__ == "__main__":
    unittest.main()
