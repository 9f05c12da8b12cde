"""A table of the servers, the adds that this worker has started, and memory for large results."""
from __future__ import annotations

from collections import deque
from typing import Any, Deque, Optional

import numpy as np
import tutti

_STARTED = 16     # adds of a table that run at a time: each has a copy of its data
_LARGE = 1 << 24  # bytes, from which on a copy, or new memory, takes about as long as the call itself


def _aligned(rows: int, columns: int) -> Any:
    """Memory that begins at a cache line: copies into it are faster by a sixth."""
    room = np.empty(rows * columns + 16, np.float32)
    skip = -room.__array_interface__["data"][0] % 64 // 4
    return room[skip:skip + rows * columns].reshape(rows, columns)


class _Result:
    """The memory of a large result. When the program has dropped the result, the next result is made there."""

    def __init__(self, memory: Any, spare: Deque[Any]) -> None:
        self._memory, self._spare = memory, spare
        self.__array_interface__ = memory.__array_interface__

    def __del__(self) -> None:
        self._spare.append(self._memory)


class ServerTable:
    """Rows of float32 on the servers. A get sees all earlier adds of this worker.

    sync: rounds. A push then waits for other workers, so a large add goes on behind the program, too.
    """

    def __init__(self, name: str, rows: int, columns: int, sync: bool, job: tutti.Job) -> None:
        self._table = tutti.Table.rows(name, rows, columns, group=job, mode="bsp" if sync else "async")
        self._waits = sync
        self._row = columns
        self._rows = rows
        self._adds: Deque[tutti.Operation] = deque()
        self._spare: Deque[Any] = deque(maxlen=1)

    def add(self, rows: Optional[Any], data: Any, sync: bool) -> None:
        """Adds to all rows, or to a list of rows. Afterwards the caller may change data."""
        if sync or (data.nbytes >= _LARGE and not self._waits):
            self._table.push(data) if rows is None else self._table.push_rows(rows, data)
            return
        if len(self._adds) == _STARTED:
            self._end_first()
        mine = data.copy()
        self._adds.append(self._table.push_start(mine) if rows is None else self._table.push_rows_start(rows, mine))

    def get(self, rows: Optional[Any]) -> Any:
        """A new array of all rows, or of a list of rows."""
        self.settle()
        if rows is None:
            return self._table.pull(self._memory(self._rows))
        return self._table.pull_rows(rows, self._memory(rows.size))

    def _memory(self, rows: int) -> Any:
        shape = (rows, self._row)
        if 4 * rows * self._row < _LARGE:
            return np.empty(shape, np.float32)
        memory = self._spare.pop() if self._spare else None
        if memory is None or memory.shape != shape:
            memory = _aligned(*shape)
        return np.asarray(_Result(memory, self._spare))

    def settle(self) -> None:
        """Waits for all started adds, and raises the error of the first add that failed."""
        error: Optional[tutti.Error] = None
        while self._adds:
            try:
                self._end_first()
            except tutti.Error as e:
                error = error or e
        if error is not None:
            raise error

    def _end_first(self) -> None:
        first = self._adds[0]
        try:
            first.wait()
        finally:
            if first.done():  # an interrupt ends the wait alone
                self._adds.popleft()

    def finish(self) -> None:
        """This worker adds no more: no round waits for this worker."""
        self._table.finish()

    def close(self) -> None:
        """Ends this rank's part. Adds that still run are cancelled."""
        self._adds.clear()
        self._table.close()
