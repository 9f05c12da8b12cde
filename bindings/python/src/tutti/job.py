"""The job: joining, leaving, memory, and who comes and goes."""
from __future__ import annotations

import select
import signal as _signal
from typing import Any, Dict, Iterator, Optional

from . import _call
from ._call import NULL, call, ffi, lib, milliseconds, text
from .group import STATES, Change, Group, string

_default: Optional["Job"] = None
_given: Optional[Dict[str, Any]] = None


def _config(strings: Dict[str, Optional[str]], silence: Optional[float], timeout: Optional[float],
            rank: Optional[int], ranks: int, newcomers: int) -> Any:
    """A tutti_config, and the strings that it points to."""
    c = ffi.new("tutti_config *", lib.tutti_config_defaults())
    hold = {name: text(value) for name, value in strings.items()}
    for name, value in hold.items():
        setattr(c, name, value)
    c.silence_ms, c.timeout_ms = milliseconds(silence), milliseconds(timeout)
    c.rank = lib.TUTTI_NEW_RANK if rank is None and strings["boot"] is not None and not ranks else rank or 0
    c.ranks, c.newcomers = ranks, newcomers
    return c, hold


class Job(Group):
    """This process's place in a job, and the group of all ranks.

    Without arguments everything comes from the launcher: `tutti run`, torchrun, srun, mpirun. Without a launcher the
    process is a job of one. Arguments (each is taken from the environment if it is not given):

    file, node: a config file, and which of its nodes this process is. transports: "shm,verbs,tcp". secret: at least
    16 bytes. silence, timeout: seconds; None: no limit. boot: "HOST:PORT" of rank 0, with rank and ranks; without
    rank and ranks this process joins a job under way as a new rank. job: the job's name. newcomers: how many new
    ranks rank 0 takes at a time; -1: none.

    Blocks until every rank has joined. Raises TimedOut, Refused, WrongSecret, AddressInUse and others. Leaving:
    `leave()`, the end of a `with` block, or the interpreter's exit.
    """

    def __init__(self, *, file: Optional[str] = None, node: Optional[str] = None, transports: Optional[str] = None,
                 secret: Optional[str] = None, silence: Optional[float] = 0, timeout: Optional[float] = 0,
                 rank: Optional[int] = None, ranks: int = 0, boot: Optional[str] = None, job: Optional[str] = None,
                 newcomers: int = 0) -> None:
        self._handle = None
        c, hold = _config(dict(file=file, node=node, transports=transports, secret=secret, boot=boot, job=job),
                          silence, timeout, rank, ranks, newcomers)
        place = ffi.new("tutti **")
        call(lib.tutti_join, c, place)
        del hold
        super().__init__(place[0], self)
        _call.remember(self)

    @property
    def name(self) -> str:
        """The job's name; "": none."""
        return string(lib.tutti_job_name(self._c))

    @property
    def late(self) -> bool:
        """True if this rank has joined a job under way: for collectives it is alone until all call `grow`."""
        return bool(call(lib.tutti_late, self._c))

    def everyone(self) -> Group:
        """The handle of all ranks of the job, also of late ones: for windows, tables, messages and `of`."""
        return Group(lib.tutti_job(self._c), self)

    def pin(self, i: int = 0) -> None:
        """Pins this thread to the i-th core of the rank; -1: to all of them."""
        call(lib.tutti_pin, self._c, i)

    def leave_asked(self, signal: int = _signal.SIGTERM) -> bool:
        """True once the signal has come. From the first call on that is the signal's only effect."""
        _refuse_handler(signal, "leave_asked")
        return bool(call(lib.tutti_leave_asked, self._c, signal))

    def leave_on(self, signal: int = _signal.SIGTERM) -> None:
        """From now on the signal makes this process leave the job in order; then the signal does what it did."""
        _refuse_handler(signal, "leave_on")
        call(lib.tutti_leave_on, self._c, signal)

    def watch(self) -> "Watch":
        """Notes who comes and goes, in the whole job. Ranks that went before are the first changes."""
        return Watch(self, call(lib.tutti_group_watch, self._c, NULL, NULL))

    def event_fd(self) -> int:
        """A descriptor that is readable when a started operation may have ended. Read 8 bytes, then look."""
        return call(lib.tutti_event_fd, self._c)

    def node_add(self, name: str, host: str, port: int) -> int:
        """Adds a node to this process's list of nodes. Returns the node's rank."""
        return call(lib.tutti_node_add, self._c, text(name), text(host), port)

    def node_remove(self, name: str) -> None:
        """Removes a node from this process's list; the node's process is evicted."""
        call(lib.tutti_node_remove, self._c, text(name))

    def leave(self) -> None:
        """Leaves the job: finishes what was started, and tells the others. Harmless twice."""
        global _default, _given
        if self._handle is None:
            return
        handle, self._handle = self._handle, None
        if _default is self:
            _default = _given = None
        if _call.is_mine():
            lib.tutti_leave(handle)
            call(lambda: 0)  # a signal's handler that ran meanwhile may have raised

    close = leave

    def _leave_at_exit(self) -> None:
        if self._handle is not None:
            handle, self._handle = self._handle, None
            lib.tutti_leave(handle)


def _refuse_handler(signal: int, name: str) -> None:
    if _signal.getsignal(signal) not in (_signal.SIG_DFL, _signal.SIG_IGN, None):
        raise ValueError("%s of %s: a Python handler has this signal: remove the handler (signal.signal(..., "
                         "signal.SIG_DFL)), or call job.leave() in it" % (name, _signal.Signals(signal).name))


class Watch:
    """The changes of a job's ranks: iterate, or wait for `fileno()` to be readable and `take()`."""

    def __init__(self, job: Job, fd: int) -> None:
        self._job, self._fd = job, fd

    def fileno(self) -> int:
        """Readable while there are changes that nobody has taken."""
        return self._fd

    def take(self) -> Optional[Change]:
        """The oldest change, or None."""
        c = ffi.new("tutti_change *")
        if not call(lib.tutti_group_next, self._job._c, c):
            return None
        return Change(c.rank, STATES[c.what], -c.err, string(c.why))

    def wait(self, timeout: Optional[float] = None) -> Optional[Change]:
        """Waits for the next change; None: the seconds have passed."""
        change = self.take()
        if change is None:
            poll = select.poll()  # a select has no room for descriptors above 1023
            poll.register(self._fd, select.POLLIN)
            if poll.poll(None if timeout is None else milliseconds(timeout)):
                change = self.take()
        return change

    def __iter__(self) -> Iterator[Change]:
        while True:
            change = self.wait()
            if change is not None:
                yield change


def init(**config: Any) -> Job:
    """Joins the default job, which all classes use that are given no group. Arguments: see Job.

    Again with the same arguments: returns the same job. With others: ValueError.
    """
    global _default, _given
    if _default is not None and _default._handle is not None and _call.is_mine():
        if config and config != _given:
            raise ValueError("tutti.init was called with other arguments before: the default job is %r. tutti.Job() "
                             "joins a second job" % _default)
        return _default
    _default, _given = Job(**config), config
    return _default


def group_of(group: Optional[Group]) -> Group:
    """The group that a class was given, or the default job."""
    return init() if group is None else group


def empty(shape: Any, dtype: Any = "float32", group: Optional[Group] = None) -> Any:
    """A zeroed NumPy array in memory that every transport uses without a copy, other ranks of this host too.

    dtype: of NumPy, also "bfloat16" as uint16. The memory is freed with the last array on it.
    """
    import numpy

    kind = numpy.dtype(numpy.uint16 if str(dtype) == "bfloat16" else dtype)
    count = int(numpy.prod(shape, dtype=numpy.uint64))
    place = ffi.new("void **")
    call(lib.tutti_alloc, group_of(group)._c, max(count * kind.itemsize, 1), -1, place)
    memory = ffi.gc(place[0], lambda p: lib.tutti_free(NULL, p))
    return numpy.frombuffer(ffi.buffer(memory, count * kind.itemsize), kind, count).reshape(shape)


def version() -> str:
    """The library's version."""
    return string(lib.tutti_version())


__all__ = ["Job", "Watch", "empty", "group_of", "init", "version"]
