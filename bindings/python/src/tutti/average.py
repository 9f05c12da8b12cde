"""Averaging that all ranks take part in: of gradients, or of parameters with a center."""
from __future__ import annotations

import math
from typing import Any, Iterator, List, Optional, Tuple

from ._buffer import SIZES
from ._call import NULL, Path, call, ffi, lib, path
from ._handle import Handle
from ._model import Model
from .group import Group, How
from .job import group_of
from .operation import Operation

NAN = math.nan


def elastic_alpha(ranks: int) -> float:
    """The alpha that Zhang et al. (arXiv 1412.6651) recommend for an elastic average: 0.9 / ranks."""
    return float(lib.tutti_elastic_alpha(ranks))


def elastic_alpha_max(eta: float) -> float:
    """The largest alpha with which asynchronous averaging in turns is stable, for curvature times learning rate eta."""
    return float(lib.tutti_elastic_alpha_max(eta))


def _or_nan(value: Optional[float]) -> float:
    return NAN if value is None else value


def _bytes(tensor: Any) -> int:
    return int(tensor.count) * SIZES[tensor.type]


def _or_none(value: float) -> Optional[float]:
    return None if math.isnan(value) else value


class Gradients(Handle):
    """All-reduce SGD: every rank ends a step with the sum or the average of all ranks' gradients.

    tensors: the gradients, in the order of the layers, of float32, float64, float16 or bfloat16; the same counts and
    types on all ranks, or Gradients raises InvalidArgument on all of them. The sums come in place. bucket_bytes: how
    many bytes are summed at a time; 0: 16 MiB. Blocks until all ranks have called.

    Ranks may take different numbers of steps: a rank that has no step left calls `synchronize`. After an error other
    than an interruption all calls raise the same error, until `regroup`. One thread at a time uses the object.
    """

    _end = lib.tutti_gradients_close

    def __init__(self, tensors: Any, group: Optional[Group] = None, bucket_bytes: int = 0) -> None:
        self._model = Model(tensors)
        self._open(lib.tutti_gradients_open, "tutti_gradients **", group, None, self._model.list,
                   len(self._model), bucket_bytes)

    @property
    def tensors(self) -> List[Any]:
        """The gradients, as they were given."""
        return self._model.tensors

    def ready(self, i: int) -> None:
        """Says that gradient i of this step is computed: the library may sum it now, and owns it until the step's end.

        A program need not call `ready`. Does not block.
        """
        call(lib.tutti_gradients_ready, self._handle, i)

    def sum(self) -> int:
        """Ends a step: the gradients become the sum over all ranks that have a step. Returns how many these are."""
        return self._step(lib.tutti_gradients_sum)

    def average(self) -> int:
        """Ends a step: the gradients become the average over all ranks that have a step. Returns how many these are.

        Blocks until all ranks have called. When a signal's handler has interrupted the call, call again.
        """
        return self._step(lib.tutti_gradients_average)

    def sum_start(self) -> Operation:
        """Starts `sum`. The gradients belong to the library until `apply`."""
        return Operation(self.group, lib.tutti_gradients_sum_start, (self._handle,), self)

    def average_start(self) -> Operation:
        """Starts `average`. The gradients belong to the library until `apply`, which follows the operation's wait.

        Cancelling the operation gives the step up, on all ranks.
        """
        return Operation(self.group, lib.tutti_gradients_average_start, (self._handle,), self)

    def buckets(self) -> Iterator[range]:
        """Yields the gradients of each bucket of the end that was started, by their numbers, as soon as they have come.

        These gradients are then the sum or the average: an optimizer can move their parameters while later buckets are
        on their way. The last gradients come first. `apply` ends the step.
        """
        first, n = ffi.new("int *"), ffi.new("int *")
        while True:
            call(lib.tutti_gradients_next, self._handle, first, n)
            if not n[0]:
                return
            yield range(first[0], first[0] + n[0])

    def norm(self) -> float:
        """The L2 norm of all gradients together, in double precision, between steps.

        Behind a step all ranks get the same bits. The norm is finite only if all gradients are.
        """
        norm = ffi.new("double *")
        call(lib.tutti_gradients_norm, self._handle, norm)
        return float(norm[0])

    def move(self, tensors: Any) -> None:
        """From the next step on the gradients are these tensors, of the same counts and types.

        Other ranks need not move. For programs that have new gradients in each step, as torch has after
        `optimizer.zero_grad()`.
        """
        model = Model(tensors)
        call(lib.tutti_gradients_move, self._handle, model.list, len(model))
        self._model = model

    def bf16(self, on: bool = True) -> None:
        """From the next step on float32 gradients travel as bfloat16, half the bytes, with error feedback.

        What rounding takes away from this rank's gradient is added to its next one. All ranks must have the same.
        """
        call(lib.tutti_gradients_bf16, self._handle, on)

    def apply(self) -> int:
        """Ends the step that was started, once its operation has ended. Returns how many ranks have contributed.

        Raises InProgress while the operation runs, or the operation's error. Does not block.
        """
        return self._step(lib.tutti_gradients_apply)

    def _step(self, function: How) -> int:
        contributors = ffi.new("int *")
        call(function, self._handle, contributors)
        return int(contributors[0])

    def synchronize(self, params: Any) -> None:
        """This rank has no step left: takes part with zeros in the others' steps until all ranks call `synchronize`.

        Then the params of the rank with most steps become everybody's, bit for bit. params: tensors of any types, the
        same on all ranks. At the start of a program all ranks begin with rank 0's params so.
        """
        model = Model(params)
        call(lib.tutti_gradients_synchronize, self._handle, model.list, len(model))

    def save(self, file: Path) -> None:
        """Saves how many steps this rank has had since the last `synchronize`, between two steps, into the file."""
        call(lib.tutti_gradients_save, self._handle, path(file))

    def load(self, file: Path) -> None:
        """Loads what `save` has saved. Raises Mismatch (the file is damaged), InvalidArgument (of something else)."""
        call(lib.tutti_gradients_load, self._handle, path(file))

    def regroup(self, group: Group) -> None:
        """Goes on in another group, after `shrink` or `grow`. Then all ranks call `synchronize`."""
        group = group_of(group)
        call(lib.tutti_gradients_regroup, self._handle, group._c)
        self.group = group


class ElasticAverage(Handle):
    """Elastic averaging of all ranks: every tau steps the params x and a center c draw each other together.

        d = alpha (x - c);  x = x - d;  c = c + the sum of all ranks' d      (Zhang et al., arXiv 1412.6651)

    Begin with `synchronize`: all ranks' params and centers become rank 0's params. Without `synchronize` each rank's
    center begins as the rank's own params, and the centers differ.

    params: tensors of float32, float64, float16 or bfloat16, the same counts and types on all ranks. alpha: from 0 to
    1; None: elastic_alpha(ranks of the group). distlearn: each synchronization ends with one elastic move more, as in
    torch-distlearn. Blocks until all ranks have called; raises InvalidArgument if the ranks' arguments differ.

    `distance` is |x - c| before the last averaging that was asked to measure. One thread at a time uses the object.
    """

    _end = lib.tutti_ea_close

    def __init__(self, params: Any, tau: int, alpha: Optional[float] = None, distlearn: bool = False,
                 group: Optional[Group] = None) -> None:
        self._model = Model(params)
        self.distance = NAN
        self._open(lib.tutti_ea_open, "tutti_ea **", group, None, self._model.list, len(self._model), tau,
                   _or_nan(alpha), lib.TUTTI_EA_DISTLEARN if distlearn else 0)

    @property
    def params(self) -> List[Any]:
        """The params, as they were given."""
        return self._model.tensors

    def step(self, measure: bool = False) -> bool:
        """Counts a step of the program. Returns True if the step was the tau-th, and has averaged.

        measure: an averaging sets `distance`, at the price of one more read of the params. Blocks until all ranks have
        begun the averaging before this one.
        """
        result = ffi.new("tutti_average_result *") if measure else NULL
        averaged = bool(call(lib.tutti_ea_step, self._handle, result))
        if averaged and measure:
            self.distance = result.distance
        return averaged

    @property
    def tau(self) -> int:
        """Steps from one averaging to the next."""
        return self._schedule()[0]

    @property
    def alpha(self) -> Optional[float]:
        """How far an averaging moves, as it was set; None: elastic_alpha(ranks of the group)."""
        return self._schedule()[1]

    def _schedule(self) -> Tuple[int, Optional[float]]:
        tau, alpha = ffi.new("int *"), ffi.new("double *")
        call(lib.tutti_ea_get, self._handle, tau, alpha)
        return int(tau[0]), _or_none(alpha[0])

    def set(self, tau: int, alpha: Optional[float] = None) -> None:
        """Changes tau and alpha, from the next averaging on, which comes after tau more steps.

        A collective: all ranks call between the same two averagings, with the same values, else InvalidArgument.
        """
        call(lib.tutti_ea_set, self._handle, tau, _or_nan(alpha))

    def synchronize(self) -> None:
        """Ends this rank's steps, waits for the others' steps, and gives rank 0's params to all, as the center too."""
        call(lib.tutti_ea_synchronize, self._handle)

    def synchronize_center(self) -> None:
        """Ends this rank's steps, waits for the others' steps, and gives rank 0's center to all, bit for bit."""
        call(lib.tutti_ea_synchronize_center, self._handle)

    def synchronize_start(self) -> Operation:
        """Starts `synchronize` with a copy of the params: the program takes more steps, then calls `apply`."""
        return Operation(self.group, lib.tutti_ea_synchronize_start, (self._handle,), self)

    def synchronize_center_start(self) -> Operation:
        """Starts `synchronize_center` with a copy of the params: the program takes more steps, then calls `apply`."""
        return Operation(self.group, lib.tutti_ea_synchronize_center_start, (self._handle,), self)

    def apply(self) -> None:
        """Ends a started synchronization, once its operation has ended: adds to today's params what the copy has moved.

        Raises InProgress while the operation runs, or the operation's error: then the params stay. Does not block.
        """
        call(lib.tutti_ea_synchronize_apply, self._handle)

    def center(self, out: Any = None) -> List[Any]:
        """Copies this rank's center to `out`, tensors as the params, or to new tensors, and returns these.

        Blocks until all ranks have begun the last averaging.
        """
        to = self._model.matching(self._model.like() if out is None else out, "out")
        for a, b in zip(to.list, self._center()):
            ffi.memmove(a.data, b.data, _bytes(b))
        return to.tensors

    def set_center(self, tensors: Any) -> None:
        """Sets this rank's center, before its next step. All ranks set the same values."""
        of = self._model.matching(tensors, "the center")
        for a, b in zip(self._center(), of.list):
            ffi.memmove(a.data, b.data, _bytes(b))

    def _center(self) -> Any:
        at = ffi.new("tutti_tensor[]", len(self._model))
        call(lib.tutti_ea_center, self._handle, at)
        return at

    def save(self, file: Path) -> None:
        """Saves this rank's center and counters into a file of this rank. The program saves the params.

        All ranks save at the same step. Blocks until all ranks have begun the last averaging.
        """
        call(lib.tutti_ea_save, self._handle, path(file))

    def load(self, file: Path) -> None:
        """Loads what `save` has saved, before the first step, with the params as they were: the same bits follow.

        Raises Mismatch (the file is damaged), InvalidArgument (of other tensors, or after a step).
        """
        call(lib.tutti_ea_load, self._handle, path(file))

    def regroup(self, group: Group) -> None:
        """Goes on in another group, after `shrink` or `grow`. New ranks open an ElasticAverage meanwhile.

        Blocks until all ranks have called. Then all ranks call one of the two synchronizations.
        """
        group = group_of(group)
        call(lib.tutti_ea_regroup, self._handle, group._c)
        self.group = group


__all__ = ["ElasticAverage", "Gradients", "elastic_alpha", "elastic_alpha_max"]
