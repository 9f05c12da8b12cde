"""Rules by which all workers of an experiment learn at once, by all-reduce: each worker calls its rule."""
from __future__ import annotations

from typing import Any, Callable, Optional

import numpy

from .._variables import as_list, assign, value_of
from ..channel.worker import Worker


class GlobalDynamics:
    """A rule: make_rule says what it works on, and a call without arguments applies it.

    worker: None: the Worker of this process.
    """

    def __init__(self, worker: Optional[Worker] = None) -> None:
        self._worker: Optional[Worker] = None
        self._fn: Optional[Callable[[], Any]] = None
        if worker is not None:
            self.worker = worker

    def __call__(self) -> None:
        if self._fn is None:
            raise NotImplementedError("%s does not know yet what to work on: call make_rule, or register_fn first"
                                      % type(self).__name__)
        self._fn()

    @property
    def worker(self) -> Worker:
        """The worker whose all_reduce the rule uses. Raises AttributeError: this process has none yet."""
        if self._worker is None:
            if Worker.instance is None:
                raise AttributeError("this process has no Worker yet: create it first")
            self._worker = Worker.instance
        return self._worker

    @worker.setter
    def worker(self, worker: Worker) -> None:
        if not isinstance(worker, Worker):
            raise TypeError("a rule's worker is a platoon.channel.Worker, and not %r" % (worker,))
        self._worker = worker

    def register_fn(self, fun: Callable[[], Any]) -> None:
        """Sets a function without arguments, which is the rule. Raises TypeError."""
        if not callable(fun):
            raise TypeError("a rule is a function, and not %r" % (fun,))
        self._fn = fun

    def make_rule(self, *args: Any) -> None:
        """Sets what the rule works on."""
        raise NotImplementedError("%s has no make_rule: give register_fn a function" % type(self).__name__)

    def _sum(self, value: Any) -> Any:
        return self.worker.all_reduce(value, "sum")


class _Fixed(GlobalDynamics):
    def register_fn(self, fun: Callable[[], Any]) -> None:
        """Refuses: make_rule sets the rule."""
        raise AttributeError("%s has a rule of its own: call make_rule" % type(self).__name__)


class SGD(_Fixed):
    """Synchronous SGD: the updates of all workers are summed up, or (average) averaged."""

    def __init__(self, average: bool = False, worker: Optional[Worker] = None) -> None:
        self.average = average
        super().__init__(worker)

    def make_rule(self, local_updates: Any) -> None:
        """local_updates: a parameter, or a list. Few large ones are faster than many small ones."""
        updates = as_list(local_updates)
        self._fn = lambda: self._apply(updates)

    def _apply(self, updates: Any) -> None:
        for update in updates:
            total = self._sum(value_of(update))
            assign(update, total / total.dtype.type(self.worker.global_size) if self.average else total)


def SumSGD(worker: Optional[Worker] = None) -> SGD:
    """SGD that sums up."""
    return SGD(average=False, worker=worker)


def AverageSGD(worker: Optional[Worker] = None) -> SGD:
    """SGD that averages."""
    return SGD(average=True, worker=worker)


class EASGD(_Fixed):
    """Synchronous elastic averaging (Zhang, Choromanska and LeCun 2015). Every worker has a copy of the center."""

    def make_rule(self, local_particle: Any, central_particle: Any, alpha: Any) -> None:
        """A parameter or a list of each kind. alpha: a number, or an object with get_value."""
        self.alpha = alpha
        pairs = list(zip(as_list(local_particle), as_list(central_particle)))
        self._fn = lambda: self._apply(pairs)

    def _apply(self, pairs: Any) -> None:
        alpha = self.alpha.get_value() if hasattr(self.alpha, "get_value") else self.alpha
        for local, central in pairs:
            here, center = value_of(local), value_of(central)
            force = here - center
            force *= alpha
            assign(local, here - force)
            assign(central, center + self._sum(force))


class Downpour(_Fixed):
    """Synchronous Downpour: what all workers have accumulated is added to the global parameters, which all take.

    average: add the average, not the sum.
    """

    def __init__(self, average: bool = False, worker: Optional[Worker] = None) -> None:
        self.average = average
        super().__init__(worker)

    def make_rule(self, local_particle: Any, local_acc_updates: Any,
                  global_particle: Any) -> None:
        """A parameter or a list of each kind. The accumulated updates begin again from zero."""
        parts = list(zip(as_list(local_particle), as_list(local_acc_updates), as_list(global_particle)))
        self._fn = lambda: self._apply(parts)

    def _apply(self, parts: Any) -> None:
        for local, updates, central in parts:
            mine = value_of(updates)
            total = self._sum(mine)
            if self.average:
                total /= total.dtype.type(self.worker.global_size)
            total += value_of(central)
            assign(central, total)
            assign(local, total)
            assign(updates, numpy.zeros_like(mine))
