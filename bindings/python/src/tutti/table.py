"""Tables: values that are spread over servers. Workers push deltas, the servers apply a rule, all pull values."""
from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, List, NamedTuple, Optional, Sequence, Tuple, TypedDict, Union

from ._buffer import BF16, NAMES, Buffer, is_of, need_c_order, readable, type_code, writable
from ._call import NULL, Path, call, ffi, lib, path
from ._handle import Handle
from .group import Group, How
from .operation import Operation, now
from .update import Init, Updater, accumulate, push_options, _struct_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

Shape = Union[int, Sequence[int]]
_MODES = {"async": lib.TUTTI_ASYNC, "ssp": lib.TUTTI_SSP, "bsp": lib.TUTTI_BSP}
_FLAGS = {"snapshots": lib.TUTTI_TABLE_SNAPSHOTS, "fresh": lib.TUTTI_TABLE_FRESH,
          "fresh_own": lib.TUTTI_TABLE_FRESH_OWN, "filter": lib.TUTTI_TABLE_FILTER,
          "cut_multiverso": lib.TUTTI_TABLE_CUT_MULTIVERSO, "bf16_deltas": lib.TUTTI_TABLE_BF16_DELTAS,
          "mean": lib.TUTTI_TABLE_MEAN}
_NUMBERS = ("uint64", "int64", "format 'Q'", "format 'L'", "format 'q'", "format 'l'")


class TableConfig(TypedDict, total=False):
    """The keywords of a table; see Table."""

    mode: str
    staleness: int
    backup: int
    servers: Sequence[int]
    workers: Sequence[int]
    init: Init
    load: Path
    snapshots: bool
    publish_pushes: int
    publish: float
    fresh: bool
    fresh_own: bool
    filter: bool
    clip: float
    cut_multiverso: bool
    bf16_deltas: bool
    mean: bool


class Versions(NamedTuple):
    """What a snapshot has read: the oldest and newest version of the servers' ranges, and the oldest one's age."""

    oldest: int
    newest: int
    age: float    # seconds
    retries: int  # versions that had to be read anew


class TableInfo(NamedTuple):
    """What this rank knows of a table. server, worker: which of them this rank is, or None."""

    servers: int
    workers: int
    server: Optional[int]
    worker: Optional[int]
    clock: int    # the lowest of the servers', as last heard: of "ssp" and "bsp"
    dropped: int  # pushes at this rank's shard that came too late for their round
    broken: int   # ... that ended in the middle, with their worker


def _consistency(to: Any, mode: str, staleness: int, backup: int) -> None:
    if mode not in _MODES:
        raise ValueError("no consistency is called %r: use %s" % (mode, ", ".join(_MODES)))
    to.mode, to.staleness, to.backup = _MODES[mode], staleness, backup


def _ranks(ranks: Optional[Sequence[int]], name: str) -> Tuple[int, Any]:
    if ranks is None:
        return 0, NULL
    if not len(ranks):
        raise ValueError("%s is empty: a table needs one at least; without a list all ranks are %s" % (name, name))
    return len(ranks), ffi.new("int[]", list(ranks))


def _set(c: Any, mode: str = "async", staleness: int = 0, backup: int = 0, servers: Optional[Sequence[int]] = None,
         workers: Optional[Sequence[int]] = None, init: Optional[Init] = None,
         load: Optional[Path] = None, publish_pushes: int = 0, publish: float = 0,
         clip: float = 0, **flags: bool) -> List[Any]:
    """Sets the config's members, and returns the memory that they point to."""
    _consistency(c.consistency, mode, staleness, backup)
    c.servers, c.server = server = _ranks(servers, "servers")
    c.workers, c.worker = worker = _ranks(workers, "workers")
    c.load = folder = path(load)
    c.publish_pushes, c.publish_ms, c.clip = publish_pushes, int(publish * 1000 + 0.5), clip
    if init is not None:
        if not isinstance(init, Init):
            raise ValueError("init is made by tutti.uniform or tutti.normal, and is not %r" % (init,))
        c.init = init._struct()
    for name, value in flags.items():
        if name not in _FLAGS:
            raise TypeError("a table has no keyword %r" % name)
        c.flags |= _FLAGS[name] if value else 0
    return [server, worker, folder]


def _rule(updater: Optional[Updater]) -> Any:
    if callable(updater):
        raise ValueError("a Python function cannot be a table's rule: a server's threads call the rule, several at "
                         "once, while its program may compute. Use a rule of tutti.update, tutti.adam(...) say")
    return _struct_of(accumulate() if updater is None else updater)


def _shape(shape: Shape) -> Tuple[int, ...]:
    try:
        return (operator.index(shape),)  # type: ignore[arg-type]
    except TypeError:
        return tuple(shape)  # type: ignore[arg-type]


def _product(shape: Sequence[int]) -> int:
    n = 1
    for each in shape:
        if each < 0:
            raise ValueError("a shape has numbers from 0 up, and not %s" % (tuple(shape),))
        n *= each
    return n


def _numbers(rows: Any, fills: bool = False) -> Buffer:
    """Rows or keys as uint64. Python's numbers are converted; an array is used as it is."""
    if not fills and isinstance(rows, (list, tuple, range)):
        try:
            array = ffi.new("uint64_t[]", list(rows))
        except (OverflowError, TypeError) as e:
            raise ValueError("rows and keys are numbers from 0 to 2 ** 64 - 1: %s" % e) from None
        return Buffer(array, 8 * len(rows), len(rows), None, "uint64", array)
    b = writable(rows) if fills else readable(rows)
    if b.name not in _NUMBERS or b.bytes != 8 * b.count:
        raise ValueError("rows and keys are an array of uint64 (or int64), and not of %s: convert the array first"
                         % b.name)
    return b._replace(pointer=ffi.cast("uint64_t *", b.pointer))


class Table(Handle):
    """An array of values over the ranks that are servers.

    name: 1 to 160 bytes.
    shape: the array's, or a number of elements. Table.rows and Table.keys make tables of rows, and of keys.
    dtype: float32, float64, float16, bfloat16, int32 or int64.
    updater: the servers' rule, tutti.adam(0.001) say; None: tutti.accumulate().
    group: None: the default job.

    These are keywords. All ranks give the same values, except for `load`:

    mode: "async": nobody waits. "ssp": a worker is at most `staleness` pushes ahead. "bsp": rounds; a round closes
        without the last `backup` workers.
    servers, workers: lists of ranks of the group; without them all ranks.
    init: tutti.uniform(a, b, seed) or tutti.normal(sigma, seed), instead of zeros.
    load: a folder. This server begins with the last save there. Raises NotOpen: the folder has no save yet.
    snapshots: servers keep versions for snapshot(): one after `publish_pushes` pushes, at most once in `publish`
        seconds; both 0: one in 0.1 s.
    fresh: servers track which rows a worker has not seen, for pull_fresh(); fresh_own: also of its own pushes.
    filter: deltas and values travel without zeros; deltas also without elements up to `clip`.
    cut_multiverso: shards are cut as Multiverso cuts them.
    bf16_deltas: of float32: push and push_pull take deltas of bfloat16.
    mean: the rule gets the mean of the deltas: in mode "bsp" the sum of a round divided by the round's pushes, in other
        modes each delta divided by the number of workers.

    Blocks until all servers have opened the table. Raises InvalidArgument (another rank has another config), Exists,
    NotOpen (a server has not opened the table in time).

    A call takes dense arrays of the table's dtype, with the shape that the call names, or with one dimension. For any
    other array the call raises ValueError and does nothing. A NumPy array of uint16 stands for bfloat16. Calls raise
    TimedOut, RankDied, Stale (then see `reopen`), Refused (a push of a rank that is no worker). The keywords of a
    push are options of the rule for this push, see tutti.update, and worker: whose state.
    """

    _end = lib.tutti_table_close

    def __init__(self, name: str, shape: Shape, dtype: Any = "float32", updater: Optional[Updater] = None,
                 group: Optional[Group] = None, **config: Unpack[TableConfig]) -> None:
        self.shape: Optional[Tuple[int, ...]] = _shape(shape)
        self.row_shape: Tuple[int, ...] = ()
        c = lib.tutti_table_rows(type_code(dtype), _product(self.shape), 1, _rule(updater))
        self._start(name, c, group, config)

    @classmethod
    def rows(cls, name: str, rows: int, row: Shape, dtype: Any = "float32", updater: Optional[Updater] = None,
             group: Optional[Group] = None, **config: Unpack[TableConfig]) -> Table:
        """A table of `rows` rows, numbered from 0. row: elements of a row, or its shape. The rest as of Table."""
        t = cls.__new__(cls)
        t.row_shape = _shape(row)
        t.shape = (rows, *t.row_shape)
        _product(t.shape)
        t._start(name, lib.tutti_table_rows(type_code(dtype), rows, _product(t.row_shape), _rule(updater)), group,
                 config)
        return t

    @classmethod
    def keys(cls, name: str, row: Shape, dtype: Any = "float32", updater: Optional[Updater] = None, room: int = 0,
             group: Optional[Group] = None, **config: Unpack[TableConfig]) -> Table:
        """Values under 64-bit keys, which begin as `init` says. row: elements of a key's values, or their shape.

        room: for so many keys there is room at once; 0: it grows. Whole-table calls raise NotSupported, also
        snapshots and fresh rows.
        """
        t = cls.__new__(cls)
        t.row_shape, t.shape = _shape(row), None
        c = lib.tutti_table_keys(type_code(dtype), _product(t.row_shape), _rule(updater))
        c.count = room
        t._start(name, c, group, config)
        return t

    def _start(self, name: str, c: Any, group: Optional[Group], config: TableConfig) -> None:
        self._type = self._delta_type = c.type
        self._row = c.row
        if config.get("bf16_deltas"):
            self._delta_type = BF16
        hold = _set(c, **config)
        self._open(lib.tutti_table_open, "tutti_table **", group, name, ffi.new("tutti_table_config *", c))
        del hold

    # ---- what a call is given ----

    @property
    def dtype(self) -> str:
        """The type of the values, "float32"."""
        return NAMES[self._type]

    def _check(self, x: Any, b: Buffer, shape: Optional[Sequence[int]], type: int) -> Buffer:
        need_c_order(b)
        if not is_of(b, type):
            raise ValueError("the table %r takes %s here, and the array has %s" % (self.name, NAMES[type], b.name))
        if shape is None:
            return b  # the library refuses calls on all of a table of keys
        given = tuple(getattr(x, "shape", (b.count,)))
        if b.count != _product(shape) or len(given) != 1 and given != tuple(shape):
            raise ValueError("the table %r takes an array of shape %s here, and the array has shape %s"
                             % (self.name, tuple(shape), given))
        return b

    def _given(self, x: Any, shape: Optional[Sequence[int]], type: int) -> Buffer:
        return self._check(x, readable(x), shape, type)

    def _result(self, out: Any, shape: Optional[Sequence[int]]) -> Tuple[Any, Buffer]:
        if out is None:
            import numpy
            out = numpy.empty(shape or (), "uint16" if self._type == BF16 else self.dtype)
        return out, self._check(out, writable(out), shape, self._type)

    # ---- all of a table ----

    def push(self, delta: Any, **options: float) -> None:
        """Pushes a delta of the table's shape. Options of the rule, and worker, by keyword: push(g, momentum=0.9).

        A push that fails stays applied as far as it was sent.
        """
        self._push(now, delta, options)

    def push_start(self, delta: Any, **options: float) -> Operation:
        """Starts a push. The delta is left alone until the end."""
        return self._push(Operation, delta, options)  # type: ignore[no-any-return]

    def _push(self, how: How, delta: Any, options: Any) -> Any:
        b, update = self._given(delta, self.shape, self._delta_type), push_options(options)
        return how(self.group, lib.tutti_table_push, (self._handle, b.pointer, update), (self, b.hold))

    def pull(self, out: Any = None) -> Any:
        """Pulls all values into out, or a new NumPy array of the table's shape, and returns it."""
        return self._pull(now, out)

    def pull_start(self, out: Any = None) -> Operation:
        """Starts a pull; the operation's result is the array."""
        return self._pull(Operation, out)  # type: ignore[no-any-return]

    def _pull(self, how: How, out: Any) -> Any:
        out, b = self._result(out, self.shape)
        return how(self.group, lib.tutti_table_pull, (self._handle, b.pointer), (self, b.hold), out)

    def push_pull(self, delta: Any, out: Any = None, **options: float) -> Any:
        """Pushes, and returns each server's values after this push, or what the rule gives back. out may be delta."""
        return self._push_pull(now, delta, out, options)

    def push_pull_start(self, delta: Any, out: Any = None, **options: float) -> Operation:
        """Starts a push_pull; the operation's result is the array."""
        return self._push_pull(Operation, delta, out, options)  # type: ignore[no-any-return]

    def _push_pull(self, how: How, delta: Any, out: Any, options: Any) -> Any:
        of, update = self._given(delta, self.shape, self._delta_type), push_options(options)
        out, to = self._result(out, self.shape)
        return how(self.group, lib.tutti_table_push_pull, (self._handle, of.pointer, update, to.pointer),
                   (self, of.hold, to.hold), out)

    def assign(self, values: Any) -> None:
        """Sets all values, past the rule."""
        self._assign(now, values)

    def assign_start(self, values: Any) -> Operation:
        """Starts an assign."""
        return self._assign(Operation, values)  # type: ignore[no-any-return]

    def _assign(self, how: How, values: Any) -> Any:
        b = self._given(values, self.shape, self._type)
        return how(self.group, lib.tutti_table_assign, (self._handle, b.pointer), (self, b.hold))

    def snapshot(self, out: Any = None) -> Tuple[Any, Versions]:
        """Reads one version of each server's range, every push whole: returns the array and its Versions.

        The table has snapshots=True. Raises Busy: servers make versions faster than this rank reads them.
        """
        return self._snapshot(now, out)  # type: ignore[no-any-return]

    def snapshot_start(self, out: Any = None) -> Operation:
        """Starts a snapshot; the operation's result is the array and its Versions."""
        return self._snapshot(Operation, out)  # type: ignore[no-any-return]

    def _snapshot(self, how: How, out: Any) -> Any:
        out, b = self._result(out, self.shape)
        v = ffi.new("tutti_versions *")
        return how(self.group, lib.tutti_table_snapshot, (self._handle, b.pointer, v), (self, b.hold, v),
                   lambda: (out, Versions(v.oldest, v.newest, v.age_ms / 1000, v.retries)))

    # ---- listed rows or keys ----

    def push_rows(self, rows: Any, deltas: Any, **options: float) -> None:
        """Pushes deltas, shape (n, *row_shape), to n rows or keys. A row that is listed twice is pushed to twice.

        rows: an array of uint64 (or int64), or a sequence of numbers, of which a copy is made.
        """
        self._push_rows(now, rows, deltas, options)

    def push_rows_start(self, rows: Any, deltas: Any, **options: float) -> Operation:
        """Starts a push_rows. rows and deltas are read until the end."""
        return self._push_rows(Operation, rows, deltas, options)  # type: ignore[no-any-return]

    def _push_rows(self, how: How, rows: Any, deltas: Any, options: Any) -> Any:
        r, update = _numbers(rows), push_options(options)
        b = self._given(deltas, (r.count, *self.row_shape), self._type)
        return how(self.group, lib.tutti_table_push_rows, (self._handle, r.pointer, r.count, b.pointer, update),
                   (self, r.hold, b.hold))

    def pull_rows(self, rows: Any, out: Any = None) -> Any:
        """Pulls the values of n rows or keys, shape (n, *row_shape), in the order of the list. rows: see push_rows."""
        return self._pull_rows(now, rows, out)

    def pull_rows_start(self, rows: Any, out: Any = None) -> Operation:
        """Starts a pull_rows; the operation's result is the array."""
        return self._pull_rows(Operation, rows, out)  # type: ignore[no-any-return]

    def _pull_rows(self, how: How, rows: Any, out: Any) -> Any:
        r = _numbers(rows)
        out, b = self._result(out, (r.count, *self.row_shape))
        return how(self.group, lib.tutti_table_pull_rows, (self._handle, r.pointer, r.count, b.pointer),
                   (self, r.hold, b.hold), out)

    def assign_rows(self, rows: Any, values: Any) -> None:
        """Sets n rows, or the values under n keys, past the rule. Any rank may call. rows: see push_rows."""
        self._assign_rows(now, rows, values)

    def assign_rows_start(self, rows: Any, values: Any) -> Operation:
        """Starts an assign_rows."""
        return self._assign_rows(Operation, rows, values)  # type: ignore[no-any-return]

    def _assign_rows(self, how: How, rows: Any, values: Any) -> Any:
        r = _numbers(rows)
        b = self._given(values, (r.count, *self.row_shape), self._type)
        return how(self.group, lib.tutti_table_assign_rows, (self._handle, r.pointer, r.count, b.pointer),
                   (self, r.hold, b.hold))

    def pull_fresh(self, out: Optional[Tuple[Any, Any]] = None) -> Tuple[Any, Any]:
        """Pulls the rows that were pushed to since this worker last pulled them: returns their numbers and values.

        The table has fresh=True. out: memory for both, uint64 of shape (room,) and values of shape (room,
        *row_shape); what finds no room stays fresh. None: new arrays with room for all rows. The result are the parts
        that were filled.
        """
        return self._pull_fresh(now, out)  # type: ignore[no-any-return]

    def pull_fresh_start(self, out: Optional[Tuple[Any, Any]] = None) -> Operation:
        """Starts a pull_fresh; the operation's result is the pair."""
        return self._pull_fresh(Operation, out)  # type: ignore[no-any-return]

    def _pull_fresh(self, how: How, out: Optional[Tuple[Any, Any]]) -> Any:
        rows, values = out or self._room()
        r, n = _numbers(rows, fills=True), ffi.new("size_t *")
        values, b = self._result(values, (r.count, *self.row_shape))
        each = self._row if len(getattr(values, "shape", (0,))) == 1 else 1  # of the first axis for each row
        return how(self.group, lib.tutti_table_pull_fresh, (self._handle, r.pointer, b.pointer, r.count, n),
                   (self, r.hold, b.hold, n), lambda: (rows[:n[0]], values[:each * n[0]]))

    def _room(self) -> Tuple[Any, None]:
        import numpy
        return numpy.empty(0 if self.shape is None else _product(self.shape) // self._row, "uint64"), None

    def refresh_rows(self, rows: Any, values: Any) -> int:
        """Pulls those rows of a list that are fresh to their places in values, and returns how many came.

        values: what this worker has pulled of these rows before, shape (n, *row_shape). The table has fresh=True.
        """
        return self._refresh_rows(now, rows, values)  # type: ignore[no-any-return]

    def refresh_rows_start(self, rows: Any, values: Any) -> Operation:
        """Starts a refresh_rows; the operation's result is the number."""
        return self._refresh_rows(Operation, rows, values)  # type: ignore[no-any-return]

    def _refresh_rows(self, how: How, rows: Any, values: Any) -> Any:
        r, n = _numbers(rows), ffi.new("size_t *")
        _, b = self._result(values, (r.count, *self.row_shape))
        return how(self.group, lib.tutti_table_refresh_rows, (self._handle, r.pointer, r.count, b.pointer, n),
                   (self, r.hold, b.hold, n), lambda: int(n[0]))

    # ---- the table itself ----

    def look(self) -> TableInfo:
        """What this rank knows of the table. Does not block."""
        i = ffi.new("tutti_table_info *")
        call(lib.tutti_table_look, self._handle, i)
        return TableInfo(i.servers, i.workers, None if i.server < 0 else i.server, None if i.worker < 0 else i.worker,
                         i.clock, i.dropped, i.broken)

    def switch(self, mode: str, staleness: int = 0, backup: int = 0) -> None:
        """Sets another consistency. All workers call, between their steps."""
        c = ffi.new("tutti_consistency *")
        _consistency(c, mode, staleness, backup)
        call(lib.tutti_table_switch, self._handle, c)

    def finish(self) -> None:
        """This worker pushes no more: nobody waits for it, and its pulls wait for nobody."""
        call(lib.tutti_table_finish, self._handle)

    def save(self, folder: Path) -> None:
        """Saves the whole table, values and state, in a folder that all servers see. One rank calls.

        A save that fails leaves the last one as it was.
        """
        call(lib.tutti_table_save, self._handle, path(folder))

    def load(self, folder: Path) -> None:
        """Sets values and state on all servers from the last save. One rank calls, no rank pushes meanwhile.

        Raises NotOpen (there is no save), Mismatch (the save is damaged), InvalidArgument (of another table).
        """
        call(lib.tutti_table_load, self._handle, path(folder))

    def reopen(self) -> None:
        """Goes on, after RankDied, TimedOut or Stale, with servers that were started again and have the table open."""
        call(lib.tutti_table_reopen, self._handle)
