"""Tables of float32 values, which are spread over the servers.

All ranks create the same tables in the same order. A table lives until multiverso.shutdown().
"""
from __future__ import annotations

from typing import Any, Optional, Sequence

import numpy as np

from . import api
from .utils import convert_data


class TableHandler:
    """What the tables have in common."""

    def _open(self, rows: int, columns: int) -> None:
        if rows < 1 or columns < 1:
            raise ValueError("a table has 1 element at least, and not %d x %d" % (rows, columns))
        self._size = rows * columns
        self._table = api.session().open(rows, columns)

    def _check(self, size: int, wanted: int, of: str) -> None:
        if size != wanted:
            raise ValueError("%s has %d elements, and the data has %d" % (of, wanted, size))

    def _begin(self, init_value: Any) -> None:
        """Adds the master's first values. The other workers add zeros, so that all workers have added once."""
        if init_value is not None:
            values = convert_data(init_value)
            self._add_all(values if api.is_master_worker() else np.zeros_like(values), True)

    def _add_all(self, data: Any, sync: bool) -> None:
        values = convert_data(data)
        self._check(values.size, self._size, "the table")
        self._table.add(None, values.reshape(-1), sync)


class ArrayTableHandler(TableHandler):
    """A table of `size` elements.

    init_value: the first values, of the same size; those of the master worker count. None: zeros. Afterwards a
    multiverso.barrier() makes all workers see the first values.

    Blocks until all ranks have created the table. Raises tutti.errors.InvalidArgument if another rank gives another
    size.
    """

    def __init__(self, size: int, init_value: Any = None) -> None:
        self._open(int(size), 1)
        self._begin(init_value)

    def get(self) -> Any:
        """A new float32 array of shape (size,). It has all earlier adds of this worker."""
        return self._table.get(None).reshape(-1)

    def add(self, data: Any, sync: bool = False) -> None:
        """Adds `size` elements: an array of any shape, or a list. Afterwards the program may change data.

        sync: False: the add goes on while the program computes; the next get, barrier or shutdown waits for it, and
        raises its error. From 16 MiB on it is as with True, except in sync mode: a copy would take as long. True:
        returns when all servers have added. Raises ValueError if the size is wrong.
        """
        self._add_all(data, sync)


class MatrixTableHandler(TableHandler):
    """A table of num_row rows with num_col elements. init_value: as of ArrayTableHandler, for all rows."""

    def __init__(self, num_row: int, num_col: int, init_value: Any = None) -> None:
        self._num_row, self._num_col = int(num_row), int(num_col)
        self._open(self._num_row, self._num_col)
        self._begin(init_value)

    def get(self, row_ids: Optional[Sequence[int]] = None) -> Any:
        """A new float32 array of shape (num_row, num_col); or the listed rows, shape (len(row_ids), num_col).

        row_ids: numbers from 0 up, in any order.
        """
        return self._table.get(None if row_ids is None else self._numbers(row_ids))

    def add(self, data: Any = None, row_ids: Optional[Sequence[int]] = None, sync: bool = False) -> None:
        """Adds to all rows, or to the listed rows. data: num_row * num_col or len(row_ids) * num_col elements.

        A row that is listed twice is added to twice. data, sync: as of ArrayTableHandler.add.
        """
        if row_ids is None:
            self._add_all(data, sync)
            return
        rows, values = self._numbers(row_ids), convert_data(data)
        self._check(values.size, rows.size * self._num_col, "the list of %d rows" % rows.size)
        self._table.add(rows, values.reshape(-1), sync)

    def _numbers(self, row_ids: Sequence[int]) -> Any:
        rows = np.array(row_ids, dtype=np.int64).reshape(-1)
        for row in rows[(rows < 0) | (rows >= self._num_row)]:
            raise ValueError("row %d is not in the table, which has rows 0 to %d" % (row, self._num_row - 1))
        return rows
