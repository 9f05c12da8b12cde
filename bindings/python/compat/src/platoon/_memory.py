"""Memory and locks that processes of one host share by name."""
from __future__ import annotations

import fcntl
import hashlib
import os
import time
from typing import Any, List, Optional, Sequence

import numpy

from .util import PlatoonError, mmap

_FOLDER = "/dev/shm/"
_ALIGN = 64  # bytes, a cache line; as long is the mark of shapes and types


def _path(name: str) -> str:
    if "/" in name or name.startswith("."):
        raise ValueError("%r cannot name shared memory: a name has no '/' and does not begin with '.'" % name)
    return _FOLDER + name


def _open(name: str, flags: int) -> int:
    """Opens a name, which must be of this user alone: another one could change the memory, or keep the lock."""
    try:
        fd = os.open(_path(name), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)
    except PermissionError:
        raise _foreign(name) from None
    found = os.fstat(fd)
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        os.close(fd)
        raise _foreign(name)
    return fd


def _foreign(name: str) -> PlatoonError:
    return PlatoonError("%s belongs to another user, or others may open it: remove it, or take another port or name"
                        % _path(name))


def is_at(name: str, fd: int) -> bool:
    """True if the name is still that of the open file."""
    try:
        return os.path.samestat(os.stat(_path(name)), os.fstat(fd))
    except FileNotFoundError:
        return False


def remove(name: str) -> None:
    """Removes a name. Processes that have the memory keep it."""
    try:
        os.unlink(_path(name))
    except FileNotFoundError:
        pass


class SharedMemory:
    """Memory under a name; `fd` is open until close_fd(). With a size it is new, and zeroed.

    Raises FileExistsError, FileNotFoundError, OSError (there is no room), PlatoonError (it is another user's).
    """

    def __init__(self, name: str, size: Optional[int] = None) -> None:
        self.name = name
        new = os.O_CREAT | os.O_EXCL if size is not None else 0
        self.fd = _open(name, new)
        if size:
            self._reserve(size)
        self.size = os.fstat(self.fd).st_size

    def _reserve(self, size: int) -> None:
        """Takes the room now: without it, a first write to the memory would kill the process."""
        try:
            os.posix_fallocate(self.fd, 0, size)
        except OSError as e:
            self.close_fd()
            self.unlink()
            raise OSError(e.errno, "%s has no room for %d bytes: %s" % (_FOLDER, size, e.strerror)) from None

    def map(self) -> Any:
        """The memory; closes `fd`."""
        memory = mmap(fd=self.fd, length=self.size) if self.size else bytearray()
        self.close_fd()
        return memory

    def close_fd(self) -> None:
        """Closes `fd`. Harmless twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def unlink(self) -> None:
        """Removes the name. Harmless twice."""
        remove(self.name)


def _ends(values: Sequence[Any]) -> List[int]:
    ends = [_ALIGN]
    for value in values:
        ends.append((ends[-1] + value.nbytes + _ALIGN - 1) // _ALIGN * _ALIGN)
    return ends


def _mark(values: Sequence[Any]) -> bytes:
    """64 bytes that only arrays of these types and shapes have."""
    return hashlib.sha256(repr([(v.dtype.str, v.shape) for v in values]).encode()).hexdigest().encode()


def _arrays_in(memory: Any, values: Sequence[Any]) -> List[Any]:
    """Arrays in the memory, one after the other behind the mark, of the values' types and shapes."""
    return [numpy.ndarray(value.shape, value.dtype, memory, offset)
            for value, offset in zip(values, _ends(values))]


def publish(name: str, values: Sequence[Any]) -> None:
    """Makes memory with these values under a name, at once: nobody finds the half of it. Replaces what had the name."""
    hidden = "%s.%d" % (name, os.getpid())
    remove(hidden)
    memory = SharedMemory(hidden, _ends(values)[-1]).map()
    memory[:_ALIGN] = _mark(values)
    for array, value in zip(_arrays_in(memory, values), values):
        array[...] = value
    os.rename(_path(hidden), _path(name))


def attach(memory: SharedMemory, values: Sequence[Any]) -> List[Any]:
    """The arrays that `publish` has made; closes `fd`. Raises PlatoonError: they have other types or shapes."""
    size, found = _ends(values)[-1], memory.map()
    if len(found) != size or found[:_ALIGN] != _mark(values):
        raise PlatoonError("the shared parameters %r (%d bytes) have other shapes or types than those of this worker "
                           "(%d bytes): do all workers train the same model?" % (memory.name, memory.size, size))
    return _arrays_in(found, values)


class Lock:
    """A lock that processes of one host share by name. The kernel frees it when its holder dies.

    `held`: this process has it. Raises PlatoonError: it is another user's.
    """

    def __init__(self, name: str) -> None:
        self.name, self.held = name, False
        self._fd = _open(name, os.O_CREAT)

    def is_at_name(self) -> bool:
        """False: the name was removed, so that other processes have another lock."""
        return is_at(self.name, self._fd)

    def acquire(self, timeout: Optional[float] = None) -> None:
        """Takes the lock. timeout: seconds; 0: does not wait; None: no limit. Raises PlatoonError."""
        if self.held:
            raise PlatoonError("this process has the lock %r already" % self.name)
        if timeout is None:
            fcntl.lockf(self._fd, fcntl.LOCK_EX)
        else:
            self._try_until(time.monotonic() + timeout)
        self.held = True

    def _try_until(self, deadline: float) -> None:
        while True:
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except (BlockingIOError, PermissionError):
                if time.monotonic() >= deadline:
                    raise PlatoonError("another process still has the lock %r" % self.name) from None
            time.sleep(0.001)

    def release(self) -> None:
        """Frees the lock. Raises PlatoonError: this process does not have it."""
        if not self.held:
            raise PlatoonError("this process does not have the lock %r" % self.name)
        self.held = False
        fcntl.lockf(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Frees the lock if this process has it. Harmless twice."""
        fd, self._fd, self.held = self._fd, -1, False
        if fd >= 0:
            os.close(fd)
