"""Memory of the caller: NumPy arrays, torch tensors, the buffer protocol, DLPack, memory of GPUs. Nothing is copied
silently."""
from __future__ import annotations

import sys
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence, Tuple

from ._call import NULL, ffi, lib

_char_array = ffi.typeof("char[]")
_void = ffi.typeof("void *")

F32, F64, F16, BF16 = lib.TUTTI_F32, lib.TUTTI_F64, lib.TUTTI_F16, lib.TUTTI_BF16
I32, I64, I8, U8, BOOL = lib.TUTTI_I32, lib.TUTTI_I64, lib.TUTTI_I8, lib.TUTTI_U8, lib.TUTTI_BOOL

TYPES: Dict[str, int] = {"float32": F32, "float64": F64, "float16": F16, "bfloat16": BF16, "int32": I32, "int64": I64,
                         "int8": I8, "uint8": U8, "bool": BOOL}
NAMES = {code: name for name, code in TYPES.items()}
SIZES = {F32: 4, F64: 8, F16: 2, BF16: 2, I32: 4, I64: 8, I8: 1, U8: 1, BOOL: 1}
_exported: Dict[Any, Tuple[Optional[int], str]] = {}  # dtypes of arrays that came here before: the short way
_FORMATS = {"f": F32, "d": F64, "e": F16, "i": I32, "l": I64, "q": I64, "b": I8, "B": U8, "c": U8, "?": BOOL}
_NATIVE = "@=<" if sys.byteorder == "little" else "@=>!"


class Buffer(NamedTuple):
    """Memory that a call reads or writes. `hold` keeps the memory where it is."""

    pointer: Any
    bytes: int
    count: int           # type: ignore[assignment]  # elements; the method of tuples is of no use here
    type: Optional[int]  # one of the library's types; None: the library only moves these elements
    name: str            # of the elements, for sentences
    hold: Any
    order: Any = None    # the strides of a tensor that is dense in another order than C's, channels_last; else None

    def typed(self) -> int:
        """The type, for calls that compute."""
        if self.type is None:
            raise ValueError("the library does not compute with elements of %s: use %s"
                             % (self.name, ", ".join(TYPES)))
        return self.type


def type_code(dtype: Any) -> int:
    """The library's type of a NumPy or torch dtype, or of a name ("float32")."""
    name = str(getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or dtype)
    code = TYPES.get({"float": "float64", "int": "int64"}.get(name, name.rpartition(".")[2]))
    if code is None:
        raise ValueError("no type of Tutti is called %s: use %s" % (name, ", ".join(TYPES)))
    return code


def _is_dense(x: Any, torch: Any) -> bool:
    return bool(x.is_contiguous() or (x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)) or
                (x.dim() == 5 and x.is_contiguous(memory_format=torch.channels_last_3d)))


def _of_torch(x: Any, torch: Any, writable: bool) -> Buffer:
    if x.device.type != "cpu":
        from . import _device
        _device.of_torch(x.device, torch)
    if x.layout is not torch.strided or x.is_conj() or x.is_neg():
        raise ValueError("a tensor that is sparse, conjugated or negated lazily has no dense memory of its own: call "
                         ".to_dense(), .resolve_conj() or .resolve_neg() first")
    if not _is_dense(x, torch):
        raise ValueError("a tensor of shape %s with strides %s is not dense: call .contiguous() first"
                         % (tuple(x.shape), x.stride()))
    if writable and getattr(x, "is_inference", bool)() and not torch.is_inference_mode_enabled():
        raise ValueError("a tensor that was made in inference mode is read-only outside: call .clone() first")
    name = str(x.dtype)[6:]
    count = x.numel()
    hold = x.detach()  # keeps this memory, also when the program gives x another one: x.data = y
    order = None if x.is_contiguous() else x.stride()
    return Buffer(ffi.cast(_void, x.data_ptr()), count * x.element_size(), count, TYPES.get(name), name, hold, order)


def _of_numpy(x: Any, writable: bool) -> Buffer:
    dtype = x.dtype
    if not x.flags.c_contiguous:
        raise ValueError("an array of shape %s with strides %s is not dense in C order: call numpy.ascontiguousarray "
                         "first" % (x.shape, x.strides))
    if writable and not x.flags.writeable:
        raise ValueError("the array is read-only: the call writes to it")
    if dtype.hasobject:
        raise ValueError("an array of Python objects holds addresses of this process alone: pickle the objects first")
    if not dtype.isnative:
        raise ValueError("an array of %s is not in this machine's byte order: call .astype(%r) first"
                         % (dtype, dtype.newbyteorder("=").str))
    view = x if dtype.char in "?bBhHiIlLqQefdgFDG" else x.view("uint8") if x.ndim else x.reshape(1).view("uint8")
    hold = ffi.from_buffer(_char_array, view, writable)
    if view is x:
        _exported[dtype] = TYPES.get(dtype.name), dtype.name
    return Buffer(hold, x.nbytes, x.size, TYPES.get(dtype.name), dtype.name, hold)


def _of_protocol(x: Any, writable: bool) -> Buffer:
    view = memoryview(x)
    if not view.c_contiguous:
        raise ValueError("a %s that is not contiguous has no dense memory" % type(x).__name__)
    if writable and view.readonly:
        raise ValueError("a %s is read-only: the call writes to it" % type(x).__name__)
    hold = ffi.from_buffer(_char_array, x, writable)
    code = _FORMATS.get(view.format.lstrip(_NATIVE))  # longs of the standard size have another width
    if code is not None and SIZES[code] != view.itemsize:
        code = None
    return Buffer(hold, view.nbytes, view.nbytes // (view.itemsize or 1), code, "format %r" % view.format, hold)


def _buffer(x: Any, writable: bool) -> Buffer:
    try:
        code, name = _exported[x.dtype]
        hold = ffi.from_buffer(_char_array, x, writable)
        return Buffer(hold, len(hold), x.size, code, name, hold)
    except (AttributeError, BufferError, KeyError, TypeError, ValueError):
        return _checked(x, writable)


def _checked(x: Any, writable: bool) -> Buffer:
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and isinstance(x, numpy.ndarray):
        return _of_numpy(x, writable)
    if torch is not None and isinstance(x, torch.Tensor):
        return _of_torch(x, torch, writable)
    if hasattr(x, "__cuda_array_interface__"):
        from . import _device
        return _device.of_interface(x, writable)
    try:
        return _of_protocol(x, writable)
    except (TypeError, BufferError):
        pass  # no buffer protocol, or not for elements of this type
    if hasattr(x, "__dlpack__"):
        from ._dlpack import of_dlpack
        return of_dlpack(x, writable)
    raise ValueError("a %s has no memory that the library can use: give a NumPy array, a torch tensor, or an object "
                     "with the buffer protocol, DLPack or __cuda_array_interface__" % type(x).__name__)


def readable(x: Any) -> Buffer:
    """The memory of x, which the call reads."""
    return _buffer(x, False)


def writable(x: Any) -> Buffer:
    """The memory of x, which the call writes, or reads and writes."""
    return _buffer(x, True)


def need_order(a: Buffer, b: Buffer) -> None:
    """Bytes go from a to b, so their elements must lie in one order."""
    if a.order != b.order:
        raise ValueError("one tensor is contiguous, and the other one is channels_last: call .contiguous() first")


def need_c_order(b: Buffer) -> Buffer:
    """For what gives the elements to others in C order."""
    if b.order is not None:
        raise ValueError("a tensor in channels_last, whose elements do not lie in C order: call .contiguous() first")
    return b


def is_of(b: Buffer, type: int) -> bool:
    """True if the elements are of this type. NumPy has no bfloat16: its arrays of uint16 are taken for that."""
    return b.type == type or (type == BF16 and b.name in ("uint16", "format 'H'"))


def like(x: Any, lead: Tuple[int, ...]) -> Any:
    """New memory of the kind and type of x, of shape `lead` + the shape of x."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        if lead:
            return torch.empty(lead + tuple(x.shape), dtype=x.dtype)
        return torch.empty_like(x, device="cpu", requires_grad=False)  # its elements lie in the order of x's
    if numpy is not None and isinstance(x, numpy.ndarray):
        return numpy.empty(lead + x.shape, dtype=x.dtype)
    n = readable(x).bytes
    for times in lead:
        n *= times
    return bytearray(n)


def tensors(list_of: Sequence[Any], take: Callable[[Any], Buffer] = writable) -> Tuple[Any, Sequence[Buffer]]:
    """A tutti_tensor[] of what the call writes (or, with readable, reads), and the memory behind the tensors."""
    buffers = [take(x) for x in list_of]
    array = ffi.new("tutti_tensor[]", len(buffers))
    for at, b in zip(array, buffers):
        at.data, at.count, at.type = b.pointer, b.count, b.typed()
    return array, buffers


def own(address: int, bytes: int, readonly: bool = False) -> memoryview:
    """A view of `bytes` bytes of foreign memory at an address, for all calls that take memory.

    The caller keeps the memory where it is for as long as the view is used.
    """
    if bytes < 0 or address < 0 or (not address and bytes):
        raise ValueError("%d bytes at address %d: both are from 1 up" % (bytes, address))
    view = memoryview(ffi.buffer(ffi.cast("char *", address), bytes)).cast("B")
    return view.toreadonly() if readonly else view


__all__ = ["Buffer", "readable", "writable", "own", "is_of", "like", "need_c_order", "need_order", "tensors",
           "type_code", "NULL"]
