"""What the objects that the library opens share: a handle of the library that ends with close()."""
from __future__ import annotations

from typing import Any, Callable, NoReturn, Optional, TypeVar

from ._call import call, ffi, refuse_closed, refuse_in_wait, text
from .group import Group
from .job import Job, group_of

Self = TypeVar("Self", bound="Handle")


class Handle:
    """What is open in a group. It ends with close(), with a `with` block, or with the object."""

    _end: Callable[[Any], None]  # the library's function that closes
    _handle: Any                 # without it the object is closed

    def _open(self, function: Callable[..., int], place: str, group: Optional[Group], name: Optional[str],
              *args: Any) -> None:
        self.name, self.group = name, group_of(group)
        handle = ffi.new(place)
        try:
            call(function, self.group._c, *(() if name is None else (text(name),)), *args, handle)
        except BaseException:
            self._end(handle[0])  # a signal's handler has raised in the moment of success; else the handle is NULL
            raise
        self._handle = handle[0]

    @property
    def _job(self) -> Job:
        return self.group.job

    def __getattr__(self, name: str) -> NoReturn:
        if name == "_handle":
            refuse_closed(self)
        raise AttributeError("a %s has no %r" % (type(self).__name__, name))

    def close(self) -> None:
        """Ends this rank's part. Harmless twice, and after the job was left."""
        refuse_in_wait(self)
        self._close()

    def _close(self) -> None:
        handle = self.__dict__.pop("_handle", None)
        if handle is not None:
            self._end(handle)  # does nothing in a fork's child

    def __del__(self) -> None:
        self._close()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        name = self.__dict__.get("name")
        return "<tutti.%s%s%s>" % (type(self).__name__, "" if name is None else " %r" % name,
                                   "" if "_handle" in self.__dict__ else ", closed")

    def __reduce__(self) -> NoReturn:
        raise TypeError("a %s belongs to this process and cannot be pickled: each process opens its own"
                        % type(self).__name__)


class Owner(Handle):
    """A handle whose memory the program's arrays use: the library closes the handle with the last of these arrays."""

    _owner: Any = None

    def _open(self, *args: Any) -> None:
        super()._open(*args)
        self._owner = ffi.gc(self._handle, self._end)

    def _close(self) -> None:
        self.__dict__.pop("_handle", None)
        self._owner = None
