"""Operations and changes in asyncio's event loops.

    an operation ends -> the job's descriptor gets 8 bytes -> each reader tests what waits in its loop

Each (job, loop) has one reader while tasks wait there. A reader watches the descriptor for edges, through an epoll of
its own, and leaves the bytes there: so all readers see each end, and the job may close the descriptor at any time.
"""
from __future__ import annotations

import asyncio
import os
import select
from typing import Any, AsyncIterator, Callable, Dict

from .group import Change

_Loop = asyncio.AbstractEventLoop


def _soon(loop: _Loop, function: Callable[[], None]) -> None:
    """Calls the function in its loop, from any thread. A loop that was closed needs nothing."""
    try:
        loop.call_soon_threadsafe(function)
    except RuntimeError:
        pass


class _Reader:
    """What waits in one loop for operations of one job."""

    def __init__(self, job: Any, loop: _Loop) -> None:
        self.job, self.loop = job, loop
        self.waiting: Dict["asyncio.Future[None]", Any] = {}
        self.poll = select.epoll()
        self.poll.register(job.event_fd(), select.EPOLLIN | select.EPOLLET)
        loop.add_reader(self.poll.fileno(), self.look)
        job._readers[loop] = self
        if _look_all not in job._at_leave:
            job._at_leave.append(_look_all)

    def look(self) -> None:
        if self.waiting:
            self.poll.poll(0)
        for future, operation in list(self.waiting.items()):
            if operation.done() and not future.done():
                future.set_result(None)

    def add(self, operation: Any) -> "asyncio.Future[None]":
        future = self.loop.create_future()
        self.waiting[future] = operation
        return future

    def remove(self, future: "asyncio.Future[None]") -> None:
        del self.waiting[future]
        if not self.waiting:
            del self.job._readers[self.loop]
            self.loop.remove_reader(self.poll.fileno())
            self.poll.close()


def _look_all(job: Any) -> None:
    """The job was left, which ends all operations."""
    for reader in list(job._readers.values()):
        _soon(reader.loop, reader.look)


async def _cancel(operation: Any) -> None:
    """In another thread, as ranks that hold the operation's memory may be slow. The thread holds the operation."""
    try:
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, operation.cancel))
    except RuntimeError:  # the loop has no threads any more
        operation.cancel()


async def wait(operation: Any) -> Any:
    """Waits for an operation in the running event loop, and returns its result or raises its error.

    Cancelling the task cancels the operation. The task ends when the operation's memory is the program's again.
    """
    if not operation.done():
        job, loop = operation._job, asyncio.get_running_loop()
        reader = job._readers.get(loop) or _Reader(job, loop)
        future = reader.add(operation)
        try:
            reader.look()  # the operation may have ended before the reader was there
            await future
        except asyncio.CancelledError:
            await _cancel(operation)
            raise
        finally:
            reader.remove(future)
    return operation._value()


async def changes(watch: Any) -> AsyncIterator[Change]:
    """The changes of a tutti.Watch, until the job is left."""
    loop, ready, job = asyncio.get_running_loop(), asyncio.Event(), watch._job
    if job._handle is None:
        return  # the watch's descriptor may be another's
    fd = os.dup(watch.fileno())

    def wake(_job: Any = None) -> None:
        _soon(loop, ready.set)

    job._at_leave.append(wake)
    loop.add_reader(fd, ready.set)
    try:
        while job._handle is not None:
            change = watch._take_if_open()
            if change is not None:
                yield change
                continue
            await ready.wait()
            ready.clear()
    finally:
        job._at_leave.remove(wake)
        loop.remove_reader(fd)
        os.close(fd)


__all__ = ["changes", "wait"]
