"""PyTorch, as its users share a tensor: torch.multiprocessing over a pipe.

The argument says which of its ways: "expandable" segments, or "legacy" IPC.
"""

import os
import sys

mode = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("PEER_MODE", "legacy")
os.environ["PEER_MODE"] = mode
setting = f"expandable_segments:{mode == 'expandable'}"
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = setting
os.environ["PYTORCH_ALLOC_CONF"] = setting

import peer

try:
    import torch
    import torch.multiprocessing  # registers how tensors travel
except ImportError:
    torch = None


def setup():
    import ctypes

    # Expandable segments take file descriptors out of the exporter by pidfd_getfd, which a child may
    # do to its parent only if allowed: PR_SET_PTRACER, any process.
    ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(2**64 - 1), 0, 0, 0)
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()


def allocate(_, size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def ready(_):
    torch.cuda.synchronize()


def forget(_):
    torch.cuda.synchronize()
    torch.cuda.ipc_collect()
    torch.cuda.empty_cache()


if __name__ == "__main__":
    if torch is None:
        peer.absent("PyTorch is not installed")
    if not torch.cuda.is_available():
        peer.absent("PyTorch sees no GPU")
    peer.serve(setup, allocate, ready, forget)
