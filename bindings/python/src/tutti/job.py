"""The job: joining, leaving, memory, and who comes and goes."""
from __future__ import annotations

import math
import os
import select
import signal as _signal
import threading
import time
from typing import Any, AsyncIterator, Callable, Dict, Iterator, List, Optional

from . import _call, log
from ._call import EINPROGRESS, NULL, Path, call, ffi, lib, milliseconds, path, text
from .errors import ForkedChild, ShutDown
from .group import STATES, Change, Group, string

_default: Optional["Job"] = None
_given: Optional[Dict[str, Any]] = None
_joining = threading.Lock()  # the default job
_OP = ffi.typeof("tutti_op *")
_SLICE = 100  # ms, after which a wait for changes looks whether the job was left


def _config(strings: Dict[str, Any], silence: Optional[float], timeout: Optional[float],
            rank: Optional[int], ranks: int, newcomers: int) -> Any:
    """A tutti_config, and the strings that it points to."""
    if strings["boot"] is None and (rank is not None or ranks):
        raise ValueError("rank and ranks need boot: the address of rank 0, \"HOST:PORT\"")
    if ranks and rank is None:
        raise ValueError("boot with ranks=%d needs rank: which of them this process is" % ranks)
    c = ffi.new("tutti_config *", lib.tutti_config_defaults())
    hold = {name: path(value) if name == "file" else text(value) for name, value in strings.items()}
    for name, value in hold.items():
        setattr(c, name, value)
    c.silence_ms, c.timeout_ms = milliseconds(silence), milliseconds(timeout)
    new = rank is None and strings["boot"] is not None
    c.rank = lib.TUTTI_NEW_RANK if new else rank or 0
    c.ranks, c.newcomers = 1 if new else ranks, newcomers  # a job that began with one rank
    return c, hold


class Job(Group):
    """This process's place in a job, and the group of all ranks.

    Without arguments everything comes from the launcher: `tutti run`, torchrun, srun, mpirun. Without a launcher the
    process is a job of one. An argument that is not given comes from the environment:

    file, node: a config file, and which of its nodes this process is. transports: "shm,verbs,tcp". secret: at least
    16 bytes. silence, timeout: seconds; None: no limit. boot: "HOST:PORT" of rank 0, with rank and ranks; without
    rank and ranks this process joins a job under way as a new rank; rank=-1 does so where the job began with more
    ranks than one, which `ranks` says. job: the job's name. newcomers: how many new
    ranks rank 0 takes at a time; -1: none.

    Blocks until every rank has joined. Raises TimedOut, Refused, WrongSecret, AddressInUse and others. Leaving:
    `leave()`, the end of a `with` block, or the interpreter's exit. The last two cancel what was started if the
    program ends by an exception, or exits.

    In a fork's child the job and its objects are dead: calls raise ForkedChild.
    """

    def __init__(self, *, file: Optional[Path] = None, node: Optional[str] = None, transports: Optional[str] = None,
                 secret: Optional[str] = None, silence: Optional[float] = 0, timeout: Optional[float] = 0,
                 rank: Optional[int] = None, ranks: int = 0, boot: Optional[str] = None, job: Optional[str] = None,
                 newcomers: int = 0) -> None:
        super().__init__(None, self)
        self._pid = os.getpid()
        self._all_ops: List[Any] = []
        self._ops: List[Any] = []                      # idle ones, for the next operations
        self._readers: Dict[Any, Any] = {}             # of aio, by event loop
        self._handlers: Dict[int, Any] = {}            # Python's, of the signals of leave_on and leave_asked
        self._at_leave: List[Callable[[Any], None]] = []
        c, hold = _config(dict(file=file, node=node, transports=transports, secret=secret, boot=boot, job=job),
                          silence, timeout, rank, ranks, newcomers)
        place = ffi.new("tutti **")
        log.start()
        try:
            call(lib.tutti_join, c, place)
        except BaseException:
            lib.tutti_leave(place[0])  # a signal's handler has raised when this rank had joined; else NULL
            raise
        del hold
        self._handle = place[0]
        _call.remember(self)

    def _new_op(self) -> Any:
        try:
            return self._ops.pop()
        except IndexError:
            self._all_ops.append(ffi.new(_OP))
            return self._all_ops[-1]

    @property
    def name(self) -> str:
        """The job's name; "": none."""
        return string(lib.tutti_job_name(self._c))

    @property
    def late(self) -> bool:
        """True if this rank has joined a running job: for collectives this rank is alone until all call `grow`."""
        return bool(call(lib.tutti_late, self._c))

    def everyone(self) -> "Everyone":
        """The handle of all ranks of the job, also of late ones: for windows, tables, messages and `of`."""
        return Everyone(self)

    def pin(self, i: int = 0) -> None:
        """Pins this thread to the i-th core of the rank; -1: to all of them."""
        call(lib.tutti_pin, self._c, i)

    def leave_asked(self, signal: int = _signal.SIGTERM) -> bool:
        """True once the signal has come. From the first call on that is the signal's only effect."""
        _refuse_handler(signal, "leave_asked")
        self._handlers[signal] = _signal.getsignal(signal)
        return bool(call(lib.tutti_leave_asked, self._c, signal))

    def leave_on(self, signal: int = _signal.SIGTERM) -> None:
        """From now on the signal makes this process leave the job in order; then the signal does what it did.

        Python's module signal and this call do not share a signal. Raises ValueError if the signal has a handler of
        Python. If the program gives the signal a handler later, the main thread's next wait raises ValueError.
        """
        _refuse_handler(signal, "leave_on")
        call(lib.tutti_leave_on, self._c, signal)
        self._handlers[signal] = _signal.getsignal(signal)

    def _check_handlers(self) -> None:
        for signal, handler in tuple(self._handlers.items()):
            if _signal.getsignal(signal) is not handler:
                del self._handlers[signal]  # one exception is enough
                raise ValueError("a Python handler has replaced leave_on or leave_asked of %s, which does nothing any "
                                 "more: remove the handler, or do not call leave_on or leave_asked"
                                 % _signal.Signals(signal).name)

    def watch(self) -> "Watch":
        """Notes who comes and goes, in the whole job.

        The first changes, in the order of the ranks, are ranks that went before, and ranks that joined the job under
        way and are in no group yet.
        """
        return Watch(self, call(lib.tutti_group_watch, self._c, NULL, NULL))

    def event_fd(self) -> int:
        """A descriptor that is readable when a started operation may have ended. Read 8 bytes, then look.

        `await operation` and tutti.torch watch the descriptor for edges (EPOLLET), and read nothing. A program that
        uses them does so, too, as a read may take an end from them.
        """
        return call(lib.tutti_event_fd, self._c)

    def node_add(self, name: str, host: str, port: int) -> int:
        """Adds a node to this process's list of nodes. Returns the node's rank."""
        return call(lib.tutti_node_add, self._c, text(name), text(host), port)

    def node_remove(self, name: str) -> None:
        """Removes a node from this process's list; the node's process is evicted."""
        call(lib.tutti_node_remove, self._c, text(name))

    def leave(self) -> None:
        """Leaves the job: finishes what was started, and tells the others. Harmless twice."""
        self._leave(False)

    close = leave

    def __exit__(self, kind: Any, *_: Any) -> None:
        self._leave(kind is not None)

    def _leave(self, cancel: bool) -> None:
        global _default, _given
        if self._handle is None:
            return
        if _call.is_in_wait():
            raise RuntimeError("a signal's handler cannot leave the job while its thread waits in the library: raise "
                               "SystemExit in the handler, or set a variable and leave later")
        handle = self._take_handle()
        if _default is self:
            _default = _given = None
        if cancel:
            self._cancel_started()
        lib.tutti_leave(handle)
        _call.forget(self)
        for wake in tuple(self._at_leave):
            wake(self)
        call(lambda: 0)  # a signal's handler that ran meanwhile may have raised

    def _cancel_started(self) -> None:
        for op in self._all_ops:
            if lib.tutti_op_why(op, NULL, 0) == EINPROGRESS:
                lib.tutti_cancel(op)


def _refuse_handler(signal: int, name: str) -> None:
    if _signal.getsignal(signal) not in (_signal.SIG_DFL, _signal.SIG_IGN, None):
        raise ValueError("%s of %s: a Python handler has this signal: remove the handler (signal.signal(..., "
                         "signal.SIG_DFL)), or set a variable in it, and call job.leave() in the program"
                         % (name, _signal.Signals(signal).name))


class Everyone(Group):
    """All ranks of a job, also those that join late. The job owns the handle, which ends with the job."""

    def __init__(self, job: Job) -> None:
        self._job = job

    @property
    def _handle(self) -> Any:
        handle = self._job._handle
        return None if handle is None else lib.tutti_job(handle)

    def close(self) -> None:
        """Does nothing: the job goes on."""


class Watch:
    """The changes of a job's ranks: iterate (`for` or `async for`; the job's end ends the loop), or wait for `fileno()`
    to be readable and `take()`.
    """

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
        """Waits for the next change. None: the seconds have passed, or the job was left meanwhile."""
        end, left, poll = time.monotonic() + (timeout or 0), 0.0, select.poll()
        poll.register(self._fd, select.POLLIN)
        change = self._take_if_open()
        while change is None and left >= 0 and self._job._handle is not None:
            left = _SLICE if timeout is None else (end - time.monotonic()) * 1000
            poll.poll(max(0, min(_SLICE, left)))
            change = self._take_if_open()
        return change

    def _take_if_open(self) -> Optional[Change]:
        try:
            return self.take() if self._job._handle is not None else None
        except ShutDown:
            if self._job._handle is not None:
                raise
            return None

    def __iter__(self) -> Iterator[Change]:
        while self._job._handle is not None:
            change = self.wait()
            if change is not None:
                yield change

    def __aiter__(self) -> AsyncIterator[Change]:
        from . import aio
        return aio.changes(self)


def init(**config: Any) -> Job:
    """Joins the default job, which all classes use that are given no group. Arguments: see Job.

    Again with the same arguments: returns the same job. With others: ValueError.
    """
    global _default, _given
    if _default is not None and _default._pid != os.getpid():
        raise ForkedChild("this process is a fork's child: only its parent is a rank of the default job. Start workers "
                          "by spawn or forkserver, or give tutti.Job a boot of its own")
    with _joining:
        if _default is None:
            _default, _given = Job(**config), config
        elif config and config != _given:
            raise ValueError("tutti.init was called with other arguments before: the default job is %r. tutti.Job() "
                             "joins a second job" % _default)
        return _default


def _after_fork() -> None:
    """Another thread of the parent may have held the lock."""
    global _joining
    _joining = threading.Lock()


def group_of(group: Optional[Group]) -> Group:
    """The group that a class was given, or the default job."""
    if group is not None and not isinstance(group, Group):
        raise ValueError("a group is a tutti.Group, of job.split() say, and not %r" % (group,))
    return init() if group is None else group


def empty(shape: Any, dtype: Any = "float32", group: Optional[Group] = None, gpu: Optional[int] = None) -> Any:
    """A zeroed NumPy array in memory that every transport uses without a copy, other ranks of this host too.

    dtype: of NumPy, also "bfloat16" as uint16. gpu: CUDA's number of a GPU; the result is then a GpuMemory, which
    shares its memory by `__cuda_array_interface__`. The memory is freed with the last array on it. Raises NoDevice if
    there is no such GPU.
    """
    import numpy
    from ._device import GpuMemory

    kind = numpy.dtype(numpy.uint16 if str(dtype) == "bfloat16" else dtype)
    sizes = [int(n) for n in numpy.atleast_1d(shape)]
    count = math.prod(sizes)
    if min(sizes, default=0) < 0 or count * kind.itemsize >= 2 ** 63:
        raise ValueError("no array has shape %s: its numbers are from 0 up, and its bytes below 2 ** 63" % (shape,))
    place = ffi.new("void **")
    call(lib.tutti_alloc, group_of(group)._c, max(count * kind.itemsize, 1), -1 if gpu is None else gpu,
         place)
    memory = ffi.gc(place[0], lambda p: lib.tutti_free(NULL, p))
    if gpu is not None:
        return GpuMemory(memory, tuple(sizes), kind.str)
    return numpy.frombuffer(ffi.buffer(memory, count * kind.itemsize), kind, count).reshape(shape)


def version() -> str:
    """The library's version."""
    return string(lib.tutti_version())


os.register_at_fork(after_in_child=_after_fork)
__all__ = ["Job", "Watch", "empty", "group_of", "init", "version"]
