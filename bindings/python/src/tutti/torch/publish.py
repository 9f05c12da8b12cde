"""A torch model's weights for many readers."""
from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterable, Iterator, List, Mapping, NoReturn, Optional, Tuple, Union

import torch
from torch import Tensor

from .. import publish
from ..group import Group
from .model import eager

Source = Union[torch.nn.Module, Mapping[str, Tensor], Iterable[Tuple[str, Tensor]]]


def _keep(source: Source) -> Source:
    """A source that can be read again and again."""
    return source if isinstance(source, (torch.nn.Module, Mapping)) else list(source)


def _is_dtensor(t: Any) -> bool:
    return hasattr(t, "device_mesh")


def _need_plain(name: str, t: Any, parts: bool) -> None:
    if not isinstance(t, Tensor):
        raise ValueError("%r is a %s and no tensor: leave it out" % (name, type(t).__name__))
    if _is_dtensor(t) and not parts:
        raise ValueError("%r is a DTensor, of which each rank has a part: read without a model, and give each rank its "
                         "part by torch's distribute_tensor" % name)
    if t.layout is not torch.strided or t.is_quantized or t.device.type == "meta":
        raise ValueError("%r is sparse, quantized, or on the device meta: publications have plain tensors" % name)


def _place(t: Any) -> Tuple[Any, ...]:
    """What is the same for tensors that share their memory. A rank's part of a DTensor may be empty, and so have no
    address: then the storage tells, as all ranks must find the same tensors."""
    if _is_dtensor(t):
        local = t.to_local()
        return local.untyped_storage()._cdata, local.storage_offset(), t.shape, t.stride()
    return t.device, t.data_ptr(), t.dtype, t.shape, t.stride()


def _tensors(source: Source, parts: bool = False) -> Dict[str, Tensor]:
    """The tensors by name, each once: of tensors that share their memory the first one. parts: also DTensors."""
    if isinstance(source, torch.nn.Module):
        pairs: Iterable[Tuple[str, Tensor]] = [*source.named_parameters(), *source.named_buffers()]
    else:
        pairs = source.items() if isinstance(source, Mapping) else source
    found: Dict[str, Tensor] = {}
    seen = set()
    for name, t in pairs:
        _need_plain(name, t, parts)
        if name in found:
            raise ValueError("two tensors are called %r" % name)
        t = t.detach()
        place = _place(t)
        if place not in seen or not t.numel():
            found[name] = t
        seen.add(place)
    return found


def _publishing_rank(tensors: Mapping[str, Any]) -> Optional[int]:
    """The rank of torch.distributed that publishes a model with DTensors, the first one of their mesh. None: has none.
    """
    first = sorted({int(t.device_mesh.mesh.flatten()[0]) for t in tensors.values() if _is_dtensor(t)})
    if len(first) > 1:
        raise ValueError("the model's DTensors are on meshes that begin with ranks %s: make a WeightPublisher for the "
                         "tensors of each mesh" % ", ".join(map(str, first)))
    return first[0] if first else None


def _of_numpy(array: Any, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(array.view("int16") if dtype == torch.bfloat16 else array).view(dtype)


class WeightPublisher(publish.Publisher):
    """Publishes the weights of a model: other processes read the newest version, and the trainer waits for no reader.

        publisher = tutti.torch.WeightPublisher(model, "policy")
        optimizer.step(); publisher.publish(step)

    model: a module, of which parameters and buffers are published; a state_dict; or a list of (name, tensor). Tensors
    that share their memory are published once, under the first name. dtype: of all floating-point tensors; None: each
    its own. Each publish is one copy (and cast) into one of `buffers` buffers in the host's memory, 3 to 16, from a GPU
    too: if this process uses CUDA when the object is made, these buffers are pinned. group, boot: as of
    tutti.Publisher. deltas: memory for what changes between versions, as a part of the weights' bytes, 0: none: a
    WeightReader of a model reads that where it is shorter. generation, shard: as of tutti.Publisher, with its waits and
    errors; a model with DTensors takes no shard.

    A model with DTensors, as FSDP2's: all ranks of the mesh make the object, and call `publish`. The first rank of the
    mesh publishes, and gathers whole tensors for that, one at a time. The other ranks do nothing else with the object.

    Quantized and sparse tensors are refused, and types that the library does not have.
    """

    _by: Optional[int] = None  # the rank that publishes instead of this one

    def __init__(self, model: Source, name: str = "weights", dtype: Optional[torch.dtype] = None, buffers: int = 3,
                 group: Optional[Group] = None, boot: Optional[str] = None, deltas: float = 0,
                 generation: int = 0, shard: Optional[publish.Shard] = None) -> None:
        self._source = _keep(model)
        tensors = _tensors(self._source, True)
        self._kinds = {name: (t.shape, dtype if dtype is not None and t.is_floating_point() else t.dtype)
                       for name, t in tensors.items()}
        by = _publishing_rank(tensors)
        if by is not None and shard is not None:
            raise ValueError("a model with DTensors is published whole, by one rank: leave out `shard`, or publish "
                             "{name: t.to_local()} under names of your own")
        if by is not None and by != torch.distributed.get_rank():
            self._by, self.name = by, name
            return
        super().__init__(name, {name: (tuple(shape), kind) for name, (shape, kind) in self._kinds.items()}, buffers,
                         generation=generation, group=group, boot=boot, deltas=deltas, shard=shard)

    def __getattr__(self, name: str) -> NoReturn:
        if name == "_handle" and self._by is not None:
            raise ValueError("rank %d publishes %r: on the other ranks of the mesh only publish() and close() work"
                             % (self._by, self.name))
        super().__getattr__(name)

    @eager
    @torch.no_grad()
    def publish(self, version: int, meta: Any = b"") -> None:
        """Copies the model's tensors as they are now, and shows them as this version.

        version: above the last one. meta: up to 4096 bytes. With DTensors a collective of their mesh. Raises ValueError
        if the model has other tensors now.
        """
        tensors = _tensors(self._source, True)
        for name in {**tensors, **self._kinds}:
            if name not in tensors or name not in self._kinds or tensors[name].shape != self._kinds[name][0]:
                raise ValueError("%s of the model is not as it was when the WeightPublisher was made" % name)
        with contextlib.nullcontext() if self._by is not None else self.writing(version, meta) as to:
            for name, t in tensors.items():
                whole = t.full_tensor() if _is_dtensor(t) else t  # type: ignore[attr-defined, unused-ignore]
                if to is not None:
                    to[name].copy_(whole)

    @contextlib.contextmanager
    def writing(self, version: int, meta: Any = b"") -> Iterator[Dict[str, Any]]:
        """A `with` block in which the program writes all tensors of the version in place, into a dict by name.

        The end of the block publishes the version, unless the block raises.
        """
        with super().writing(version, meta) as arrays:
            tensors = {name: _of_numpy(array, self._kinds[name][1]) for name, array in arrays.items()}
            try:
                yield tensors
            finally:
                tensors.clear()


class WeightReader(publish.Reader):
    """Reads what a WeightPublisher, or a tutti.Publisher, of a rank publishes, as torch tensors; into a model.

        reader = tutti.torch.WeightReader(model, "policy")
        fetched = reader.fetch()                       # the model has the newest version
        fetched = reader.fetch(fetched.version)        # waits for a newer one

    model: as of WeightPublisher; each of its tensors is published in the same shape, in any type, and the model may be
    on a GPU. The bytes come to memory of the host first, pinned memory if the tensor is on a GPU. The model changes
    when a version has come whole: an error leaves the model as it was. None: fetches give new tensors. rank, group,
    boot: as of tutti.Reader. DTensors are refused.
    """

    def __init__(self, model: Optional[Source] = None, name: str = "weights", rank: int = 0,
                 group: Optional[Group] = None, boot: Optional[str] = None) -> None:
        self._source = None if model is None else _keep(model)
        self._host: Dict[str, Tensor] = {}  # where versions for the model come to
        self._last: Dict[str, Tensor] = {}
        self._held = 0                      # the version that all of _host have
        self._targets()
        super().__init__(name, rank, group, boot)
        try:
            self._check_targets()
        except ValueError:
            self.close()
            raise

    def _check_targets(self) -> None:
        for key, t in self._targets().items():
            if tuple(t.shape) != self._find(key).shape:
                raise ValueError("%r has shape %s in the model, and is published with shape %s"
                                 % (key, tuple(t.shape), self._find(key).shape))

    def _targets(self) -> Dict[str, Tensor]:
        return {} if self._source is None else _tensors(self._source)

    def empty(self, only: Optional[Iterable[str]] = None) -> Dict[str, Any]:
        """New torch tensors for all tensors of the publication, or for those named `only`, by name."""
        chosen = self.weights if only is None else [self._find(name) for name in only]
        return {w.name: torch.empty(w.shape, dtype=getattr(torch, w.dtype)) for w in chosen}

    def _read(self, newer_than: int, only: Optional[Iterable[str]], out: Optional[Mapping[str, Any]],
              timeout: Optional[float], held: int = 0) -> publish.Fetched:
        if self._source is None or out is not None:
            return super()._read(newer_than, only, out, timeout, held)
        fetched = super()._read(newer_than, only, None, timeout, self._held)  # after an error, the checksum is wrong
        self._held = fetched.version if len(fetched.weights) == len(self._weights) else 0
        return fetched

    def _room(self, only: Optional[Iterable[str]]) -> Dict[str, Any]:
        if self._source is None:
            return self.empty(only)
        targets = self._targets()
        names = list(targets if only is None else only)
        for name, t in self.empty(name for name in names if name not in self._host).items():
            gpu = name in targets and targets[name].is_cuda
            self._host[name] = torch.empty_like(t, pin_memory=True) if gpu else t
        return {name: self._host[name] for name in names}

    @eager
    @torch.no_grad()
    def _settle(self, fetched: publish.Fetched) -> publish.Fetched:
        self._last = fetched.weights
        targets = self._targets()
        for name, t in fetched.weights.items():
            if name in targets:
                targets[name].copy_(t)
        return fetched

    def tensors(self, bucket_bytes: Optional[int] = None) -> Iterator[List[Tuple[str, Tensor]]]:
        """The tensors of the last fetch in lists of pairs (name, tensor), as inference engines load weights.

        The tensors of a list have up to bucket_bytes together; a larger tensor has a list of its own; None: one list.
        """
        bucket: List[Tuple[str, Tensor]] = []
        left = bucket_bytes or 0
        for name, t in self._last.items():
            size = t.numel() * t.element_size()
            if bucket and bucket_bytes is not None and size > left:
                yield bucket
                bucket, left = [], bucket_bytes
            bucket.append((name, t))
            left -= size
        if bucket:
            yield bucket


__all__ = ["WeightPublisher", "WeightReader"]
