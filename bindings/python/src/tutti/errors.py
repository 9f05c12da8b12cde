"""Errors: one class a code. Each error carries the library's sentence, which names the thing and the fix."""
from __future__ import annotations

import errno as _errno
import re
from typing import Any, Dict, Optional, Type

from ._native import ffi, lib


class Error(Exception):
    """A call of the library failed.

    Attributes: `errno` (positive, as in the module errno), `name` ("ETIMEDOUT"), `sentence`, and `rank`: the number
    in the job of the rank that the error is about, or None where the error is about no single rank.
    """

    errno: Any
    strerror: Any
    rank: Optional[int]

    def __init__(self, sentence: str = "", errno: int = 0, rank: Optional[int] = None) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.errno = errno or getattr(type(self), "code", 0)
        self.rank = rank
        if isinstance(self, OSError):
            self.strerror = sentence

    @property
    def name(self) -> str:
        """The name of the code, "ETIMEDOUT"; "" for an error without a code."""
        name = lib.tutti_error_name(self.errno)  # errorcode has some numbers under another name, EDEADLOCK
        return ffi.string(name).decode() if name else _errno.errorcode.get(self.errno, "")

    def __str__(self) -> str:
        return self.sentence

    def __reduce__(self) -> Any:
        return type(self), (self.sentence, self.errno, self.rank)


class InvalidArgument(Error, ValueError):
    """A bad argument or setting (EINVAL)."""
    code = _errno.EINVAL


class InProgress(Error, TimeoutError):
    """The wait ended before the operation, which runs on (EINPROGRESS)."""
    code = _errno.EINPROGRESS


class Interrupted(Error, InterruptedError):
    """The interpreter exits, or a hook has interrupted the wait (EINTR)."""
    code = _errno.EINTR


class TimedOut(Error, TimeoutError):
    """A rank that lives has not done its part in time; nobody is gone (ETIMEDOUT)."""
    code = _errno.ETIMEDOUT


class RankDied(Error, ConnectionResetError):
    """A rank went down or was evicted (ECONNRESET)."""
    code = _errno.ECONNRESET


class RankLeft(Error, ConnectionError):
    """A rank has left the job (ENOTCONN)."""
    code = _errno.ENOTCONN


class Cancelled(Error):
    """This rank has cancelled the operation (ECANCELED)."""
    code = _errno.ECANCELED


class Aborted(Error, ConnectionAbortedError):
    """Another rank has cancelled the collective (ECONNABORTED)."""
    code = _errno.ECONNABORTED


class Mismatch(Error, ValueError):
    """The ranks called different collectives, or with different arguments (EBADMSG)."""
    code = _errno.EBADMSG


class Busy(Error):
    """Too many collectives are under way in the group (EAGAIN)."""
    code = _errno.EAGAIN


class NotOpen(Error, LookupError):
    """The owner did not open the window or table in time (ENOENT)."""
    code = _errno.ENOENT


class Stale(Error):
    """The window, table or group was closed, shrunk or grown (ESTALE)."""
    code = _errno.ESTALE


class TooFewRanks(Error, ConnectionError):
    """Too few ranks of a group are left (EHOSTDOWN)."""
    code = _errno.EHOSTDOWN


class OutOfRange(Error, IndexError):
    """Bytes outside a window (ERANGE)."""
    code = _errno.ERANGE


class MessageTooLong(Error, ValueError):
    """A message is longer than the memory of its receive; the message stays (EMSGSIZE)."""
    code = _errno.EMSGSIZE


class Exists(Error):
    """A window or table of that name is open, or the memory is registered (EEXIST)."""
    code = _errno.EEXIST


class TooManyOpen(Error, OSError):
    """Too many windows, groups or files are open (EMFILE)."""
    code = _errno.EMFILE


class OutOfMemory(Error, MemoryError):
    """There is no memory (ENOMEM)."""
    code = _errno.ENOMEM


class ShutDown(Error, ConnectionError):
    """This process has left the job, or leaves the job now (ESHUTDOWN)."""
    code = _errno.ESHUTDOWN


class ForkedChild(Error, RuntimeError):
    """A fork's child calls; the handles belong to its parent (ECHILD)."""
    code = _errno.ECHILD


class NoDevice(Error):
    """There is no such GPU (ENODEV)."""
    code = _errno.ENODEV


class AddressInUse(Error, ConnectionError):
    """Another process listens at the boot address (EADDRINUSE)."""
    code = _errno.EADDRINUSE


class Unreachable(Error, ConnectionError):
    """A host cannot be reached (EHOSTUNREACH)."""
    code = _errno.EHOSTUNREACH


class WrongSecret(Error, PermissionError):
    """The secret of the job differs, or is missing (EACCES)."""
    code = _errno.EACCES


class ProtocolError(Error, ConnectionError):
    """The other process speaks another version, or is of another job (EPROTO)."""
    code = _errno.EPROTO


class Refused(Error, PermissionError):
    """The job has refused this process, or this rank may not do this (EPERM)."""
    code = _errno.EPERM


class NotSupported(Error, NotImplementedError):
    """This build, type or combination is not supported (ENOTSUP)."""
    code = _errno.ENOTSUP


class UnderWay(Error):
    """Another thread makes the same call (EALREADY)."""
    code = _errno.EALREADY


class NoRoom(Error):
    """All places for newcomers are taken (ENOSPC)."""
    code = _errno.ENOSPC


class InUse(Error, TimeoutError):
    """Another rank, or another call of this rank, still uses the lock or the table (EBUSY)."""
    code = _errno.EBUSY


class Deadlock(Error, RuntimeError):
    """This rank has the lock already (EDEADLK)."""
    code = _errno.EDEADLK


class FunctionFailed(Error, RuntimeError):
    """The function that answers, in the controller's process, has raised (EREMOTEIO)."""
    code = _errno.EREMOTEIO


class SystemFailure(Error, OSError):
    """Another error of the system, about a file or a socket: `errno` says which."""
    code = 0


_CLASSES: Dict[int, Type[Error]] = {c.code: c for c in Error.__subclasses__()}  # type: ignore[attr-defined]
_ABOUT_A_RANK = (_errno.ECONNRESET, _errno.ENOTCONN, _errno.ECONNABORTED)


def from_code(err: int, sentence: str) -> Error:
    """Makes the error of a negative errno and its sentence."""
    rank = re.search(r"\brank (\d+)\b", sentence) if -err in _ABOUT_A_RANK else None
    return _CLASSES.get(-err, SystemFailure)(sentence, -err, int(rank.group(1)) if rank else None)
