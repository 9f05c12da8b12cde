"""What torch waits for: a Work over started operations, and the threads that complete its futures."""
from __future__ import annotations

import collections
import copy
import datetime
import select
import threading
import time
import weakref
from typing import Any, Callable, Deque, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from .. import errors
from .._call import is_exiting
from ..operation import Operation

_Work: Any = getattr(dist, "Work", None) or getattr(dist, "_Work")  # the latter in 1.13


def _value(future: Any) -> Any:
    """What a future gave. An error raised here is the only one that torch's C++ sees as an error."""
    value = future.value()
    if isinstance(value, BaseException):
        raise value
    return value


def seconds_of(timeout: datetime.timedelta) -> float:
    """A time of torch. Programs that want no limit give years, and the library's longest time is 24 days."""
    return min(timeout.total_seconds(), 2147483.0)


def untraced(cls: Any) -> Any:
    """Keeps torch.compile out of the methods of a class, which torch's C++ calls while a compiled program runs.

    torch.compiler.disable would do so, and would import the compiler, which takes seconds.
    """
    frames: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    if hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP  # the method, and what it calls
        for code in [f.__code__ for f in vars(cls).values() if hasattr(f, "__code__")]:
            frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))
    return cls


@untraced
class Work(_Work):  # type: ignore[misc]
    """A collective or a message under way.

    The work settles once, on the thread that first sees its operations ended: `after` moves what came in through
    another tensor to its place. message: of a receive, the library's tutti_message, and the bytes of the tensor.
    """

    def __init__(self, operations: Sequence[Operation], result: Sequence[Any], after: Sequence[Callable[[], Any]],
                 completer: Callable[[], "Completer"], message: Optional[Tuple[Any, int]] = None) -> None:
        super().__init__()
        self._operations, self._after = operations, after
        self._result: Sequence[Any] = result
        self._completer, self._message = completer, message
        self._settling = threading.Lock()
        self._settled = False
        self._error: Optional[BaseException] = None
        self._future: Any = None

    def settle(self) -> None:
        """Ends the work, once all operations have ended."""
        with self._settling:
            if self._settled:
                return
            met = next((e for e in (o.exception() for o in self._operations) if e), None) or self._misfit()
            self._error = copy.copy(met)  # an error that was raised keeps its callers' variables alive
            try:
                for move in self._after if self._error is None else ():
                    move()
            except Exception as e:
                self._error = copy.copy(e)
            future, self._future = self._future, None
            self._settled, self._operations, self._after = True, (), ()
        if future is not None:
            future.set_result(self._error or self.result())

    def _misfit(self) -> Optional[errors.Error]:
        """torch has no message that is shorter than its tensor."""
        if self._message is None or self._message[0].bytes == self._message[1]:
            return None
        info, room = self._message
        return errors.Mismatch("the tensor of this receive has %d bytes, and the message from rank %d has %d: use "
                               "tensors of one size on both ranks" % (room, info.rank, info.bytes))

    def is_completed(self) -> bool:
        """True if the work has ended, well or not."""
        if not self._settled:
            if not all(o.done() for o in self._operations):
                return False
            self.settle()
        return True

    def wait(self, timeout: Any = None) -> bool:
        """Waits for the end. timeout: a timedelta; of 0, as torch gives it, no limit. Raises the work's error."""
        seconds = seconds_of(timeout) if timeout else None
        for o in self._operations:
            try:
                o.wait(seconds)
            except errors.Error:
                if not o.done():
                    raise
        self.settle()
        if self._error is not None:
            raise copy.copy(self._error)
        return True

    def is_receive(self) -> bool:
        """True of a receive."""
        return self._message is not None

    def cancel(self) -> None:
        """Gives the operations up that have not ended."""
        for o in self._operations:
            o.cancel()

    def settle_when_ended(self) -> None:
        """Waits for the end; the error is for those who ask."""
        try:
            self.wait()
        except errors.Error as e:
            e.__traceback__ = None
        self.forget()

    def synchronize(self) -> None:
        """Waits for the end."""
        self.wait()

    def is_success(self) -> bool:
        """True if the work has ended without an error."""
        return self.is_completed() and self._error is None

    def exception(self) -> Optional[BaseException]:
        """The error of a work that has ended; None: there is none, or the work runs."""
        return self._error if self.is_completed() else None

    def result(self) -> List[Any]:
        """The tensors that the work has written, those that still live."""
        there = (r() if isinstance(r, weakref.ref) else r for r in self._result)
        return [t for t in there if t is not None]

    def forget(self) -> None:
        """From now on the work, which has settled, keeps no tensor alive."""
        self._result = [weakref.ref(t) for t in self.result()]

    def source_rank(self) -> int:
        """The sender's rank in the group, of a receive."""
        if self._message is None:
            raise ValueError("only a receive has a source rank")
        self.wait()
        return int(self._message[0].rank)

    def _source_rank(self) -> int:
        return self.source_rank()

    def get_future(self) -> Any:
        """A torch future with the result: a list of tensors."""
        future = torch.futures.Future()
        with self._settling:
            late = self._settled
            if not late:
                future = self._future = self._future or future
        if late:
            future.set_result(self._error or self.result())
        else:
            self._completer().add(self)
        return future.then(_value)


class Completer:
    """Sets futures when their works have ended.

    One thread at a time sleeps on the job's event descriptor, and only while futures are pending. The descriptor is
    watched for edges and not read, as an event loop may read it, too. A future's callbacks may wait for other futures:
    so a thread that sets a future leaves the watch to another thread. When the interpreter exits no future is set any
    more: a thread that comes back from torch's C++ while the interpreter ends makes the process abort.
    """

    def __init__(self, job: Any) -> None:
        self._works: Deque[Work] = collections.deque()
        self._some, self._watch = threading.Event(), threading.Lock()
        self._spares: Deque[None] = collections.deque()  # one for each thread that waits for the watch
        self._setting: Deque[None] = collections.deque()  # one for each thread that sets a future
        self._stopped = False
        self._poll = select.epoll()
        self._poll.register(job.event_fd(), select.EPOLLIN | select.EPOLLET)

    def add(self, work: Work) -> None:
        """Watches a work. It is looked at after it was added: else its end might go unseen."""
        self._works.append(work)
        if not work.is_completed():
            self._some.set()
            if not self._spares:
                self._begin()

    def _begin(self) -> None:
        self._spares.append(None)
        threading.Thread(target=self._run, name="tutti.torch", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._watch:
                self._spares.pop()
                work = self._next()
                if work is None:
                    return
                if not self._spares:
                    self._begin()
            self._setting.append(None)
            if not is_exiting():
                work.is_completed()
            self._setting.pop()
            if is_exiting():
                return
            del work
            self._spares.append(None)

    def _next(self) -> Optional[Work]:
        """The next work that has ended; None: the job is left."""
        while not self._stopped:
            for _ in range(len(self._works)):
                work = self._works.popleft()
                if all(o.done() for o in work._operations):
                    return work
                self._works.append(work)
            if self._works:
                self._poll.poll()
            else:
                self._some.wait()
                self._some.clear()
        return None

    def stop(self) -> None:
        """Ends the threads, when all works have settled. At exit: waits a second at most for futures under way."""
        self._stopped = True
        self._some.set()
        deadline = time.monotonic() + 1
        while is_exiting() and self._setting and time.monotonic() < deadline:
            time.sleep(0.001)
