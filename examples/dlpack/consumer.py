"""A Rust buffer as a tensor of PyTorch or an array of NumPy: consumer.py LIBRARY torch|numpy

Rust makes the memory, Python adds one to every element, Rust looks. The memory goes with the last
of the two.
"""

import ctypes
import gc
import sys

COUNT = 3 << 20


class Tensor:
    """What the DLPack protocol asks of an object: a capsule, handed out once, and a device."""

    def __init__(self, library, on_host):
        library.example_tensor.restype = ctypes.c_void_p
        self.pointer = library.example_tensor(ctypes.c_uint32(COUNT), ctypes.c_bool(on_host))
        if not self.pointer:
            sys.exit("no tensor: see above")
        self.device = (3, 0) if on_host else (2, 0)  # kDLCUDAHost, kDLCUDA

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **_options):
        # Whoever takes it owns the memory: a second owner would free it again.
        if self.pointer is None:
            raise BufferError("the tensor was handed out already")
        pointer, self.pointer = self.pointer, None
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(pointer, b"dltensor_versioned", None)


def with_torch(library):
    import torch

    torch.cuda.init()
    free = torch.cuda.mem_get_info()[0]
    tensor = torch.from_dlpack(Tensor(library, on_host=False))
    expected = torch.arange(COUNT, dtype=torch.float32, device="cuda")
    assert tensor.is_cuda and torch.equal(tensor, expected), "PyTorch sees other values"
    tensor += 1
    torch.cuda.synchronize()
    assert library.example_check(), "Rust sees other values"
    # Rust has let go, Python has not.
    assert torch.equal(tensor, expected + 1), "the memory went too early"
    held = free - torch.cuda.mem_get_info()[0]
    del tensor
    gc.collect()
    given_back = torch.cuda.mem_get_info()[0] - (free - held)
    assert given_back >= 4 * COUNT, f"only {given_back} bytes were given back"
    return f"PyTorch {torch.__version__} on {torch.cuda.get_device_name()}"


def with_numpy(library):
    import numpy

    tensor = Tensor(library, on_host=True)
    array = numpy.from_dlpack(tensor)
    try:
        numpy.from_dlpack(tensor)
    except BufferError:
        pass
    else:
        sys.exit("the memory has two owners")
    expected = numpy.arange(COUNT, dtype=numpy.float32)
    assert numpy.array_equal(array, expected), "NumPy sees other values"
    array += 1
    assert library.example_check(), "Rust sees other values"
    assert numpy.array_equal(array, expected + 1), "the memory went too early"
    return f"NumPy {numpy.__version__} on host memory"


def main():
    if len(sys.argv) != 3 or sys.argv[2] not in ("torch", "numpy"):
        sys.exit(__doc__)
    library = ctypes.CDLL(sys.argv[1])
    library.example_check.restype = ctypes.c_bool
    run = with_torch if sys.argv[2] == "torch" else with_numpy
    print(f"{run(library)}: OK")


if __name__ == "__main__":
    main()
