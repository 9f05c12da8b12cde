"""Groups of ranks: who is in them, collectives, messages, counters."""
from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import _buffer
from ._buffer import need_order, readable, writable
from ._call import NULL, call, ffi, lib, milliseconds, refuse_closed, refuse_in_wait, text
from .errors import MessageTooLong
from .operation import Operation, now

if TYPE_CHECKING:
    from .job import Job

RULES: Dict[str, int] = {"sum": lib.TUTTI_SUM, "average": lib.TUTTI_AVERAGE, "product": lib.TUTTI_PRODUCT,
                         "max": lib.TUTTI_MAX, "min": lib.TUTTI_MIN, "band": lib.TUTTI_BAND, "bor": lib.TUTTI_BOR,
                         "bxor": lib.TUTTI_BXOR}
STATES = {lib.TUTTI_JOINED: "joined", lib.TUTTI_LEFT: "left", lib.TUTTI_GONE: "gone"}

How = Callable[..., Any]  # `now`, or Operation: wait here, or start


class Peer(NamedTuple):
    """What this rank knows of another rank. See `tutti_group_peer` for the members."""

    rank: int
    host: str
    address: str
    transport: str
    why_not: str
    alive: float
    state: str
    local: Optional[bool]


class Change(NamedTuple):
    """A rank of the job (`rank`) has joined, left or gone (`what`); `why` is the sentence."""

    rank: int
    what: str
    errno: int
    why: str


class Message(NamedTuple):
    """A message that has arrived: the sender's rank in the group, the tag, and the length in bytes."""

    rank: int
    tag: int
    bytes: int


class Stat(NamedTuple):
    """Counters of one kind of operation; times are microseconds."""

    ops: int
    bytes: int
    errors: int
    p50_us: float
    p99_us: float
    max_us: float
    mean_us: float


def rule_code(op: str) -> int:
    """The library's number of a rule."""
    try:
        return RULES[op]
    except (KeyError, TypeError):
        raise ValueError("no rule is called %r: use %s" % (op, ", ".join(RULES))) from None


def string(field: Any) -> str:
    """A char array of a struct."""
    return str(ffi.string(field).decode(errors="replace"))


def _output(out: Any, x: Any, lead: Tuple[int, ...]) -> Any:
    return _buffer.like(x, lead) if out is None else out


def _need(have: int, need: int, what: str) -> None:
    if have != need:
        raise ValueError("%s has %d bytes, and the call needs %d" % (what, have, need))


def _need_alike(of: _buffer.Buffer, to: _buffer.Buffer) -> None:
    need_order(of, to)
    if of.type != to.type:
        raise ValueError("out is of %s, and x of %s: both are of one type" % (to.name, of.name))


def _sizes(counts: Sequence[int], size: int, each: int, room: int, what: str) -> Tuple[Any, Any]:
    """Two size_t arrays: the bytes of each rank's part, and where the part begins."""
    if len(counts) != size or min(counts) < 0:
        raise ValueError("%s has %d counts, from 0 up, one for each of %d ranks: %s"
                         % (what, size, size, list(counts)))
    lengths = [c * each for c in counts]
    if sum(lengths) > room:
        raise ValueError("%s: the counts sum up to %d bytes, and the memory has %d" % (what, sum(lengths), room))
    places = itertools.accumulate([0] + lengths[:-1])
    return ffi.new("size_t[]", lengths), ffi.new("size_t[]", list(places))


class Group:
    """A group of ranks. `rank` is this process's number there, `size` the number of ranks.

    Every rank of the group calls the same collectives, in the same order. Each `..._start` returns an Operation at
    once. Arguments that a call writes must be writable and dense, else the call raises ValueError; nothing is copied.
    """

    _handle: Any = None  # closed

    def __init__(self, handle: Any, job: "Job") -> None:
        self._handle = handle
        self._job = job

    @property
    def _c(self) -> Any:
        if self._handle is None:
            refuse_closed(self)
        return self._handle

    # ---- who is here ----

    @property
    def rank(self) -> int:
        """This process's rank in the group, from 0 up."""
        return call(lib.tutti_rank, self._c)

    @property
    def size(self) -> int:
        """How many ranks the group has."""
        return call(lib.tutti_size, self._c)

    @property
    def local_rank(self) -> int:
        """This process's number among the job's ranks on this host."""
        return call(lib.tutti_local_rank, self._c)

    @property
    def local_size(self) -> int:
        """How many ranks of the job run on this host."""
        return call(lib.tutti_local_size, self._c)

    @property
    def job(self) -> "Job":
        """The job of the group."""
        return self._job

    def _made(self, function: How, *args: Any) -> "Optional[Group]":
        place = ffi.new("tutti **")
        try:
            call(function, self._c, *args, place)
        except BaseException:
            lib.tutti_group_free(place[0])  # a signal's handler has raised in the moment of success; else NULL
            raise
        return Group(place[0], self._job) if place[0] else None

    def split(self, color: int, key: int = 0) -> "Optional[Group]":
        """A collective: ranks of the same color are a group, ordered by key, then by rank. None: color is negative."""
        return self._made(lib.tutti_group_split, color, key)

    def of(self, ranks: Sequence[int], name: str) -> "Group":
        """Makes a group of the listed ranks of this group. The listed ranks call, and no other rank does.

        The order of the list numbers the new group's ranks. name: 1 to 200 bytes, the same on all listed ranks.
        Raises Mismatch (two ranks gave different lists), TimedOut (names the missing ranks; call again), RankDied.
        """
        made = self._made(lib.tutti_group_of, ffi.new("int[]", list(ranks)), len(ranks), text(name))
        assert made is not None
        return made

    def shrink(self) -> "Group":
        """Makes a group of the ranks that are left, after a collective has failed. All ranks that are left call."""
        made = self._made(lib.tutti_group_shrink)
        assert made is not None
        return made

    def grow(self) -> "Group":
        """Does the same as shrink, and adds the ranks that have joined since, after the others.

        A rank that has joined calls `grow` of its job.
        """
        made = self._made(lib.tutti_group_grow)
        assert made is not None
        return made

    def set_timeout(self, seconds: Optional[float]) -> None:
        """How long this group's operations wait for ranks that live; None: no limit; 0: as the job has it."""
        call(lib.tutti_group_timeout, self._c, milliseconds(seconds))

    def evict(self, rank: int, why: str) -> None:
        """Expels a rank of the group from the job, as if the rank had died."""
        call(lib.tutti_group_evict, self._c, rank, text(why))

    def members(self) -> List[int]:
        """The ranks in the job of this group's ranks."""
        return [call(lib.tutti_group_member, self._c, i) for i in range(self.size)]

    def rank_of(self, rank: int) -> int:
        """The rank in this group of the job's `rank`. Raises NotOpen if the group does not have the rank."""
        return call(lib.tutti_group_rank, self._c, rank)

    def peer(self, rank: int) -> Peer:
        """What this rank knows of another rank of the group. Connects to nobody."""
        p = ffi.new("tutti_peer *")
        call(lib.tutti_group_peer, self._c, rank, p)
        return Peer(p.rank, string(p.host), string(p.address), string(p.transport), string(p.why_not), p.alive_s,
                    STATES[p.state], None if p.local < 0 else bool(p.local))

    # ---- collectives ----

    def barrier(self) -> None:
        """Waits until every rank has called."""
        now(self, lib.tutti_barrier, (self._c,), None)

    def barrier_start(self) -> Operation:
        """Starts a barrier."""
        return Operation(self, lib.tutti_barrier, (self._c,), None)

    def allreduce(self, x: Any, op: str = "sum", out: Any = None) -> Any:
        """Combines the ranks' x element by element, in place, or into `out`, and returns the result.

        op: "sum", "average", "product", "max", "min", and of integers "band", "bor", "bxor". All ranks get the same
        bits.
        """
        return self._allreduce(now, x, op, out)

    def allreduce_start(self, x: Any, op: str = "sum", out: Any = None) -> Operation:
        """Starts an allreduce."""
        return self._allreduce(Operation, x, op, out)  # type: ignore[no-any-return]

    def _allreduce(self, how: How, x: Any, op: str, out: Any) -> Any:
        to = writable(x if out is None else out)
        of = to if out is None else readable(x)
        _need(to.bytes, of.bytes, "out")
        _need_alike(of, to)
        return how(self, lib.tutti_allreduce, (self._c, of.pointer, to.pointer, of.count, of.typed(), rule_code(op)),
                   (of.hold, to.hold), x if out is None else out)

    def allreduce_tensors(self, tensors: Sequence[Any], op: str = "sum") -> Any:
        """Combines a list of tensors of one type in place, as if they were one vector. Returns the list."""
        return self._allreduce_tensors(now, tensors, op)

    def allreduce_tensors_start(self, tensors: Sequence[Any], op: str = "sum") -> Operation:
        """Starts an allreduce of a list."""
        return self._allreduce_tensors(Operation, tensors, op)  # type: ignore[no-any-return]

    def _allreduce_tensors(self, how: How, tensors: Sequence[Any], op: str) -> Any:
        array, buffers = _buffer.tensors(tensors)
        return how(self, lib.tutti_allreduce_tensors, (self._c, array, len(array), rule_code(op)), (array, buffers),
                   tensors)

    def reduce(self, x: Any, op: str = "sum", root: int = 0, out: Any = None) -> Any:
        """Combines the ranks' x, and gives the result to the root: in place, or in `out`. Returns None elsewhere."""
        return self._reduce(now, x, op, root, out)

    def reduce_start(self, x: Any, op: str = "sum", root: int = 0, out: Any = None) -> Operation:
        """Starts a reduce."""
        return self._reduce(Operation, x, op, root, out)  # type: ignore[no-any-return]

    def _reduce(self, how: How, x: Any, op: str, root: int, out: Any) -> Any:
        here = self.rank == root
        of = readable(x)
        to = writable(x if out is None else out) if here else of
        _need(to.bytes, of.bytes, "out")
        _need_alike(of, to)
        return how(self, lib.tutti_reduce, (self._c, of.pointer, to.pointer, of.count, of.typed(), rule_code(op),
                                            root), (of.hold, to.hold), (x if out is None else out) if here else None)

    def broadcast(self, x: Any, root: int = 0) -> Any:
        """Copies the root's x to all ranks' x, and returns x."""
        return self._broadcast(now, x, root)

    def broadcast_start(self, x: Any, root: int = 0) -> Operation:
        """Starts a broadcast."""
        return self._broadcast(Operation, x, root)  # type: ignore[no-any-return]

    def _broadcast(self, how: How, x: Any, root: int) -> Any:
        b = readable(x) if self.rank == root else writable(x)
        return how(self, lib.tutti_broadcast, (self._c, b.pointer, b.bytes, root), b.hold, x)

    def gather(self, x: Any, root: int = 0, out: Any = None) -> Any:
        """Collects the ranks' x, of one size, on the root: shape (size, ...). Returns None elsewhere."""
        return self._gather(now, x, root, out)

    def gather_start(self, x: Any, root: int = 0, out: Any = None) -> Operation:
        """Starts a gather."""
        return self._gather(Operation, x, root, out)  # type: ignore[no-any-return]

    def _gather(self, how: How, x: Any, root: int, out: Any) -> Any:
        b = readable(x)
        if self.rank != root:
            return how(self, lib.tutti_gather, (self._c, b.pointer, b.bytes, NULL, root), b.hold)
        out = _output(out, x, (self.size,))
        to = writable(out)
        need_order(b, to)
        _need(to.bytes, b.bytes * self.size, "out")
        return how(self, lib.tutti_gather, (self._c, b.pointer, b.bytes, to.pointer, root), (b.hold, to.hold), out)

    def scatter(self, out: Any, x: Any = None, root: int = 0) -> Any:
        """Copies block r of the root's x to `out` on rank r, and returns out. x: as large as all ranks' out."""
        return self._scatter(now, out, x, root)

    def scatter_start(self, out: Any, x: Any = None, root: int = 0) -> Operation:
        """Starts a scatter."""
        return self._scatter(Operation, out, x, root)  # type: ignore[no-any-return]

    def _scatter(self, how: How, out: Any, x: Any, root: int) -> Any:
        to = writable(out)
        if self.rank != root:
            return how(self, lib.tutti_scatter, (self._c, NULL, to.bytes, to.pointer, root), to.hold, out)
        if x is None:
            raise ValueError("the root of a scatter gives x, the blocks of all ranks")
        of = readable(x)
        need_order(of, to)
        _need(of.bytes, to.bytes * self.size, "x")
        return how(self, lib.tutti_scatter, (self._c, of.pointer, to.bytes, to.pointer, root), (of.hold, to.hold), out)

    def reduce_scatter(self, x: Any, out: Any, op: str = "sum") -> Any:
        """Combines the ranks' x, and gives block r of the result to rank r's out. x: size times as large as out."""
        return self._reduce_scatter(now, x, out, op)

    def reduce_scatter_start(self, x: Any, out: Any, op: str = "sum") -> Operation:
        """Starts a reduce_scatter."""
        return self._reduce_scatter(Operation, x, out, op)  # type: ignore[no-any-return]

    def _reduce_scatter(self, how: How, x: Any, out: Any, op: str) -> Any:
        of, to = readable(x), writable(out)
        _need_alike(of, to)
        _need(of.bytes, to.bytes * self.size, "x")
        return how(self, lib.tutti_reduce_scatter, (self._c, of.pointer, to.pointer, to.count, of.typed(),
                                                    rule_code(op)), (of.hold, to.hold), out)

    def allgather(self, x: Any, out: Any = None) -> Any:
        """Collects the ranks' x, of one size, on all ranks: shape (size, ...)."""
        return self._allgather(now, x, out)

    def allgather_start(self, x: Any, out: Any = None) -> Operation:
        """Starts an allgather."""
        return self._allgather(Operation, x, out)  # type: ignore[no-any-return]

    def _allgather(self, how: How, x: Any, out: Any) -> Any:
        out = _output(out, x, (self.size,))
        of, to = readable(x), writable(out)
        need_order(of, to)
        _need(to.bytes, of.bytes * self.size, "out")
        return how(self, lib.tutti_allgather, (self._c, of.pointer, of.bytes, to.pointer), (of.hold, to.hold), out)

    def allgatherv(self, x: Any, counts: Sequence[int], out: Any) -> Any:
        """Collects x of counts[r] elements from each rank r, one behind another in out. counts: the same everywhere."""
        return self._allgatherv(now, x, counts, out)

    def allgatherv_start(self, x: Any, counts: Sequence[int], out: Any) -> Operation:
        """Starts an allgatherv."""
        return self._allgatherv(Operation, x, counts, out)  # type: ignore[no-any-return]

    def _allgatherv(self, how: How, x: Any, counts: Sequence[int], out: Any) -> Any:
        of, to = readable(x), writable(out)
        need_order(of, to)
        lengths, places = _sizes(counts, self.size, to.bytes // max(to.count, 1), to.bytes, "allgatherv")
        return how(self, lib.tutti_allgatherv, (self._c, of.pointer, of.bytes, to.pointer, lengths, places),
                   (of.hold, to.hold), out)

    def alltoall(self, x: Any, out: Any = None) -> Any:
        """Block r of x goes to rank r, where it is block `rank` of out. x, out: size blocks of one size."""
        return self._alltoall(now, x, out)

    def alltoall_start(self, x: Any, out: Any = None) -> Operation:
        """Starts an alltoall."""
        return self._alltoall(Operation, x, out)  # type: ignore[no-any-return]

    def _alltoall(self, how: How, x: Any, out: Any) -> Any:
        out = _output(out, x, ())
        of, to, size = readable(x), writable(out), self.size
        need_order(of, to)
        _need(to.bytes, of.bytes, "out")
        if of.count % size:
            raise ValueError("%d elements are no %d blocks of one size" % (of.count, size))
        return how(self, lib.tutti_alltoall, (self._c, of.pointer, of.bytes // size, to.pointer), (of.hold, to.hold),
                   out)

    def alltoallv(self, x: Any, counts: Sequence[int], out: Any, out_counts: Sequence[int]) -> Any:
        """counts[r] elements of x go to rank r; out_counts[r] elements come from rank r; both one behind another."""
        return self._alltoallv(now, x, counts, out, out_counts)

    def alltoallv_start(self, x: Any, counts: Sequence[int], out: Any, out_counts: Sequence[int]) -> Operation:
        """Starts an alltoallv."""
        return self._alltoallv(Operation, x, counts, out, out_counts)  # type: ignore[no-any-return]

    def _alltoallv(self, how: How, x: Any, counts: Sequence[int], out: Any, out_counts: Sequence[int]) -> Any:
        of, to, size = readable(x), writable(out), self.size
        need_order(of, to)
        each, taken_each = of.bytes // max(of.count, 1), to.bytes // max(to.count, 1)
        if each and taken_each and each != taken_each:
            raise ValueError("x has elements of %d bytes, and out of %d: both are of one type" % (each, taken_each))
        each = each or taken_each
        given = _sizes(counts, size, each, of.bytes, "alltoallv")
        taken = _sizes(out_counts, size, each, to.bytes, "alltoallv")
        return how(self, lib.tutti_alltoallv, (self._c, of.pointer, *given, to.pointer, *taken), (of.hold, to.hold),
                   out)

    # ---- messages ----

    def send(self, x: Any, rank: int, tag: int = 0) -> None:
        """Sends x to a rank of the group. tag: from 0 up. Returns when x is the caller's again."""
        self._send(now, x, rank, tag)

    def send_start(self, x: Any, rank: int, tag: int = 0) -> Operation:
        """Starts a send."""
        return self._send(Operation, x, rank, tag)  # type: ignore[no-any-return]

    def _send(self, how: How, x: Any, rank: int, tag: int) -> Any:
        b = readable(x)
        return how(self, lib.tutti_send, (self._c, rank, tag, b.pointer, b.bytes), b.hold)

    def recv(self, x: Any, rank: Optional[int] = None, tag: int = 0) -> Message:
        """Receives the next message with the tag from a rank, or from any rank (None), into x.

        Raises MessageTooLong if x is too small; the message stays. `probe` gives the length of the next message.
        """
        return self._recv(now, x, rank, tag)  # type: ignore[no-any-return]

    def recv_start(self, x: Any, rank: Optional[int] = None, tag: int = 0) -> Operation:
        """Starts a recv; the operation's result is the Message."""
        return self._recv(Operation, x, rank, tag)  # type: ignore[no-any-return]

    def _recv(self, how: How, x: Any, rank: Optional[int], tag: int) -> Any:
        b = writable(x)
        info = ffi.new("tutti_message *")
        return how(self, lib.tutti_recv, (self._c, -1 if rank is None else rank, tag, b.pointer, b.bytes, info),
                   (b.hold, info), lambda: Message(info.rank, info.tag, info.bytes))

    def probe(self, rank: Optional[int] = None, tag: int = 0) -> Message:
        """Waits for the next message with the tag, and leaves the message for the next recv.

        A message of 0 bytes has nothing to leave: probe takes such a message.
        """
        info = ffi.new("tutti_message *")
        try:
            call(lib.tutti_recv, self._c, -1 if rank is None else rank, tag, NULL, 0, info, NULL)
        except MessageTooLong:
            pass
        return Message(info.rank, info.tag, info.bytes)

    # ---- counters ----

    def stats(self, kind: str, rank: Optional[int] = None) -> Stat:
        """What was done with a rank of the group, or (None) with all of the job. kind: "put", "allreduce", "send"..."""
        code = getattr(lib, "TUTTI_STAT_" + str(kind).upper(), None)
        if code is None:
            raise ValueError("no counter is called %r: see tutti_stats(3)" % kind)
        s = ffi.new("tutti_stat *")
        call(lib.tutti_stats, self._c, -1 if rank is None else rank, code, s)
        return Stat(s.ops, s.bytes, s.errors, s.p50_us, s.p99_us, s.max_us, s.mean_us)

    def stats_dump(self, fd: int = 2) -> None:
        """Writes all counters to a file descriptor, as a table."""
        call(lib.tutti_stats_dump, self._c, fd)

    def close(self) -> None:
        """Frees the group, after its operations have ended. Harmless twice, and after the job was left."""
        if self._handle is not None:
            refuse_in_wait(self)
            lib.tutti_group_free(self._take_handle())

    def _take_handle(self) -> Any:
        """The handle, to one thread alone, which ends it; NULL for the others."""
        return self.__dict__.pop("_handle", None) or NULL

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._handle is None:
            return "<tutti.%s, closed>" % type(self).__name__
        return "<tutti.%s, rank %d of %d>" % (type(self).__name__, lib.tutti_rank(self._handle),
                                              lib.tutti_size(self._handle))

    def __reduce__(self) -> Any:
        raise TypeError("a %s belongs to this process and cannot be pickled: each process joins by itself"
                        % type(self).__name__)
