"""What the wrappers share: the tensors of a model that travel, and the model of all ranks for a while."""
from __future__ import annotations

import contextlib
import functools
import hashlib
import sys
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, NoReturn, Optional, Tuple, TypeVar

import torch
from torch import Tensor

from .. import _device
from ..group import Group
from ..job import group_of

F = TypeVar("F", bound=Callable[..., Any])


def eager(function: F) -> F:
    """Keeps torch.compile out of a function.

    torch.compiler.disable imports the compiler, which takes seconds. So this calls it only if the compiler is there.
    """
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        compiler: Any = getattr(torch, "compiler", None)
        if "torch._dynamo" in sys.modules and hasattr(compiler, "disable"):
            return compiler.disable(function)(*args, **kwargs)
        return function(*args, **kwargs)

    return call  # type: ignore[return-value]


def parameters(model: torch.nn.Module) -> List[Tuple[str, Tensor]]:
    """The parameters that are trained, each once."""
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]


def float_buffers(model: torch.nn.Module) -> List[Tuple[str, Tensor]]:
    """The buffers that are averaged, of BatchNorm say. Integers count steps, and stay each rank's own."""
    return [(name, b) for name, b in model.named_buffers() if b.is_floating_point()]


class Place(NamedTuple):
    """Where a module has a tensor. A step looks at hundreds of these, and model.named_parameters() takes too long."""

    store: Dict[str, Optional[Tensor]]
    key: str
    address: int
    trained: bool
    name: str


def _places(model: torch.nn.Module) -> List[Place]:
    return [Place(store, key, t.data_ptr(), t.requires_grad, "%s.%s" % (prefix, key) if prefix else key)
            for prefix, module in model.named_modules() for store in (module._parameters, module._buffers)
            for key, t in store.items() if t is not None and t.is_floating_point()]


def by_type(tensors: List[Tensor]) -> List[List[Tensor]]:
    """The tensors, in one list for each type."""
    lists: Dict[torch.dtype, List[Tensor]] = {}
    for tensor in tensors:
        if tensor.numel():
            lists.setdefault(tensor.dtype, []).append(tensor)
    return list(lists.values())


def average(group: Group, tensors: List[Tensor]) -> None:
    """Averages the tensors over the ranks, in place; those on a GPU by way of the host."""
    for of_one_type in by_type(tensors):
        on_host = [t.cpu() for t in of_one_type]  # a tensor on the CPU is its own
        group.allreduce_tensors(on_host, op="average")
        for t, averaged in zip(of_one_type, on_host):
            if t.device.type != "cpu":
                t.copy_(averaged)


def _line(name: str, tensor: Tensor) -> str:
    order = "" if tensor.is_contiguous() else " with strides %s" % (tensor.stride(),)
    return "%s: %s of shape %s%s" % (name, str(tensor.dtype)[6:], tuple(tensor.shape), order)


def agree(group: Group, lines: List[str]) -> None:
    """Raises the same ValueError on all ranks if their lines differ. A collective."""
    text = "\n".join(lines).encode()
    mine = hashlib.sha256(text).digest() + len(text).to_bytes(8, "little")
    all_of = bytes(group.allgather(mine))
    each = [all_of[i * len(mine):][:len(mine)] for i in range(group.size)]
    other = next((rank for rank in range(group.size) if each[rank] != each[0]), None)
    if other is None:
        return
    texts = []
    for rank in (0, other):
        memory = bytearray(text if rank == group.rank else int.from_bytes(each[rank][-8:], "little"))
        texts.append(bytes(group.broadcast(memory, rank)).decode().split("\n"))
    a, b = texts[0] + ["nothing more"], texts[1] + ["nothing more"]
    i = next(i for i in range(len(a)) if a[i] != b[i])
    raise ValueError("the models of the ranks differ: rank 0 has %s, and rank %d has %s: build the same model, with "
                     "the same arguments of the wrapper, on all ranks" % (a[i], other, b[i]))


class Wrapper:
    """A model whose copies on all ranks are kept together. Making one is a collective: all models become rank 0's.

    The wrapper holds the memory of the model's tensors, so it comes behind load_state_dict(assign=True) and .to().
    """

    def __init__(self, model: torch.nn.Module, group: Optional[Group], settings: str) -> None:
        self.group = group_of(group)
        self._model = model
        everything = list(model.named_parameters()) + list(model.named_buffers())
        agree(self.group, [settings] + [_line(*x) for x in everything])
        for _, tensor in everything:
            self.group.broadcast(tensor.detach())
        self._gpus = {t.device for _, t in everything if t.device.type == "cuda"}
        self._places = _places(model)
        self._params = [p.detach() for _, p in parameters(model)]
        self._buffers = [b.detach() for _, b in float_buffers(model)]
        self._names = [name for name, _ in parameters(model) + float_buffers(model)]

    @property
    def _tensors(self) -> List[Tensor]:
        return [t for t in self._params + self._buffers if t.numel()]

    def _check(self) -> None:
        """Each step looks whether the model still is the one that the wrapper was made for, and in which stream."""
        for device in self._gpus:
            _device.of_torch(device, torch)
        for place in self._places:
            t = place.store.get(place.key)
            if t is None or t.data_ptr() != place.address or t.requires_grad != place.trained:
                raise RuntimeError("%s of the model is not as it was when tutti.torch.%s was made: make the wrapper "
                                   "after load_state_dict(assign=True), .to(), and changes of requires_grad"
                                   % (place.name, type(self).__name__))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a %s belongs to this process and cannot be pickled: save its state_dict()"
                        % type(self).__name__)

    def _named(self, tensors: List[Tensor]) -> Dict[str, Tensor]:
        return {name: t.clone() for name, t in zip(self._names, tensors)}

    def _set(self, tensors: List[Tensor], named: Dict[str, Tensor]) -> None:
        """Sets tensors, of the parameters and perhaps of the buffers, to what `_named` has given."""
        for name, tensor in zip(self._names, tensors):
            if name not in named:
                raise ValueError("the state has no %s: it was saved of another model" % name)
            tensor.copy_(named[name])

    def _to_consensus(self) -> None:
        raise NotImplementedError

    @contextlib.contextmanager
    def consensus(self) -> Iterator[torch.nn.Module]:
        """A `with` block in which the model is what the ranks have together, to test or save; then each has its own.

        A collective: all ranks call it after the same step, or, of Elastic, at the end of their steps.
        """
        self._check()
        kept = [t.clone() for t in self._params + self._buffers]
        try:
            self._to_consensus()
            yield self._model
        finally:
            for t, own in zip(self._params + self._buffers, kept):
                t.copy_(own)
