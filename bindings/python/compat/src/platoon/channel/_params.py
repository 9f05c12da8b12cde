"""The shared parameters of a worker, which are the same memory in every worker of the host."""
from __future__ import annotations

from typing import Any, List, Optional

from .. import _memory
from .._variables import assign, value_of
from ..param_sync import ParamSyncRule


class SharedParams:
    """What Worker and Soldier have in common: parameters under a name, the rule, and the lock.

    Attributes: local_params, as given; shared_params, a list of arrays; update_fn, the rule as a function.
    """

    shared_params: List[Any]
    _lock: Optional[_memory.Lock] = None

    def _set_rule(self, params: List[Any], rule: ParamSyncRule) -> List[Any]:
        """Notes the parameters and the rule. Returns the parameters' values."""
        self.local_params, self._rule = list(params), rule
        self.update_fn = rule.make_update_function(self.local_params)
        return [value_of(p) for p in self.local_params]

    def _locked(self, synchronous: bool) -> Any:
        return _Locked(self._need_lock() if synchronous else None)

    def _need_lock(self) -> _memory.Lock:
        if self._lock is None:
            raise RuntimeError("there is no lock yet: call init_shared_params first")
        return self._lock

    def _need_params(self) -> List[Any]:
        try:
            return self.shared_params
        except AttributeError:
            raise RuntimeError("there are no shared parameters yet: call init_shared_params first") from None

    def sync_params(self, synchronous: bool = True) -> None:
        """Applies the rule. synchronous: False: without the lock, while other workers may change the same values."""
        shared = self._need_params()
        with self._locked(synchronous):
            self.update_fn(shared)

    def copy_to_local(self, synchronous: bool = True) -> None:
        """Copies the shared parameters to the local ones."""
        shared = self._need_params()
        with self._locked(synchronous):
            for p, value in zip(self.local_params, shared):
                assign(p, value)
        self._rule.pulled(self.local_params)

    def copy_to_global(self, synchronous: bool = True) -> None:
        """Copies the local parameters to the shared ones."""
        shared = self._need_params()
        with self._locked(synchronous):
            for p, value in zip(self.local_params, shared):
                value[...] = value_of(p)


class _Locked:
    """The lock for a `with` block, also if the block raises; None: no lock."""

    def __init__(self, lock: Optional[_memory.Lock]) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        if self._lock is not None:
            self._lock.acquire()

    def __exit__(self, *_: Any) -> None:
        if self._lock is not None:
            self._lock.release()
