"""Models: lists of tensors that an object of the library keeps."""
from __future__ import annotations

import math
from functools import partial
from typing import Any, List, Optional, Tuple

from . import _buffer
from ._buffer import NAMES, SIZES, type_code
from ._call import ffi

NUMPY = {"bfloat16": "uint16"}  # types of NumPy for types that NumPy does not have


def as_list(tensors: Any) -> List[Any]:
    """What the program gave as a list of tensors: a list, a tuple, an iterator, or one tensor alone."""
    if isinstance(tensors, (list, tuple)) or hasattr(tensors, "__next__"):
        return list(tensors)
    return [tensors]


class Model:
    """A list of tensors as the library takes the list, and the memory behind the list."""

    def __init__(self, tensors: Any) -> None:
        self.tensors = as_list(tensors)
        self.list, self._buffers = _buffer.tensors(self.tensors)
        first = self.tensors[0] if self.tensors else None
        self._on_cpu = not (getattr(getattr(first, "device", None), "type", None) == "cuda" or
                            hasattr(first, "__cuda_array_interface__"))

    def __len__(self) -> int:
        return len(self.list)

    def announce(self) -> None:
        """The next call takes a model on a GPU as the stream of the first tensor leaves the model."""
        if not self._on_cpu:
            _buffer.readable(self.tensors[0])

    def matching(self, tensors: Any, what: str) -> "Model":
        """Another list of the same counts, types and orders, which the library does not check by itself."""
        other = Model(tensors)
        if len(other) != len(self):
            raise ValueError("%s has %d tensors, and the model has %d" % (what, len(other), len(self)))
        for i, (a, b) in enumerate(zip(self._shapes(), other._shapes())):
            if a != b:
                raise ValueError("tensor %d of %s has %d elements of %s, and the model's has %d of %s"
                                 % (i, what, *b, *a))
        for ours, theirs in zip(self._buffers, other._buffers):
            _buffer.need_order(ours, theirs)
        return other

    def _shapes(self) -> List[Tuple[int, str]]:
        return [(t.count, NAMES[t.type]) for t in self.list]

    def like(self) -> List[Any]:
        """New tensors of the same kinds, shapes and types."""
        return [_buffer.like(x, ()) for x in self.tensors]


class Held:
    """A model that the library holds: pairs (shape, dtype)."""

    def __init__(self, pairs: List[Tuple[Any, Any]]) -> None:
        self.list = ffi.new("tutti_tensor[]", len(pairs))
        self.shapes = [tuple(shape) for shape, _ in pairs]
        for at, shape, (_, dtype) in zip(self.list, self.shapes, pairs):
            at.type, at.count = type_code(dtype), math.prod(shape)

    def __len__(self) -> int:
        return len(self.list)

    def announce(self) -> None:
        """Memory of the host has no stream."""

    def arrays(self, list_of: Any, owner: Any) -> List[Any]:
        """NumPy arrays in the library's memory. They keep the owner of the memory alive."""
        import numpy

        arrays = []
        for at, shape in zip(list_of, self.shapes):
            memory = ffi.buffer(ffi.gc(at.data, partial(_keep, owner)), at.count * SIZES[at.type])
            arrays.append(numpy.frombuffer(memory, NUMPY.get(NAMES[at.type], NAMES[at.type])).reshape(shape))
        return arrays


def _keep(_owner: Any, _memory: Any) -> None:
    pass


def held_pairs(model: Any) -> Optional[List[Any]]:
    """The pairs (shape, dtype), if the program gave these."""
    pairs = model if isinstance(model, (list, tuple)) else [model]
    return list(pairs) if pairs and all(isinstance(x, tuple) and len(x) == 2 for x in pairs) else None
