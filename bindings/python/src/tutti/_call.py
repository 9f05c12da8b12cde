"""Calls into the library: errors become exceptions, and a signal's handler can end each wait."""
from __future__ import annotations

import atexit
import errno
import os
import sys
import threading
from typing import Any, Callable, List, NoReturn, Optional, Set, Union

from . import errors, log  # log first imports logging, whose end at exit then comes last
from ._native import ffi, lib

Path = Union[str, "os.PathLike[str]"]
NULL = ffi.NULL
EINPROGRESS = -errno.EINPROGRESS
if lib.tutti_abi() != lib.TUTTI_ABI:
    raise ImportError(
        "the package tutti needs a libtutti with ABI %d, and the one that was found (version %s) has ABI %d: install "
        "both from one release" % (lib.TUTTI_ABI, ffi.string(lib.tutti_version()).decode(), lib.tutti_abi()))

_exceptions: List[BaseException] = []  # of handlers that ran inside a wait of the main thread
_exiting = ffi.new("int *")            # not 0: waits of all threads but the main one end
_thread = threading.local()
_jobs: Set[Any] = set()                # those to leave at exit


def _keep_exception(_type: Any, value: Any, _traceback: Any) -> None:
    _exceptions.append(value)


# A signal's handler runs in the first loop, on the main thread. Its exception would be printed and lost, so the call
# that waits raises the exception. Until then the hook says so again, as a call may consist of several waits, and one of
# these may end well in the moment of the interrupt.
@ffi.def_extern(error=1, onerror=_keep_exception)  # type: ignore[untyped-decorator]
def tutti_py_stop(_arg: Any) -> int:
    for _ in range(2):
        pass
    for job in tuple(_jobs):
        job._check_handlers()
    return 1 if _exceptions else 0


def is_in_wait() -> bool:
    """True in a signal's handler that runs while this thread waits in the library."""
    frame = sys._getframe()
    while frame and frame.f_code is not tutti_py_stop.__code__:
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None


def refuse_in_wait(handle: Any) -> None:
    """Raises in such a handler: the call that waits may be on this handle, and closing would wait for the call."""
    if is_in_wait():
        raise RuntimeError("a signal's handler cannot close %r while its thread waits in the library: raise an "
                           "exception in the handler, or set a variable and close later" % handle)


def is_exiting() -> bool:
    """True once the interpreter exits."""
    return bool(_exiting[0])


def _is_main() -> bool:
    return threading.get_ident() == threading.main_thread().ident


def _begin_thread() -> None:
    if _is_main():
        lib.tutti_on_wait(lib.tutti_py_stop, NULL)
    else:
        lib.tutti_on_wait_flag(_exiting)
    _thread.ready = True


def why() -> str:
    """The sentence of this thread's last error."""
    return str(ffi.string(lib.tutti_why()).decode(errors="replace"))


def fail(err: int) -> NoReturn:
    """Raises what the call of this thread that returned `err` has met."""
    if _exceptions and _is_main():
        first = _exceptions[0]
        _exceptions.clear()  # of a second Ctrl-C, too: it is the same wish
        raise first
    if _exiting[0] and not _is_main():
        raise SystemExit  # a daemon thread ends without a word, and no handler of Exception keeps the thread
    raise errors.from_code(err, why())


def refuse_closed(handle: Any) -> NoReturn:
    """Raises what a call with a closed handle meets."""
    if _exiting[0] and not _is_main():
        raise SystemExit
    raise ValueError("%r is closed" % handle)


def call(function: Callable[..., int], *args: Any) -> int:
    """Calls the library, and returns what is not negative."""
    try:
        _thread.ready
    except AttributeError:
        _begin_thread()
    try:
        result = function(*args)
    except OverflowError as e:  # of cffi: a negative offset, say
        raise ValueError("%s: a number is too small or too large: %s" % (function.__name__[6:], e)) from None
    if result < 0 or (_exceptions and _is_main()):
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
    if value is not None and not isinstance(value, str):
        raise ValueError("a name or an address is a str, and not %r" % (value,))
    return NULL if value is None else _c_string(value.encode())


def path(value: Optional[Path]) -> Any:
    """The same of a file or a folder."""
    return NULL if value is None else _c_string(os.fsencode(value))


def _c_string(value: bytes) -> Any:
    if b"\0" in value:
        raise ValueError("%r has a zero byte, which would end the text in C" % value)
    return ffi.new("char[]", value)


def _end() -> None:
    """At exit: waits of other threads end, started operations are cancelled, jobs are left, the last lines logged."""
    _exiting[0] = 1
    for job in tuple(_jobs):
        try:
            job._leave(True)
        except BaseException:
            pass  # a signal's handler has raised, and made the leave hang up at once; the interpreter ends anyway
    log.stop()


def remember(job: Any) -> None:
    """The interpreter's exit leaves this job."""
    _jobs.add(job)


def forget(job: Any) -> None:
    """The job was left."""
    _jobs.discard(job)


def _after_fork() -> None:
    """The child's first thread may be another one of the parent's, with another hook."""
    _thread.__dict__.clear()


atexit.register(_end)
os.register_at_fork(after_in_child=_after_fork)
