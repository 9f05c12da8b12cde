"""Memory of NVIDIA GPUs: which calls of the library find ready behind which stream, and `__cuda_array_interface__`."""
from __future__ import annotations

from typing import Any, Tuple

from . import _call
from ._buffer import TYPES, Buffer
from ._call import call, ffi, lib

_KINDS = {"f": "float", "i": "int", "u": "uint", "b": "bool", "c": "complex"}


def announce(stream: int) -> None:
    """The next calls of this thread take a GPU's memory as it is behind the work that the stream has now.

    stream: a cudaStream_t; 0: the legacy stream.
    """
    for job in tuple(_call._jobs)[:1]:  # streams are the thread's; without a job there is no call
        call(lib.tutti_stream, job._c, ffi.cast("void *", stream))


def of_torch(device: Any, torch: Any) -> None:
    """Checks a device that is not the CPU, and announces torch's current stream there."""
    if device.type != "cuda" or torch.version.hip:
        raise ValueError("a tensor on %s: this release moves tensors on CPUs and NVIDIA GPUs: call .cpu() first"
                         % (device if not torch.version.hip else "an AMD GPU"))
    announce(torch.cuda.current_stream(device).cuda_stream)


def stream(stream: Any = None) -> None:
    """This thread's work on a GPU is in `stream` from now on: for calls without an argument that names a stream.

    stream: of torch or CuPy, or the address of a cudaStream_t; None: the legacy stream. A call with a torch
    tensor works in torch's current stream. A call with another object works in the stream that the object's
    __cuda_array_interface__ names.
    """
    announce(int(getattr(stream, "cuda_stream", getattr(stream, "ptr", stream)) or 0))


def _need_dense(x: Any, shape: Tuple[int, ...], strides: Any, size: int) -> int:
    """The number of elements, which lie in C order without gaps."""
    count, dense = 1, True
    for i in reversed(range(len(shape))):
        dense = dense and (strides is None or shape[i] == 1 or strides[i] == count * size)
        count *= shape[i]
    if not dense and count:
        raise ValueError("a %s of shape %s with strides %s is not dense in C order: make a contiguous copy first"
                         % (type(x).__name__, shape, strides))
    return count


def of_interface(x: Any, writable: bool) -> Buffer:
    """The memory of an object with __cuda_array_interface__."""
    what = x.__cuda_array_interface__
    pointer, readonly = what["data"]
    kind = what["typestr"]
    size = int(kind[2:])
    if writable and readonly:
        raise ValueError("the %s is read-only: the call writes to it" % type(x).__name__)
    if kind[0] == ">" or what.get("mask") is not None:
        raise ValueError("a %s with a mask, or in another byte order, is no plain memory" % type(x).__name__)
    count = _need_dense(x, tuple(what["shape"]), what.get("strides"), size)
    announce(what.get("stream") or 0)
    name = _KINDS.get(kind[1], kind[1]) + ("" if kind[1] == "b" else str(8 * size))
    return Buffer(ffi.cast("void *", pointer or 0), count * size, count, TYPES.get(name), name, (x, what))


class GpuMemory:
    """Zeroed memory of a GPU that other ranks reach in windows: `tutti.empty(..., gpu=0)` gives it.

    It has no elements for Python, and shares its memory by `__cuda_array_interface__`: torch.as_tensor(memory,
    device="cuda:0"), cupy.asarray(memory). It is freed with the last object that holds it.
    """

    def __init__(self, pointer: Any, shape: Tuple[int, ...], typestr: str) -> None:
        self._pointer, self.shape, self._typestr = pointer, shape, typestr

    @property
    def __cuda_array_interface__(self) -> Any:
        """The address, shape and type of the memory, in version 3."""
        return {"shape": self.shape, "typestr": self._typestr, "version": 3, "strides": None, "stream": None,
                "data": (int(ffi.cast("uintptr_t", self._pointer)), False)}


__all__ = ["GpuMemory", "announce", "of_interface", "of_torch", "stream"]
