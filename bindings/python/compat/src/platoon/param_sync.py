"""Rules by which a worker and the shared parameters learn from each other."""
from __future__ import annotations

from typing import Any, Callable, Iterator, List, Tuple

from ._variables import assign, value_of

_PIECE = 1 << 15  # elements


class ParamSyncRule:
    """A rule: override update_params, or theano_update."""

    def make_update_function(self, local_params: List[Any]) -> Callable[[List[Any]], None]:
        """A function of the shared parameters, a list of arrays, which updates them and the local ones in place."""
        try:
            function = self.theano_update(local_params)
        except NotImplementedError:
            return lambda master_params: self._update(local_params, master_params)

        def update(master_params: List[Any]) -> None:
            for master, value in zip(master_params, function(*master_params)):
                master[...] = value
        return update

    def _update(self, local_params: List[Any], master_params: List[Any]) -> None:
        values = [value_of(p) for p in local_params]
        self.update_params(values, master_params)
        for p, value in zip(local_params, values):
            assign(p, value)

    def theano_update(self, local_params: List[Any]) -> Callable[..., Any]:
        """A function of the shared values that changes the local parameters, and returns new shared values."""
        raise NotImplementedError("this rule has no theano_update")

    def update_params(self, local_params: List[Any], master_params: List[Any]) -> None:
        """Updates both lists of arrays in place."""
        raise NotImplementedError("%s has neither update_params nor theano_update" % type(self).__name__)

    def pulled(self, local_params: List[Any]) -> None:
        """The local parameters have just become the shared ones."""


def _pieces(local: Any, master: Any) -> Iterator[Tuple[Any, Any]]:
    """Views of both arrays that fit into a processor's cache; the arrays themselves if one of them has gaps."""
    if not (local.flags.c_contiguous and master.flags.c_contiguous):
        yield local, master
        return
    local, master = local.reshape(-1), master.reshape(-1)
    for begin in range(0, local.size, _PIECE):
        yield local[begin:begin + _PIECE], master[begin:begin + _PIECE]


class EASGD(ParamSyncRule):
    """Elastic averaging (Zhang, Choromanska and LeCun 2015): worker and center move towards each other.

    alpha: which part of the difference each of them moves. With 0 the workers train alone.
    """

    def __init__(self, alpha: float) -> None:
        self.set_alpha(alpha)

    def get_alpha(self) -> float:
        """The alpha of the next updates."""
        return self.alpha

    def set_alpha(self, alpha: float) -> None:
        """Sets the alpha of the next updates."""
        self.alpha = alpha

    def update_params(self, local_params: List[Any], master_params: List[Any]) -> None:
        """diff = alpha * (local - master); local -= diff; master += diff."""
        for local, master in zip(local_params, master_params):
            for mine, shared in _pieces(local, master):
                diff = mine - shared
                diff *= self.alpha
                mine -= diff
                shared += diff


class ASGD(ParamSyncRule):
    """Asynchronous SGD: what a worker has learnt since its last update is added to the shared parameters."""

    def make_update_function(self, local_params: List[Any]) -> Callable[[List[Any]], None]:
        """As of ParamSyncRule. What a worker learns counts from here on."""
        self.pulled(local_params)
        return super().make_update_function(local_params)

    def update_params(self, local_params: List[Any], master_params: List[Any]) -> None:
        """master += local - old; local = master; old = master."""
        for local, master, old in zip(local_params, master_params, self.old_locals):
            master += local - old
            local[...] = master
            old[...] = master

    def pulled(self, local_params: List[Any]) -> None:
        """The shared parameters are what the worker learns from now on starts from."""
        self.old_locals = [value_of(p).copy() for p in local_params]
