"""Calls into the library: errors become exceptions, and a signal's handler can end each wait."""
from __future__ import annotations

import atexit
import errno
import os
import threading
import weakref
from typing import Any, Callable, List, NoReturn, Optional

from . import errors
from ._native import ffi, lib

NULL = ffi.NULL
EINPROGRESS = -errno.EINPROGRESS
if lib.tutti_abi() != lib.TUTTI_ABI:
    raise ImportError(
        "the package tutti needs a libtutti with ABI %d, and the one that was found (version %s) has ABI %d: install "
        "both from one release" % (lib.TUTTI_ABI, ffi.string(lib.tutti_version()).decode(), lib.tutti_abi()))

_exceptions: List[BaseException] = []  # of handlers that ran inside a wait of the main thread
_exiting = ffi.new("int *")            # not 0: waits of all threads but the main one end
_thread = threading.local()
_jobs: "weakref.WeakSet[Any]" = weakref.WeakSet()
_pid = os.getpid()


def _keep_exception(_type: Any, value: Any, _traceback: Any) -> None:
    _exceptions.append(value)


# A signal's handler runs in the loop, on the main thread. Its exception would be printed and lost, so the call that
# waits raises the exception.
@ffi.def_extern(error=1, onerror=_keep_exception)  # type: ignore[untyped-decorator]
def tutti_py_stop(_arg: Any) -> int:
    for _ in range(2):
        pass
    return 0


def _begin_thread() -> None:
    if threading.current_thread() is threading.main_thread():
        lib.tutti_on_wait(lib.tutti_py_stop, NULL)
    else:
        lib.tutti_on_wait_flag(_exiting)
    _thread.ready = True


def why() -> str:
    """The sentence of this thread's last error."""
    return str(ffi.string(lib.tutti_why()).decode(errors="replace"))


def fail(err: int) -> NoReturn:
    """Raises what the call of this thread that returned `err` has met."""
    if _exceptions and threading.current_thread() is threading.main_thread():
        raise _exceptions.pop()
    raise errors.from_code(err, why())


def call(function: Callable[..., int], *args: Any) -> int:
    """Calls the library, and returns what is not negative."""
    try:
        _thread.ready
    except AttributeError:
        _begin_thread()
    result = function(*args)
    if result < 0 or _exceptions:
        if result < 0 or threading.current_thread() is threading.main_thread():
            fail(result)
    return result


def milliseconds(seconds: Optional[float]) -> int:
    """A time of the library: None is -1, no limit of the call's own."""
    if seconds is None:
        return -1
    if not 0 <= seconds < 2 ** 31 / 1000:
        raise ValueError("a time is from 0 to 2147483 seconds, or None, and not %r" % (seconds,))
    return int(seconds * 1000 + 0.999)


def text(value: Optional[str]) -> Any:
    """A C string that lives as long as the result; NULL for None."""
    return NULL if value is None else ffi.new("char[]", value.encode())


def is_mine() -> bool:
    """False in a fork's child: handles belong to its parent."""
    return os.getpid() == _pid


def _end() -> None:
    """At exit: waits of other threads end, started operations are cancelled, jobs are left."""
    if not is_mine():
        return
    _exiting[0] = 1
    for job in list(_jobs):
        job._leave_at_exit()


def remember(job: Any) -> None:
    """The interpreter's exit leaves this job."""
    _jobs.add(job)


def _after_fork() -> None:
    global _pid
    _pid = -1


atexit.register(_end)
os.register_at_fork(after_in_child=_after_fork)
