"""Memory of any library by DLPack, the exchange format of array libraries (https://dmlc.github.io/dlpack, 1.0).

The capsule stays unused: its own destructor gives the memory back when the buffer ends.
"""
from __future__ import annotations

import ctypes
from typing import Any, Optional, Tuple

from ._buffer import TYPES, Buffer, ffi
from ._device import announce

_CPU = (1, 3, 11)  # kDLCPU, and memory of the host that CUDA or ROCm has pinned
_CUDA = 2
_READ_ONLY, _COPIED = 1, 2  # bits of the flags
_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}


class _Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("kind", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class _Versioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _Tensor)]


_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi))


def _capsule(x: Any) -> Any:
    device = int(x.__dlpack_device__()[0])
    if device == _CUDA:
        announce(0)  # the capsule is asked for without a stream: its memory is ready behind the legacy one
    elif device not in _CPU:
        raise ValueError("a %s on device type %d of DLPack: this release moves memory of the host and of NVIDIA GPUs: "
                         "copy it to the host first" % (type(x).__name__, device))
    try:
        return x.__dlpack__(max_version=(1, 0), copy=False)
    except TypeError:
        return x.__dlpack__()  # a library from before DLPack 1.0


def _open(x: Any) -> Tuple[Any, _Tensor, Optional[int]]:
    """The capsule, its tensor, and the flags; None: an old capsule, which has none."""
    try:
        capsule = _capsule(x)
    except BufferError as e:
        raise ValueError("a %s does not give its memory: %s" % (type(x).__name__, e)) from e
    if _is_valid(capsule, b"dltensor_versioned"):
        managed = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        if managed.major != 1:
            raise ValueError("a %s speaks DLPack %d, and this release speaks DLPack 1"
                             % (type(x).__name__, managed.major))
        if managed.flags & _COPIED:
            raise ValueError("a %s gives a copy of its memory, and not the memory" % type(x).__name__)
        return capsule, managed.tensor, managed.flags
    if _is_valid(capsule, b"dltensor"):
        return capsule, _Tensor.from_address(_pointer(capsule, b"dltensor")), None
    raise ValueError("the __dlpack__ of a %s gives no new capsule of a tensor" % type(x).__name__)


def _need_dense(x: Any, t: _Tensor) -> int:
    """The number of elements, which lie in C order without gaps."""
    shape, count, dense = t.shape[:t.ndim], 1, True
    for i in reversed(range(t.ndim)):
        dense = dense and (not t.strides or shape[i] == 1 or t.strides[i] == count)
        count *= shape[i]
    if not dense and count:
        raise ValueError("a %s of shape %s with strides %s is not dense in C order: make a contiguous copy first"
                         % (type(x).__name__, tuple(shape), tuple(t.strides[:t.ndim])))
    return count


def _need_writable(x: Any, flags: Optional[int]) -> None:
    if flags is None:
        raise ValueError("a %s gives its memory by a DLPack before 1.0, which does not say that the memory may be "
                         "written" % type(x).__name__)
    if flags & _READ_ONLY:
        raise ValueError("the %s is read-only: the call writes to it" % type(x).__name__)


def of_dlpack(x: Any, writable: bool) -> Buffer:
    """The memory of an object with __dlpack__."""
    capsule, t, flags = _open(x)
    count = _need_dense(x, t)
    if writable:
        _need_writable(x, flags)
    bits = t.bits * t.lanes
    if t.kind not in _KINDS or bits % 8:
        raise ValueError("elements of kind %d with %d bits, of a %s, are no plain numbers" % (t.kind, bits,
                                                                                              type(x).__name__))
    name = _KINDS[t.kind] + ("" if t.kind == 6 else str(t.bits)) + ("" if t.lanes == 1 else "x%d" % t.lanes)
    pointer = ffi.cast("void *", (t.data or 0) + t.byte_offset)
    return Buffer(pointer, count * bits // 8, count, TYPES.get(name), name, (x, capsule))


__all__ = ["of_dlpack"]
