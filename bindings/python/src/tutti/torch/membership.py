"""What a torch group is for Tutti: a group of a job, and the works under way there."""
from __future__ import annotations

import collections
import threading
from typing import Any, Callable, Deque, List, Optional, Sequence, Tuple

from .. import _call, errors
from .._call import ffi, lib
from ..group import Group
from ..operation import Operation
from .rendezvous import World
from .work import Work

KEPT = 256  # works that have ended. torch 1.13 waits for ever for a Work whose Python half is gone


class Membership:
    """This process in a torch group."""

    def __init__(self, world: World, group: Group, seconds: float) -> None:
        self.world, self.group, self.seconds = world, group, seconds
        self.rank, self.size = group.rank, group.size
        self.backend: Any = None  # torch's C++ holds a Backend by its C++ half alone
        self.batch: Optional[List[Work]] = None
        self._running: Deque[Work] = collections.deque()
        self._ended: Deque[Work] = collections.deque(maxlen=KEPT)
        self._starting = threading.RLock()  # a future's callback, which runs while a start waits, may start more
        world.groups.append(self)

    def start(self, calls: Sequence[Tuple[Any, ...]], hold: Any, result: Sequence[Any],
              moves: Sequence[Callable[[], Any]], seconds: Optional[float] = None,
              message: Optional[Tuple[Any, int]] = None) -> Work:
        """Starts calls (function, arguments behind the group), and gives the work over them."""
        with self._starting:
            if seconds is not None:
                self.group.set_timeout(seconds)
            try:
                operations = [self._operation(function, args, hold) for function, *args in calls]
            finally:
                if seconds is not None:
                    self.group.set_timeout(self.seconds)
        return self._keep(Work(operations, result, moves, self.world.completer, message))

    def _operation(self, function: Any, args: Sequence[Any], hold: Any) -> Operation:
        while True:
            try:
                return Operation(self.group, function, (self.group._c, *args), hold)
            except errors.Busy:  # the library takes 1,024 collectives at a time, torch any number
                oldest = self._oldest()
                if oldest is None:
                    raise
                oldest.settle_when_ended()

    def _oldest(self) -> Optional[Work]:
        """Takes the oldest running work from the list. Other threads take works, too."""
        try:
            return self._running.popleft()
        except IndexError:
            return None

    def _keep(self, work: Work) -> Work:
        for oldest in self._oldest(), self._oldest():
            if oldest is None:
                continue
            if oldest.is_completed():
                oldest.forget()
                self._ended.append(oldest)
            else:
                self._running.append(oldest)
        self._running.append(work)
        if self.batch is not None:
            self.batch.append(work)
        return work

    def join(self, works: Sequence[Work]) -> Work:
        """One work over several."""
        operations = [o for work in works for o in work._operations]
        result = [t for work in works for t in work.result()]
        return self._keep(Work(operations, result, [work.settle for work in works], self.world.completer))

    def set_timeout(self, seconds: float) -> None:
        """How long later operations wait for ranks that live."""
        self.seconds = seconds
        self.group.set_timeout(seconds)

    def settle(self) -> None:
        """Waits for what is under way, but for receives, which may never end. Errors are for those who ask."""
        for work in iter(self._oldest, None):
            if work.is_receive():
                work.cancel()
            work.settle_when_ended()

    def close(self) -> None:
        """Ends the group; the default group ends the job with all its groups. Harmless twice."""
        if self not in self.world.groups:
            return
        self.settle()
        self.world.groups.remove(self)
        if self.group is self.world.job:
            self.world.close()
        else:
            self.group.close()

    def abort(self) -> None:
        """Cancels what is under way; the default group does so in all groups, and hangs up at once."""
        ends_job = self.group is self.world.job
        for membership in list(self.world.groups) if ends_job else [self]:
            for work in list(membership._running):
                work.cancel()
        if ends_job:
            stop = ffi.new("int *", 1)
            lib.tutti_on_wait_flag(stop)  # tutti_leave asks, and hangs up at once
            try:
                self.close()
            finally:
                _call._begin_thread()
