"""cuda.core's IPC-enabled memory pool, as its users share a buffer: over a multiprocessing pipe.

Each round has a pool of its own, so that the first share includes sharing the pool.
"""

import peer

try:
    from cuda.core import Device, DeviceMemoryResource, DeviceMemoryResourceOptions
except ImportError:
    Device = None


class State:
    def __init__(self):
        self.device = Device(0)
        self.device.set_current()
        self.stream = self.device.create_stream()
        self.pool = None


def setup():
    return State()


def allocate(state, size):
    options = DeviceMemoryResourceOptions(ipc_enabled=True)
    state.pool = DeviceMemoryResource(state.device, options=options)
    return state.pool.allocate(size, stream=state.stream)


def ready(state):
    state.stream.sync()


def forget(state):
    state.device.sync()
    state.pool = None


if __name__ == "__main__":
    if Device is None:
        peer.absent("cuda.core 1.0 or newer is not installed")
    peer.serve(setup, allocate, ready, forget)
