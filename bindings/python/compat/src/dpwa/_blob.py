"""Peers' models as objects of bytes, which the library writes without a further copy.

New memory costs as much time as the copy itself, because the kernel clears it. So this module writes large blobs that
the program has dropped again. A blob that something still refers to, or whose hash Python has kept, is not used again.
"""
from __future__ import annotations

import ctypes
import mmap
import sys
from typing import Any, List, Tuple

_LARGE = 4 << 20  # from here on
_KEPT = 2         # the program holds one blob while the next one comes
_PAGE = mmap.PAGESIZE
_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_make = ctypes.pythonapi.PyBytes_FromStringAndSize
_make.argtypes, _make.restype = [ctypes.c_void_p, ctypes.c_ssize_t], ctypes.py_object
_address = ctypes.pythonapi.PyBytes_AsString
_address.argtypes, _address.restype = [ctypes.py_object], ctypes.c_void_p


def _new(n: int) -> bytes:
    blob: bytes = _make(None, n)  # the way that Python's C interface has for bytes that are filled later
    if n >= _LARGE:
        start = _address(blob)
        first = (start + _PAGE - 1) // _PAGE * _PAGE
        _madvise(first, (start + n - first) // _PAGE * _PAGE, mmap.MADV_HUGEPAGE)  # a hint: failure costs time alone
    return blob


def _hash_of(blob: bytes) -> int:
    """What Python keeps of the hash, in the word before the bytes; -1: nobody has asked for the hash."""
    return ctypes.c_ssize_t.from_address(_address(blob) - ctypes.sizeof(ctypes.c_ssize_t)).value


def _count(blobs: List[bytes], i: int) -> int:
    return sys.getrefcount(blobs[i])


def _can_tell() -> bool:
    """Whether this Python counts references and keeps hashes as this module expects."""
    blobs = [_new(100)]
    before, alone, held = _hash_of(blobs[0]), _count(blobs, 0), blobs[0]
    counts = getattr(sys, "_is_gil_enabled", lambda: True)() and alone == _ALONE and _count(blobs, 0) == _ALONE + 1
    return counts and before == -1 and hash(held) == _hash_of(held)


_ALONE = _count([_new(100)], 0)
_CAN_TELL = _can_tell()


class Blobs:
    """The blobs of one connection. One thread at a time uses the object."""

    def __init__(self) -> None:
        self._kept: List[bytes] = []

    def take(self, n: int) -> Tuple[bytes, Any]:
        """n bytes, and memory of the same bytes to write them once, before the program has the object."""
        for i in range(len(self._kept)):
            if _count(self._kept, i) == _ALONE and len(self._kept[i]) == n and _hash_of(self._kept[i]) == -1:
                self._kept.append(self._kept.pop(i))
                break
        else:
            self._kept.append(_new(n))
            del self._kept[:-_KEPT]
        blob = self._kept[-1]
        if n < _LARGE or not _CAN_TELL:
            self._kept.clear()
        return blob, (ctypes.c_ubyte * n).from_address(_address(blob))


__all__ = ["Blobs"]
