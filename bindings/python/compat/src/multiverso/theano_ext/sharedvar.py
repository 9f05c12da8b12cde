"""Shared variables of Theano, or of any library with get_value() and set_value(), on the servers."""
from __future__ import annotations

from typing import Any, Dict, List

import numpy as np

from .. import api
from ..tables import ArrayTableHandler


class MVSharedVariable:
    """A shared variable with a table. All else that a program asks for comes from the variable itself.

    svobj: a variable with get_value() and set_value(array). The values of the master worker are the first values of
    all workers. Creating is a barrier.
    """

    def __init__(self, svobj: Any) -> None:
        if not (hasattr(svobj, "get_value") and hasattr(svobj, "set_value")):
            raise TypeError("a %s has no get_value and set_value: give a shared variable" % type(svobj).__name__)
        self._svobj = svobj
        value = np.asarray(svobj.get_value())
        self._mv_array = ArrayTableHandler(value.size, init_value=value)
        api.barrier()
        self._take(value)

    def _take(self, like: Any) -> None:
        self._last_mv_data = self._mv_array.get().reshape(like.shape)
        self._svobj.set_value(self._last_mv_data.astype(like.dtype))

    def mv_sync(self) -> None:
        """Adds what the variable has changed since the last call, and sets the variable to what all have added."""
        value = np.asarray(self._svobj.get_value())
        self._mv_array.add(value - self._last_mv_data)
        self._take(value)

    def __getattr__(self, name: str) -> Any:
        if name == "_mv_array":
            raise RuntimeError("a shared variable that was pickled has no table: create an MVSharedVariable anew")
        if name.startswith("_") and "_svobj" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._svobj, name)

    def __getstate__(self) -> Dict[str, Any]:
        """The table belongs to this process, and is not pickled."""
        return {name: value for name, value in self.__dict__.items() if name != "_mv_array"}


_shared_vars: List[MVSharedVariable] = []


def mv_shared(*args: Any, **kwargs: Any) -> Any:
    """theano.shared, with the variable known to sync_all_mv_shared_vars. Returns Theano's variable."""
    try:
        import theano
    except ImportError as e:
        raise ImportError("mv_shared calls theano.shared, and Theano is missing (%s): give a variable of another "
                          "library to MVSharedVariable" % e) from None
    variable = theano.shared(*args, **kwargs)
    _shared_vars.append(MVSharedVariable(variable))
    return variable


mv_shared.shared_vars = _shared_vars  # type: ignore[attr-defined]  # where Multiverso has them


def sync_all_mv_shared_vars() -> None:
    """Calls mv_sync of all variables that mv_shared has made."""
    for variable in _shared_vars:
        variable.mv_sync()
