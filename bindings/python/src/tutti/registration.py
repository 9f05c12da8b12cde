"""Memory that stays where it is: adapters pin it once, and not in each call."""
from __future__ import annotations

import os
import sys
import weakref
from typing import Any, Optional

from ._buffer import readable
from ._call import call, ffi, lib
from .group import Group
from .job import Job, group_of


def _unregister(job: Job, memory: Any, _hold: Any) -> None:
    if job._handle is not None and job._pid == os.getpid():  # leaving has unregistered all
        lib.tutti_unregister(job._handle, memory)


class Registration:
    """What `register` returns: ends with close(), with a `with` block, or with the registered object."""

    def __init__(self, x: Any, group: Optional[Group] = None) -> None:
        job, memory = group_of(group).job, readable(x)
        call(lib.tutti_register, job._c, memory.pointer, memory.bytes)
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        self._x = x
        owner, hold = x, memory.hold
        if numpy is not None and isinstance(x, numpy.ndarray):
            hold = None   # it would keep x; x's own end comes before that of its memory
        elif torch is None or not isinstance(x, torch.Tensor):
            owner = self  # the memory of others may move, or they take no weak references
        self._finalizer = weakref.finalize(owner, _unregister, job, ffi.cast("void *", memory.pointer), hold)
        self._finalizer.atexit = False  # the job is left then

    def close(self) -> None:
        """Unregisters the memory. Calls under way finish. Harmless twice, and after the job was left."""
        self._finalizer()
        self._x = None

    def __enter__(self) -> "Registration":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def register(x: Any, group: Optional[Group] = None) -> Registration:
    """Registers the memory of x, an array or a tensor: calls with x, or with a part of x, pin it once.

    Over verbs that saves a registration in each call of more than 128 KiB; over shm and tcp it changes nothing. The
    memory stays registered until close() of the result, the end of a `with` block, or the end of x: give an object that
    you keep, `p` and not `p.data`, or keep the result. Of other memory than NumPy's and torch's the result must be
    kept. A fork's child has no registered memory. Raises ValueError for
    memory of `tutti.empty`, which needs none of this, Exists if part of the memory is registered, OutOfMemory if the
    system lets this process lock no more ("ulimit -l").
    """
    return Registration(x, group)


__all__ = ["Registration", "register"]
