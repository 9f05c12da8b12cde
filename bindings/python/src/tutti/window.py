"""Windows: memory of a rank that the others read and write under a name."""
from __future__ import annotations

from typing import Any, Optional

from ._buffer import readable, writable
from ._call import NULL, call, ffi, lib, milliseconds
from ._handle import Handle
from .group import Group, How
from .operation import Operation, now

_ONE = ffi.typeof("uint64_t *")


class Window(Handle):
    """Named memory: mine, and everyone's of that name.

    name: 1 to 200 bytes. memory: what the others reach of this rank; None: nothing. The window holds the memory until
    close(). group: whose ranks the calls name; None: the default job. Does not block. Raises Exists, TooManyOpen.

    Offsets are bytes. The first use of a rank's window waits until the rank has opened it. Bytes written by put are
    visible to the owner after a notify that the same rank sends later. Calls raise NotOpen, Stale, OutOfRange,
    RankDied, RankLeft, TimedOut.
    """

    _end = lib.tutti_window_close

    def __init__(self, name: str, memory: Any = None, group: Optional[Group] = None) -> None:
        b = writable(bytearray() if memory is None else memory)
        self.memory, self._hold = memory, b.hold
        self._open(lib.tutti_window_open, "tutti_window **", group, name, b.pointer, b.bytes)

    def bytes_of(self, rank: int) -> int:
        """The length of a rank's window, in bytes."""
        n = ffi.new("size_t *")
        call(lib.tutti_window_bytes, self._handle, rank, n)
        return int(n[0])

    def map(self, rank: int) -> Optional[memoryview]:
        """The bytes of a rank's window as memory of this process, without a copy; None: there is no way to them.

        There is a way to this rank's own memory, and over shared memory to what `tutti.empty` made. The view is
        writable. Do not touch it after the window was closed, here or there: then its addresses are another's.
        """
        bytes = self.bytes_of(rank)
        place = lib.tutti_window_map(self._handle, rank)
        if place == NULL and bytes:
            call(lib.tutti_get, self._handle, rank, 0, ffi.new("char[]", 1), 1, NULL)  # the map needs a first get
            place = lib.tutti_window_map(self._handle, rank)
        if place == NULL:
            return None
        return memoryview(ffi.buffer(ffi.gc(place, lambda _: self), bytes)).cast("B")  # the view keeps the window

    def put(self, x: Any, rank: int, offset: int = 0) -> None:
        """Copies x to the offset in a rank's window. An aligned 8-byte put is one store."""
        b = readable(x)
        call(lib.tutti_put, self._handle, rank, offset, b.pointer, b.bytes, NULL)

    def put_start(self, x: Any, rank: int, offset: int = 0) -> Operation:
        """Starts a put."""
        b = readable(x)
        args = (self._handle, rank, offset, b.pointer, b.bytes)
        return Operation(self.group, lib.tutti_put, args, (self, b.hold))

    def get(self, out: Any, rank: int, offset: int = 0) -> Any:
        """Copies from the offset in a rank's window, fills out, and returns it. An aligned 8-byte get is one load."""
        b = writable(out)
        call(lib.tutti_get, self._handle, rank, offset, b.pointer, b.bytes, NULL)
        return out

    def get_start(self, out: Any, rank: int, offset: int = 0) -> Operation:
        """Starts a get; the operation's result is out."""
        b = writable(out)
        args = (self._handle, rank, offset, b.pointer, b.bytes)
        return Operation(self.group, lib.tutti_get, args, (self, b.hold), out)

    def add(self, value: int, rank: int, offset: int = 0) -> int:
        """Adds to an aligned uint64, atomically, and returns what was there before. Sums wrap around at 2 ** 64."""
        return self._add(now, value, rank, offset)  # type: ignore[no-any-return]

    def add_start(self, value: int, rank: int, offset: int = 0) -> Operation:
        """Starts an add; the operation's result is what was there before."""
        return self._add(Operation, value, rank, offset)  # type: ignore[no-any-return]

    def _add(self, how: How, value: int, rank: int, offset: int) -> Any:
        old = ffi.new(_ONE)
        args = (self._handle, rank, offset, value % 2 ** 64, old)
        return how(self.group, lib.tutti_add, args, (self, old), lambda: int(old[0]))

    def put_notify(self, x: Any, rank: int, slot: int = 0, offset: int = 0) -> None:
        """A put, after which the rank counts one more notify in the slot, 0 to 4095. x: None puts nothing."""
        self._put_notify(now, x, rank, slot, offset)

    def put_notify_start(self, x: Any, rank: int, slot: int = 0, offset: int = 0) -> Operation:
        """Starts a put_notify."""
        return self._put_notify(Operation, x, rank, slot, offset)  # type: ignore[no-any-return]

    def _put_notify(self, how: How, x: Any, rank: int, slot: int, offset: int) -> Any:
        b = readable(b"" if x is None else x)
        args = (self._handle, rank, offset, b.pointer, b.bytes, slot)
        return how(self.group, lib.tutti_put_notify, args, (self, b.hold))

    def wait_notify(self, slot: int = 0, count: int = 1, rank: Optional[int] = None,
                    timeout: Optional[float] = None) -> None:
        """Waits until `count` notifies have come in the slot from a rank (None: from any) since the window was opened.

        timeout: seconds; None: the group's, as it was at opening; 0: only look. Raises TimedOut, and RankDied or
        RankLeft if the rank is gone.
        """
        call(lib.tutti_wait_notify, self._handle, -1 if rank is None else rank, slot, count, milliseconds(timeout))
