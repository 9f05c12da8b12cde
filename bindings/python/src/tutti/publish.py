"""Publications: versions of a model for many readers, which never keep the publisher waiting."""
from __future__ import annotations

import asyncio
import contextlib
import math
import os
from typing import (Any, AsyncIterator, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple,
                    Union)

from ._buffer import NAMES, Buffer, is_of, need_c_order, readable, type_code, writable
from ._call import NULL, call, ffi, lib, milliseconds, text
from ._handle import Handle, Owner
from ._model import NUMPY, Held, held_pairs
from .errors import Busy, TimedOut
from .group import Group
from .job import Job, init

Named = Union[Mapping[str, Any], Iterable[Tuple[str, Any]]]  # a dict, or pairs (name, what has that name)


class Weight(NamedTuple):
    """A tensor of a publication."""

    name: str
    shape: Tuple[int, ...]
    dtype: str  # "float32"
    shard: int = 0  # which shard has it; 0, too, if the publication has none


class Shard(NamedTuple):
    """A part of a publication: several ranks publish under one name, each its own tensors."""

    number: int                   # from 0 up
    of: int                       # how many shards there are: 2 to 1024
    rank_0: int = 0               # the rank in the group that has shard 0, where readers begin
    wait: Optional[float] = None  # seconds that `publish` and `writing` wait for slower shards; None: the group's


class PublisherInfo(NamedTuple):
    """The state of a publisher. See `tutti_publisher_info`."""

    version: int     # the newest; 0: none
    generation: int
    published: int   # how many versions
    reused: int      # how often readers held all buffers but the newest
    readers: int     # that are there now
    delta_bytes: int  # of the newest version's delta; 0: it has none


class Fetched(NamedTuple):
    """What a reader has fetched. See `tutti_fetched`; age is seconds."""

    version: int
    generation: int
    age: float
    meta: bytes
    overtaken: int           # how often this fetch began anew
    weights: Dict[str, Any]  # the arrays, by name
    deltas: int              # how many were applied; 0: the version came whole
    bytes_read: int
    mismatched: int          # how often, since the reader was opened, deltas led to a wrong checksum


def _weights(names: Sequence[str], shapes: Iterable[Sequence[int]], types: Iterable[int]) -> Tuple[Any, Any]:
    """A tutti_weight[], and the strings that it points to."""
    array, strings = ffi.new("tutti_weight[]", len(names)), [text(name) for name in names]
    for at, name, shape, type in zip(array, strings, shapes, types):
        if len(shape) > 8:
            raise ValueError("tensor %r has %d dimensions, and a publication takes 8 at most"
                             % (ffi.string(name).decode(), len(shape)))
        at.name, at.type, at.dims, at.shape = name, type, len(shape), list(shape)
    return array, strings


class _Fleet(Handle):
    """A publisher or a reader, which may have a job of its own: it then joins the job, and leaves it at its end."""

    _own: Optional[Job] = None

    def _join(self, boot: Optional[str], group: Optional[Group], **place: Any) -> Optional[Group]:
        if boot is None:
            return group
        if group is not None:
            raise ValueError("a %s takes `boot`, the address of a job of its own, or `group`" % type(self).__name__)
        self._own = Job(boot=boot, **place)
        return self._own.everyone()

    def _open(self, *args: Any) -> None:
        try:
            super()._open(*args)
        except BaseException:
            self._leave()
            raise

    def _leave(self) -> None:
        if self._own is not None and self._own._pid == os.getpid():  # not in a fork's child
            self._own.leave()
        self._own = None

    def _close(self) -> None:
        super()._close()
        self._leave()


class Publisher(_Fleet, Owner):
    """A publication: other ranks read its newest whole version by themselves. The publisher never waits for readers.

        publisher = tutti.Publisher("policy", {"weight": weight, "bias": bias})
        publisher.publish(step)

    name: 1 to 160 bytes. weights: a dict, or pairs (name, array); the object keeps the arrays, and `publish` copies
    from them. Or each value is a pair (shape, dtype): then the program writes each version in place, in `writing`.
    buffers: 3 to 16, each as large as all weights; 0: 3. hold: seconds that a reader may hold a version; 0: 5.
    generation: readers compare versions within one generation; 0: the time of the opening. group: whose ranks read;
    None: the default job. boot: "HOST:PORT" of this host instead: there the object makes a job of its own for readers,
    which ends with close(). The rest of that job comes from the environment, as TUTTI_SECRET; for more make a
    tutti.Job(boot=boot, rank=0, ranks=1, ...) and give it as group. deltas: memory for what changes between versions,
    as a part of the weights' bytes: 0.5 is half of them, 0 none; `fetch` with `held` reads it. shard: these weights are
    a part of the publication; all shards name the same generation, which is not 0, publish the same versions, and keep
    no deltas. Does not block; a shard waits until shard 0 is open, for the group's timeout. Raises Exists, OutOfMemory;
    InvalidArgument; NotSupported: memory of a GPU, or deltas of a shard; what tutti.Job raises, with `boot`; TimedOut:
    shard 0 is not open; Stale: shard 0 has a later generation.

    One thread at a time publishes; another thread may call `wait`, `look` and `readers` meanwhile.
    """

    _end = lib.tutti_publisher_close

    def __init__(self, name: str, weights: Named, buffers: int = 0, hold: float = 0, generation: int = 0,
                 group: Optional[Group] = None, boot: Optional[str] = None, deltas: float = 0,
                 shard: Optional[Shard] = None) -> None:
        named = list(weights.items() if isinstance(weights, Mapping) else weights)
        self._names, values = [name for name, _ in named], [x for _, x in named]
        c = ffi.new("tutti_publisher_config *", {"buffers": buffers, "hold_ms": milliseconds(hold),
                                                 "generation": generation, "deltas": deltas})
        if shard is not None and not (isinstance(shard, Shard) and shard.of >= 2):
            raise ValueError("shard is a tutti.Shard of 2 or more, and not %r" % (shard,))
        if shard is not None and boot is not None:
            raise ValueError("shards are ranks of one group: make a tutti.Job(boot=...) and give it as `group`")
        if shard is not None:
            c.shard, c.shards, c.shard_0, c.shard_wait_ms = *shard[:3], milliseconds(shard.wait)
        pairs, taken = held_pairs(values), []  # type: Optional[List[Any]], List[Buffer]
        if pairs is None:
            taken = [need_c_order(readable(x)) for x in values]
            pairs = [(getattr(x, "shape", (b.count,)), NAMES[b.typed()]) for x, b in zip(values, taken)]
        self._held, self._hold = Held(pairs), taken
        array, strings = _weights(self._names, self._held.shapes, (at.type for at in self._held.list))
        for at, b in zip(array, taken):
            at.data = b.pointer
        group = self._join(boot, group, rank=0, ranks=1)
        self._open(lib.tutti_publisher_open, "tutti_publisher **", group, name, array, len(named), c)
        del strings

    def close(self) -> None:
        """Ends the publication. Readers get Stale once, then wait for the name to be open again.

        Arrays that `writing` gave keep the memory: then the publication ends with the last of these arrays. Harmless
        twice, and after the job was left.
        """
        super().close()

    def publish(self, version: int, meta: Any = b"") -> None:
        """Copies the weights, and shows them as this version.

        version: above the last one, below 2 ** 60. meta: up to 4096 bytes, which readers get with the version. Does
        not block; a shard waits while it is ahead of the others. Raises InvalidArgument. A shard raises Busy: it is
        still ahead, and has published nothing: call again. It raises RankDied, RankLeft: a shard is gone, or Stale:
        shard 0 has closed the name. Then all shards close, and open the name under a higher generation.
        """
        self._show(lib.tutti_publisher_publish, version, meta)

    def _show(self, function: Any, version: int, meta: Any) -> None:
        b = readable(meta)
        call(function, self._handle, version, b.pointer, b.bytes)

    @contextlib.contextmanager
    def writing(self, version: int, meta: Any = b"") -> Iterator[Dict[str, Any]]:
        """A `with` block in which the program writes the version in place, into a dict of NumPy arrays by name.

        The program writes all elements: the arrays hold an older version, or zeros. Arrays of bfloat16 are uint16. The
        end of the block publishes the version, unless the block raises. Do not write to the arrays after the block.
        Waits and raises as `publish`.
        """
        list_of = ffi.new("tutti_tensor[]", len(self._names))
        call(lib.tutti_publisher_begin, self._handle, list_of)
        arrays = dict(zip(self._names, self._held.arrays(list_of, self._owner)))
        try:
            yield arrays
            self._show(lib.tutti_publisher_commit, version, meta)
        finally:
            arrays.clear()  # they would keep the publication open

    def wait(self, version: int, readers: int = 1, timeout: Optional[float] = None) -> None:
        """Waits until so many readers that are there have taken this version, or a newer one.

        timeout: seconds; None: the group's; 0: only look. Raises TimedOut.
        """
        call(lib.tutti_publisher_wait, self._handle, version, readers, milliseconds(timeout))

    def look(self) -> PublisherInfo:
        """The state of the publication. Does not block."""
        i = ffi.new("tutti_publisher_info *")
        call(lib.tutti_publisher_look, self._handle, i)
        return PublisherInfo(i.version, i.generation, i.published, i.reused, i.readers, i.delta_bytes)

    def readers(self) -> int:
        """How many readers are there now. Does not block."""
        return self.look().readers


class Reader(_Fleet):
    """A reader of what a rank publishes under a name.

        reader = tutti.Reader("policy")
        fetched = reader.fetch()
        fetched = reader.fetch(fetched.version, out=fetched.weights)   # waits for a newer version

    rank: the publisher's. group: whose rank that is; None: of all ranks of the default job, also of those that came
    late. boot: the publisher's boot instead: the object joins that job as a new rank, and close() leaves it. Blocks
    until the rank has opened the name. A process has one reader of a name in a job. Raises Mismatch: the rank publishes
    nothing under this name; NotOpen: not in time; Exists; InvalidArgument: the rank is this one; of `boot`, what
    tutti.Job raises.
    """

    _end = lib.tutti_reader_close

    def __init__(self, name: str, rank: int = 0, group: Optional[Group] = None, boot: Optional[str] = None) -> None:
        group = self._join(boot, group)
        self._open(lib.tutti_reader_open, "tutti_reader **", init().everyone() if group is None else group, name, rank)
        self._weights = {w.name: w for w in map(self._weight, range(call(lib.tutti_reader_weights, self._handle)))}

    def _weight(self, i: int) -> Weight:
        w = ffi.new("tutti_weight *")
        call(lib.tutti_reader_weight, self._handle, i, w)
        return Weight(ffi.string(w.name).decode(), tuple(w.shape)[:w.dims], NAMES[w.type], w.shard)

    @property
    def weights(self) -> List[Weight]:
        """The tensors of the publication: names, shapes and types."""
        return list(self._weights.values())

    def empty(self, only: Optional[Iterable[str]] = None) -> Dict[str, Any]:
        """New NumPy arrays for all tensors, or for those named `only`, by name. Arrays of bfloat16 are uint16."""
        import numpy

        chosen = self.weights if only is None else [self._find(name) for name in only]
        return {w.name: numpy.empty(w.shape, NUMPY.get(w.dtype, w.dtype)) for w in chosen}

    def _find(self, name: str) -> Weight:
        if name not in self._weights:
            raise ValueError("the publication %r has no tensor %r: it has %s"
                             % (self.name, name, ", ".join(list(self._weights)[:10])))
        return self._weights[name]

    def newest(self) -> int:
        """The number of the newest version; 0: there is none. Costs one get of 8 bytes. Raises Stale, as `fetch`."""
        version = ffi.new("uint64_t *")
        call(lib.tutti_reader_newest, self._handle, version)
        return int(version[0])

    def fetch(self, newer_than: int = 0, only: Optional[Iterable[str]] = None, out: Optional[Mapping[str, Any]] = None,
              timeout: Optional[float] = None, held: int = 0) -> Fetched:
        """Reads the newest version, if it is above `newer_than`, or waits for one.

        only: names of the tensors that the program needs; None: all. out: arrays to fill, by name; None: new ones, of
        `empty`. timeout: seconds that it waits for a newer version; None: the group's; 0: only look. held: the version
        that the arrays of `out` have, as this reader fetched it: if the publisher keeps deltas, the reader fetches and
        applies these where they are shorter. It notices by a checksum if the arrays have changed since.

        Raises TimedOut: there is no newer version. Busy: the publisher has overtaken the fetch until then. Stale: the
        publisher has closed the name, and the next fetch waits until the name is open again. RankDied, RankLeft: the
        publisher is gone. Mismatch: it publishes other tensors now. After an error elements of `out` may be of several
        versions.
        """
        if held and out is None:
            raise ValueError("fetch takes `held` with `out`: the version that these arrays have")
        return self._settle(self._read(newer_than, only, out, timeout, held))

    def _read(self, newer_than: int, only: Optional[Iterable[str]], out: Optional[Mapping[str, Any]],
              timeout: Optional[float], held: int = 0) -> Fetched:
        if only is not None and out is not None:
            raise ValueError("fetch takes `only` or `out`: the names in `out` say what is fetched")
        arrays = self._room(only) if out is None else dict(out)
        list_of, hold = self._places(arrays)
        f = ffi.new("tutti_fetched *")
        call(lib.tutti_reader_update, self._handle, newer_than, held, list_of, milliseconds(timeout), f)
        del hold
        return Fetched(f.version, f.generation, f.age_ms / 1000, ffi.buffer(f.meta)[:f.meta_bytes], f.overtaken, arrays,
                       f.deltas, f.bytes, f.mismatched)

    def _room(self, only: Optional[Iterable[str]]) -> Dict[str, Any]:
        """Where a fetch puts what the program gives no memory for."""
        return self.empty(only)

    def _settle(self, fetched: Fetched) -> Fetched:
        """What is left to do with a version that was read, on the thread of the program."""
        return fetched

    async def versions(self, only: Optional[Iterable[str]] = None, newer_than: int = 0) -> AsyncIterator[Fetched]:
        """The newest version, again and again, in an event loop: `async for fetched in reader.versions()`.

        Looks every 5 ms for a newer version, in another thread. Raises what `fetch` raises but for TimedOut and Busy.
        """
        names = None if only is None else list(only)
        while True:
            look = asyncio.get_running_loop().run_in_executor(None, self._look, newer_than, names)
            try:
                fetched = await asyncio.shield(look)
            finally:
                await asyncio.wait([look])  # also if the task is cancelled: one thread at a time uses a reader
            if fetched is None:
                await asyncio.sleep(0.005)
                continue
            newer_than = fetched.version
            yield self._settle(fetched)

    def _look(self, newer_than: int, only: Optional[List[str]]) -> Optional[Fetched]:
        try:
            return self._read(newer_than, only, None, 0)
        except (Busy, TimedOut):
            return None

    def _places(self, arrays: Dict[str, Any]) -> Tuple[Any, List[Buffer]]:
        """A tutti_tensor[], which leaves out what is not among the arrays, and the memory behind it."""
        taken = {name: self._fitting(self._find(name), x) for name, x in arrays.items()}
        list_of = ffi.new("tutti_tensor[]", len(self._weights))
        for at, name in zip(list_of, self._weights):
            b = taken.get(name)
            at.data = NULL if b is None else b.pointer
            if b is not None:
                at.count, at.type = b.count, type_code(self._weights[name].dtype)
        return list_of, list(taken.values())

    def _fitting(self, w: Weight, x: Any) -> Buffer:
        b, type = need_c_order(writable(x)), type_code(w.dtype)
        if not is_of(b, type):
            raise ValueError("tensor %r has %s, and the array has %s" % (w.name, w.dtype, b.name))
        if b.count != math.prod(w.shape):
            raise ValueError("tensor %r has shape %s, and the array has %d elements" % (w.name, w.shape, b.count))
        return b


__all__ = ["Fetched", "Publisher", "PublisherInfo", "Reader", "Shard", "Weight"]
