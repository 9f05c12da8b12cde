"""What calls take as memory: which objects, which types, and a sentence for what they refuse."""
import array
import ctypes
import gc

import numpy as np
import pytest
import tutti
from tutti import _buffer, _dlpack
from tutti._buffer import F32, F64, I32, I64, U8, readable, writable
from tutti._call import ffi


def address(buffer):
    return int(ffi.cast("uintptr_t", ffi.cast("char *", buffer.pointer)))


@pytest.mark.parametrize("x, code, count", [
    (np.zeros((2, 3), "f4"), F32, 6), (np.zeros(3, "i8"), I64, 3), (np.zeros((), "f8"), F64, 1),
    (np.zeros((0, 4), "i4"), I32, 0), (np.zeros(3, "u4"), None, 3), (np.zeros(3, "c8"), None, 3),
    (np.zeros(2, "M8[s]"), None, 2), (np.zeros(2, [("a", "i4"), ("b", "f8")]), None, 2),
    (bytearray(5), U8, 5), (array.array("f", [1, 2]), F32, 2), (array.array("l", [1]), I64, 1),
    (array.array("I", [1]), None, 1), ((ctypes.c_float * 3)(), F32, 3), ((ctypes.c_long * 3)(), I64, 3),
    (memoryview(bytearray(8)).cast("d"), F64, 1), (memoryview(np.zeros((2, 2), "f4")), F32, 4),
], ids=lambda v: str(getattr(v, "dtype", type(v).__name__)))
def test_taken(x, code, count):
    for take in (readable, writable):
        b = take(x)
        assert (b.type, b.count, b.bytes) == (code, count, memoryview(x).nbytes if not isinstance(x, np.ndarray)
                                              else x.nbytes)
        if isinstance(x, np.ndarray) and x.nbytes:
            assert address(b) == x.ctypes.data


def test_bytes_are_read_only():
    assert readable(b"abc").bytes == 3
    with pytest.raises(ValueError, match="read-only"):
        writable(b"abc")


def read_only(x):
    x.flags.writeable = False
    return x


@pytest.mark.parametrize("x, says", [
    (np.zeros((4, 4), "f4")[:, ::2], "not dense in C order"), (np.zeros((4, 4), "f4").T, "not dense in C order"),
    (read_only(np.zeros(3)), "read-only"), (np.zeros(3, ">f4"), "byte order"), (np.array([object()]), "Python objects"),
    (memoryview(bytearray(8))[::2], "not contiguous"), ("text", "has no memory"), (5, "has no memory"),
    ([1.0], "has no memory"), (None, "has no memory"),
], ids=["columns", "transposed", "read-only", "big-endian", "objects", "steps", "str", "int", "list", "None"])
def test_refused(x, says):
    with pytest.raises(ValueError, match=says):
        writable(x)


def test_types_by_name():
    assert _buffer.type_code("float32") == _buffer.type_code(np.dtype("f4")) == _buffer.type_code(np.float32) == F32
    assert _buffer.type_code(float) == F64 and _buffer.type_code("torch.float32") == F32
    with pytest.raises(ValueError, match="uint16"):
        _buffer.type_code("uint16")
    with pytest.raises(ValueError, match="does not compute with elements of uint16"):
        readable(np.zeros(2, "u2")).typed()


def test_own():
    x = np.arange(4, dtype="f4")
    view = tutti.own(x.ctypes.data, x.nbytes)
    view[0:4] = np.float32(7).tobytes()
    assert x[0] == 7 and address(writable(view)) == x.ctypes.data
    with pytest.raises(ValueError, match="read-only"):
        writable(tutti.own(x.ctypes.data, x.nbytes, readonly=True))
    for bad in ((0, 4), (x.ctypes.data, -1)):
        with pytest.raises(ValueError):
            tutti.own(*bad)


# ---- DLPack ----


class Exports:
    """An array of another library: NumPy's capsule, and nothing else. old: from before DLPack 1.0."""

    def __init__(self, x, old=False, device=1):
        self.x, self.old, self.device = x, old, device

    def __dlpack_device__(self):
        return self.device, 0

    def __dlpack__(self, **how):
        if self.old and how:
            raise TypeError("unexpected keyword")
        return self.x.__dlpack__(**how)


class Versioned(Exports):
    """Exports a capsule of DLPack 1.0, which the NumPy of this machine may not speak."""

    def __init__(self, x, flags=0, major=1):
        super().__init__(x)
        x = x.reshape(-1)
        self.shape = (ctypes.c_int64 * 1)(x.size)
        tensor = _dlpack._Tensor(x.ctypes.data - 8, 1, 0, 1, 2, 32, 1, self.shape, None, 8)
        self.managed = _dlpack._Versioned(major, 0, None, None, flags, tensor)

    def __dlpack__(self, max_version=None, copy=None):
        new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
            ("PyCapsule_New", ctypes.pythonapi))
        assert max_version == (1, 0) and copy is False
        return new(ctypes.addressof(self.managed), b"dltensor_versioned", None)


@pytest.mark.parametrize("dtype, code", [("f4", F32), ("f8", F64), ("i4", I32), ("i8", I64), ("u1", U8), ("u4", None),
                                         ("c8", None)])
@pytest.mark.parametrize("old", [True, False])
def test_dlpack(dtype, code, old):
    x = np.arange(6).astype(dtype).reshape(2, 3)
    b = readable(Exports(x[1:], old))
    assert (address(b), b.count, b.bytes, b.type) == (x[1:].ctypes.data, 3, x[1:].nbytes, code)
    assert readable(Exports(x[:0], old)).count == 0


def test_dlpack_is_given_back_once():
    class Seen(np.ndarray):
        ended = 0

        def __del__(self):
            Seen.ended += 1

    x = np.zeros(4, "f4").view(Seen)
    b = readable(Exports(x))
    del x
    gc.collect()
    assert Seen.ended == 0
    del b
    gc.collect()
    assert Seen.ended == 1


def test_like():
    assert _buffer.like(np.zeros((2, 3), "f2"), (4,)).shape == (4, 2, 3)
    assert _buffer.like(array.array("d", [1, 2]), (3,)) == bytearray(48)
    assert _buffer.like(Exports(np.zeros(3)), (2,)) == bytearray(48)


def test_dlpack_writable():
    x = np.zeros(4, "f4")
    b = writable(Versioned(x))
    assert (address(b), b.bytes, b.type) == (x.ctypes.data, 16, F32)
    assert readable(Versioned(x, 1)).bytes == 16
    with pytest.raises(ValueError, match="read-only"):
        writable(Versioned(x, 1))
    with pytest.raises(ValueError, match="gives a copy"):
        readable(Versioned(x, 2))
    with pytest.raises(ValueError, match="speaks DLPack 2"):
        readable(Versioned(x, 0, 2))
    with pytest.raises(ValueError, match="before 1.0"):
        writable(Exports(x, old=True))


@pytest.mark.parametrize("x, says", [
    (Exports(np.zeros((4, 4), "f4").T), "not dense in C order"), (Exports(np.zeros((4, 4), "f4")[:, :2]), "not dense"),
    (Exports(np.zeros(4, "f4"), device=10), "device type 10"),
], ids=["transposed", "columns", "device"])
def test_dlpack_refused(x, says):
    with pytest.raises(ValueError, match=says):
        readable(x)


def test_dlpack_that_raises():
    class Lazy(Exports):
        def __dlpack__(self, **how):
            raise BufferError("this array is lazy")

    class Odd(Exports):
        def __dlpack__(self, **how):
            return 7

    with pytest.raises(ValueError, match="this array is lazy"):
        readable(Lazy(None))
    with pytest.raises(ValueError, match="no new capsule"):
        readable(Odd(None))


def test_no_buffer_for_the_type_but_dlpack():
    """As of a JAX array of bfloat16."""
    class Both(Exports):
        def __buffer__(self, flags):
            raise BufferError("no format for this type")

    assert readable(Both(np.zeros(4, "f4"))).bytes == 16
