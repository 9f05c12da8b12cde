"""Operations that run while the program computes."""
from __future__ import annotations

import copy
import errno
from typing import Any, Callable, Generator, Iterable, List, Optional, Tuple

from . import errors
from ._call import EINPROGRESS, NULL, call, fail, ffi, lib, milliseconds, why

_WAIT_ALONE = (errno.EINPROGRESS, errno.EINTR)  # errors of a wait, and not of its operation


class Operation:
    """A started operation. The operation keeps its memory, and the job, alive.

    An operation that the program drops is cancelled. `await operation` waits inside an asyncio event loop.
    """

    __slots__ = ("_op", "_job", "_hold", "_result", "_error", "_ended", "_name", "__weakref__")

    def __init__(self, group: Any, function: Callable[..., int], args: Tuple[Any, ...], hold: Any,
                 result: Any = None) -> None:
        self._ended, self._error = False, None  # type: bool, Optional[errors.Error]
        self._hold, self._result = hold, result
        self._name = getattr(function, "__name__", "tutti_operation")[6:]
        self._job = group.job
        self._op = self._job._new_op()
        try:
            call(function, *args, self._op)
        except BaseException:
            lib.tutti_cancel(self._op)  # started, and then a signal's handler has raised; else there is nothing to do
            self._ended, self._hold = True, None
            raise

    def _end(self, err: int) -> None:
        """Notes the result. In a fork's child the operation belongs to the parent, and there is no result."""
        if err == -errno.ECHILD:
            fail(err)
        if err < 0 and self._error is None:
            text, sentence = ffi.new("char[]", 400), why()
            lib.tutti_op_why(self._op, text, 400)
            self._error = errors.from_code(err, ffi.string(text).decode(errors="replace") or sentence)
        self._ended = True
        self._hold = None

    def _value(self) -> Any:
        if self._error is not None:
            raise copy.copy(self._error)  # a raised error holds the frames, which hold the operation and much else
        return self._result() if callable(self._result) else self._result

    def wait(self, timeout: Optional[float] = None) -> Any:
        """Waits until the operation has ended, and returns its result or raises its error.

        timeout: seconds, bounds this wait alone; None: until the operation ends. Raises InProgress if the time
        passes first: then the operation runs on. A signal's handler that raises ends the wait, not the operation.
        """
        if not self._ended:
            try:
                call(lib.tutti_wait, self._op, milliseconds(timeout))
                self._end(0)
            except errors.Error as e:
                self._look(e)
        return self._value()

    def _look(self, e: errors.Error) -> None:
        """The wait has failed: by itself, or with the operation."""
        if e.errno in _WAIT_ALONE or lib.tutti_op_why(self._op, NULL, 0) in (EINPROGRESS, -errno.ECHILD):
            raise e
        if not self._ended:
            self._error, self._ended, self._hold = e.with_traceback(None), True, None

    def done(self) -> bool:
        """True if the operation has ended, well or not. Does not block."""
        if not self._ended:
            err = lib.tutti_test(self._op)
            if err == EINPROGRESS:
                return False
            self._end(err)
        return True

    def exception(self) -> Optional[errors.Error]:
        """The error of an operation that has ended; None: the operation ended well, or runs."""
        return self._error if self.done() else None

    def cancel(self) -> bool:
        """Gives the operation up. False: the operation had ended.

        Afterwards the library does not touch the operation's memory. Other ranks' calls of a collective end with
        Aborted. Blocks until ranks that hold the memory have given the memory back.
        """
        if self._ended:
            return False
        lib.tutti_cancel(self._op)
        err = lib.tutti_op_why(self._op, NULL, 0)
        self._end(err)
        return bool(err == -errno.ECANCELED)

    def __await__(self) -> Generator[Any, None, Any]:
        from . import aio
        return aio.wait(self).__await__()

    # The names are arguments, as the module's own may be gone when the interpreter ends.
    def __del__(self, cancel: Any = lib.tutti_cancel) -> None:
        op = getattr(self, "_op", None)
        if op is None:
            return
        if not self._ended:
            cancel(op)  # does nothing in a fork's child, nor after the job was left
        self._job._ops.append(op)

    def __repr__(self) -> str:
        state = "runs" if not self._ended else "failed: %s" % self._error if self._error else "has ended"
        return "<tutti.Operation %s %s>" % (self._name, state)

    def __reduce__(self) -> Any:
        raise TypeError("an Operation belongs to this process and cannot be pickled: wait for it, and send the result")


def now(group: Any, function: Callable[..., int], args: Tuple[Any, ...], hold: Any, result: Any = None) -> Any:
    """Calls, waits, and returns the result."""
    call(function, *args, NULL)
    return result() if callable(result) else result


def wait_all(operations: Iterable[Operation], timeout: Optional[float] = None) -> List[Any]:
    """Waits for all operations, which are of one job, and returns their results, or raises the first error.

    timeout: seconds, as of Operation.wait.
    """
    operations = list(operations)
    running = [o for o in operations if not o._ended]
    ops = ffi.new("tutti_op *[]", [o._op for o in running])
    try:
        call(lib.tutti_wait_all, ops, len(running), milliseconds(timeout))
    except errors.Error as e:
        if e.errno in _WAIT_ALONE or not all(o.done() for o in running):
            raise
    for o in running:
        o.done()
    return [o._value() for o in operations]


def wait_any(operations: Iterable[Operation], timeout: Optional[float] = None) -> Operation:
    """Waits until one operation has ended, and returns that operation.

    The operations are of one job. Raises InProgress if the time passes first. Ended operations are returned first.
    """
    operations = list(operations)
    if not operations:
        raise ValueError("wait_any needs one operation at least")
    ops = ffi.new("tutti_op *[]", [o._op for o in operations])
    while True:
        for o in operations:
            if o.done():
                return o
        try:
            call(lib.tutti_wait_any, ops, len(operations), milliseconds(timeout))
        except errors.NotOpen:
            pass  # another thread has taken the results meanwhile
