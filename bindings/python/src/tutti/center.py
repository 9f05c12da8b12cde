"""A center on servers: a model that the servers of a table hold, and that the workers' copies exchange with."""
from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Sequence

from ._buffer import BF16
from ._call import NULL, Path, call, ffi, lib, path
from ._handle import Handle
from ._model import Model
from .average import NAN, _or_nan, _or_none
from .group import Group
from .operation import Operation
from .table import Table, Versions, _ranks
from .update import Updater, _struct_of


class Schedule(NamedTuple):
    """What may change while a center is open. None: as the rule has it; alpha of `easgd`: 0.9 / workers."""

    tau: int
    alpha: Optional[float]
    learning_rate: Optional[float]
    momentum: Optional[float]


class Center(Handle):
    """A model on servers. Make one by `Center.easgd`, `asgd`, `downpour`, `outer` or `own`: a collective of the group.

    name: of 1 to 160 bytes. params: tensors of one type, float32, float64, float16 or bfloat16, the same counts on all
    ranks. At first the center is the first worker's params, and all workers' params become that. A rank that has joined
    late opens with `job.everyone()`, alone, and begins with the center as it is.

    All kinds take these arguments, the same on all ranks. servers, workers: lists of ranks of the group; None: all.
    snapshots: the servers keep versions, for `read`; in rounds they always do. load: a folder with a save of the table,
    for a server that was started again.

    `distance` is |x - center| before the last exchange that was asked to measure. After an error the params are as they
    were. One thread at a time uses the object. A barrier comes before `close`.
    """

    _end = lib.tutti_center_close

    def __init__(self, name: str, params: Any, config: Any, group: Optional[Group], servers: Optional[Sequence[int]],
                 workers: Optional[Sequence[int]], snapshots: bool, load: Optional[Path]) -> None:
        self._model = Model(params)
        self.distance = NAN
        self._bf16 = bool(config.bf16)
        c = ffi.new("tutti_center_config *", config)
        c.servers, c.server = server = _ranks(servers, "servers")
        c.workers, c.worker = worker = _ranks(workers, "workers")
        folder = path(load)
        c.snapshots, c.load = snapshots, folder
        self._open(lib.tutti_center_open, "tutti_center **", group, name, self._model.list, len(self._model), c)
        del server, worker, folder

    @classmethod
    def easgd(cls, name: str, params: Any, tau: int = 10, alpha: Optional[float] = None, momentum: float = 0,
              group: Optional[Group] = None, servers: Optional[Sequence[int]] = None,
              workers: Optional[Sequence[int]] = None, snapshots: bool = False,
              load: Optional[Path] = None) -> "Center":
        """Elastic averaging with a center: e = alpha (x - center); center += e; x -= e. No worker waits for another.

        alpha None: 0.9 / workers. momentum: from 0, below 1, for `ahead` and `move`, which are EAMSGD. Source: Zhang et
        al., arXiv 1412.6651.
        """
        c = lib.tutti_center_easgd(tau, _or_nan(alpha))
        c.momentum = momentum
        return cls(name, params, c, group, servers, workers, snapshots, load)

    @classmethod
    def asgd(cls, name: str, params: Any, tau: int = 1, average: bool = False, bf16: bool = False,
             group: Optional[Group] = None, servers: Optional[Sequence[int]] = None,
             workers: Optional[Sequence[int]] = None, snapshots: bool = False, load: Optional[Path] = None) -> "Center":
        """center += x - old, where old is what the worker had of the center last. No worker waits for another.

        average: x - old is divided by the number of workers. bf16: of float32 params, the worker pushes the difference
        rounded to bfloat16, half the bytes.
        """
        c = lib.tutti_center_asgd(tau)
        c.average, c.bf16 = average, bf16
        return cls(name, params, c, group, servers, workers, snapshots, load)

    @classmethod
    def downpour(cls, name: str, params: Any, tau: int = 1, average: bool = False, bf16: bool = False,
                 group: Optional[Group] = None, servers: Optional[Sequence[int]] = None,
                 workers: Optional[Sequence[int]] = None, load: Optional[Path] = None) -> "Center":
        """Rounds: center += the sum, or with average the mean, of all workers' x - old. All go on with the same params.

        bf16: as of `asgd`.
        """
        c = lib.tutti_center_downpour(tau, average)
        c.bf16 = bf16
        return cls(name, params, c, group, servers, workers, False, load)

    @classmethod
    def outer(cls, name: str, params: Any, steps: int = 50, learning_rate: Optional[float] = None,
              momentum: Optional[float] = None, bf16: bool = False, group: Optional[Group] = None,
              servers: Optional[Sequence[int]] = None, workers: Optional[Sequence[int]] = None,
              load: Optional[Path] = None) -> "Center":
        """Rounds: after `steps` steps the workers' mean of old - x is the gradient of a Nesterov step of the servers.

        learning_rate None: 0.7. momentum None: 0.9. bf16: as of `asgd`. Source: DiLoCo, arXiv 2311.08105.
        """
        c = lib.tutti_center_outer(steps, _or_nan(learning_rate), _or_nan(momentum))
        c.bf16 = bf16
        return cls(name, params, c, group, servers, workers, False, load)

    @classmethod
    def own(cls, name: str, params: Any, updater: Updater, tau: int = 1, merge: Any = None,
            group: Optional[Group] = None, servers: Optional[Sequence[int]] = None,
            workers: Optional[Sequence[int]] = None, snapshots: bool = False, load: Optional[Path] = None) -> "Center":
        """The worker pushes its params, the servers apply the updater, and what comes back becomes the params.

        merge must be None: to merge what comes back in Python, call `center.table.push_pull`, then merge.
        """
        if merge is not None:
            raise ValueError("merge: the library does not promise the thread on which it merges, so a Python function "
                             "cannot merge: call center.table.push_pull(params, out=...), and merge what comes back")
        c = lib.tutti_center_own(tau, _struct_of(updater), NULL, NULL)
        return cls(name, params, c, group, servers, workers, snapshots, load)

    @property
    def table(self) -> Table:
        """The servers' table, of one dimension, to save, load, look at, reopen and finish. The center closes it."""
        return _CenterTable(self)

    @property
    def params(self) -> List[Any]:
        """The params, as they were given."""
        return self._model.tensors

    def step(self, measure: bool = False) -> bool:
        """Counts a step of the worker. Returns True if the step was the tau-th, and has exchanged.

        measure: an exchange sets `distance`, at the price of one more read of the params.
        """
        result = ffi.new("tutti_average_result *") if measure else NULL
        return self._measured(call(lib.tutti_center_step, self._handle, result), result)

    def exchange(self, measure: bool = False) -> None:
        """Exchanges now. Blocks until the servers have done their part; in rounds until the round has closed."""
        result = ffi.new("tutti_average_result *") if measure else NULL
        call(lib.tutti_center_exchange, self._handle, result)
        self._measured(True, result)

    def exchange_start(self) -> Operation:
        """Starts an exchange with a copy of the params: the program takes more steps meanwhile, then calls `apply`."""
        return Operation(self.group, lib.tutti_center_exchange_start, (self._handle,), self)

    def apply(self, measure: bool = False) -> None:
        """Ends a started exchange, once its operation has ended: moves today's params by what the exchange gave.

        Raises InProgress while the operation runs, or the operation's error: then the params stay. Does not block.
        """
        result = ffi.new("tutti_average_result *") if measure else NULL
        call(lib.tutti_center_exchange_apply, self._handle, result)
        self._measured(True, result)

    def _measured(self, exchanged: int, result: Any) -> bool:
        if exchanged and result:
            self.distance = result.distance
        return bool(exchanged)

    def schedule(self) -> Schedule:
        """The schedule of this worker's exchanges."""
        s = self._schedule()
        return Schedule(s.tau, _or_none(s.alpha), _or_none(s.learning_rate), _or_none(s.momentum))

    def _schedule(self) -> Any:
        s = ffi.new("tutti_center_schedule *")
        call(lib.tutti_center_get, self._handle, s)
        return s

    def set(self, tau: Optional[int] = None, alpha: Optional[float] = None, learning_rate: Optional[float] = None,
            momentum: Optional[float] = None, group: Optional[Group] = None) -> None:
        """Changes the schedule, from the next exchange on; None leaves a value, NaN sets it to what the rule has.

        In rounds a collective of `group` (None: of the center's), in which all workers are, with the same values.
        Elsewhere each worker has a schedule of its own. Raises InvalidArgument for an option that the rule lacks.
        """
        s = self._schedule()
        for name, value in (("tau", tau), ("alpha", alpha), ("learning_rate", learning_rate), ("momentum", momentum)):
            if value is not None:
                setattr(s, name, value)
        call(lib.tutti_center_set, self._handle, (group or self.group)._c, s)

    def pull(self) -> None:
        """Sets the params to the center. A worker that began elsewhere counts nothing twice."""
        call(lib.tutti_center_pull, self._handle)

    def assign(self) -> None:
        """Sets the center to the params, past the rule. One rank calls; the workers then `pull`."""
        call(lib.tutti_center_assign, self._handle)

    def read(self, out: Any) -> Versions:
        """Copies a consistent center to `out`, tensors as the params, or the params: each server's part of one moment.

        Stops nobody. Raises InvalidArgument if the servers keep no versions.
        """
        to = self._model.matching(out, "out")
        versions = ffi.new("tutti_versions *")
        call(lib.tutti_center_read, self._handle, to.list, versions)
        return Versions(versions.oldest, versions.newest, versions.age_ms / 1000, versions.retries)

    def ahead(self, out: Any) -> None:
        """EAMSGD: sets `out`, tensors as the params, to x + momentum v, where the gradient is to be taken."""
        call(lib.tutti_center_ahead, self._handle, self._model.matching(out, "out").list)

    def move(self, gradient: Any, learning_rate: float) -> None:
        """EAMSGD: v = momentum v - learning_rate gradient; x += v. v is 0 at first."""
        call(lib.tutti_center_move, self._handle, self._model.matching(gradient, "the gradient").list, learning_rate)


    def save(self, file: Path) -> None:
        """Saves what this worker has beside its params into a file: `old`, v, its steps since the last exchange.

        `center.table.save` saves the center, and the program saves the params.
        """
        call(lib.tutti_center_save, self._handle, path(file))

    def load(self, file: Path) -> None:
        """Loads what `save` has saved, when the table was loaded and the params are as they were.

        Raises Mismatch (the file is damaged), InvalidArgument (of another center).
        """
        call(lib.tutti_center_load, self._handle, path(file))


class _CenterTable(Table):
    """The table of a center, which the center closes."""

    _end = staticmethod(lambda _handle: None)

    def __init__(self, center: Center) -> None:
        self._center = center
        self.name, self.group = center.name, center.group
        info = ffi.new("tutti_table_info *")
        call(lib.tutti_table_look, self._handle, info)
        self.shape, self.row_shape = (int(info.count),), ()
        self._type = info.type
        self._delta_type = BF16 if center._bf16 else info.type
        self._row = 1

    def __repr__(self) -> str:
        return "<the table of %r>" % self._center

    @property
    def _handle(self) -> Any:
        return lib.tutti_center_table(self._center._handle)


__all__ = ["Center", "Schedule"]
