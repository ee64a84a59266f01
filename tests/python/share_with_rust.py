"""The Python side of vmm-ipc/examples/python_peer.rs, which starts it.

    share_with_rust.py import|export SOCKET plain|torch

"torch" reads and writes the buffer by kernels of PyTorch, "plain" by copies of the driver. What is
missing is a failure.
"""

import array
import pathlib
import sys

# In a bundle the two files lie beside each other.
sys.path.append(str(pathlib.Path(__file__).resolve().parent / "../../python"))

import vmm_ipc

FACTOR, RUST, PYTHON = 0x9E3779B1, 0x1234567, 0x7654321


def plain_check(buffer, seed):
    data = buffer.read(0, buffer.length)
    assert data == pattern(buffer.length, seed), f"not the pattern of {seed:#x}"


def plain_write(buffer, seed):
    buffer.write(0, pattern(buffer.length, seed))


def pattern(length, seed):
    words = range(length // 4)
    return array.array("I", [(word * FACTOR + seed) & 0xFFFFFFFF for word in words]).tobytes()


def tensor_of(buffer):
    """The whole buffer as a tensor, without a copy."""
    tensor = torch.as_tensor(buffer.array("<i4"), device="cuda")
    assert tensor.data_ptr() == buffer.address, "PyTorch made a copy"
    assert tensor.numel() * 4 == buffer.length
    return tensor


def expected(length, seed):
    words = torch.arange(length // 4, dtype=torch.int64, device="cuda")
    return (words * FACTOR + seed).to(torch.int32)


def torch_check(buffer, seed):
    found, wanted = tensor_of(buffer), expected(buffer.length, seed)
    wrong = int((found != wanted).sum())
    assert wrong == 0, f"{wrong} words are not the pattern of {seed:#x}"


def torch_write(buffer, seed):
    tensor_of(buffer).copy_(expected(buffer.length, seed))
    torch.cuda.synchronize()


def import_(channel):
    buffer = vmm_ipc.receive(channel)
    assert len(buffer.sizes) == 3, buffer.sizes
    check(buffer, RUST)
    vmm_ipc.receive_update(channel, buffer)
    assert len(buffer.sizes) == 4, buffer.sizes
    check(buffer, RUST)
    write(buffer, PYTHON)
    buffer.close()


def export(channel):
    unit = vmm_ipc.Device().granularity()
    buffer = vmm_ipc.allocate([unit, 2 * unit, 3 * unit], capacity=8 * unit)
    write(buffer, PYTHON)
    vmm_ipc.share(channel, buffer)
    update = vmm_ipc.grow(buffer, [unit])
    write(buffer, PYTHON)
    vmm_ipc.send_update(channel, buffer, update)
    try:
        channel.receive()
    except EOFError:
        pass  # Rust has written, and hangs up.
    check(buffer, RUST)
    buffer.close()


if __name__ == "__main__":
    _, role, path, how = sys.argv
    if how == "torch":
        import torch

        assert torch.cuda.is_available(), "PyTorch sees no GPU"
        torch.zeros(1, device="cuda")
    check, write = (torch_check, torch_write) if how == "torch" else (plain_check, plain_write)
    with vmm_ipc.Channel.connect(path) as channel:
        {"import": import_, "export": export}[role](channel)
    if how == "torch":
        print(f"{role}: PyTorch {torch.__version__} on {torch.cuda.get_device_name()}")
