"""All parameters of a model in one table."""
from __future__ import annotations

from typing import Any, List, Sequence

import numpy as np

from .. import api
from ..tables import ArrayTableHandler


class MVModelParamManager:
    """Keeps the float32 parameters of a model together on all workers.

    A subclass says how a model gives its parameters, and takes them. Creating is a barrier. The parameters of the
    master worker are the first ones of all workers. Raises TypeError if a parameter is not float32.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        values = self._values()
        self.shapes = [value.shape for value in values]
        self.dtypes = [value.dtype for value in values]
        self.sizes = [value.size for value in values]
        self.all_param_list = _flat(values)
        self.tbh = ArrayTableHandler(self.all_param_list.size, init_value=self.all_param_list)
        api.barrier()
        self._take()

    def get_all_param_values(self) -> Sequence[Any]:
        """The model's parameters, a list of float32 arrays."""
        raise NotImplementedError("%s has no get_all_param_values" % type(self).__name__)

    def set_all_param_values(self, params: List[Any]) -> None:
        """Sets the model's parameters to arrays of the same shapes, which are the model's to keep."""
        raise NotImplementedError("%s has no set_all_param_values" % type(self).__name__)

    def sync_all_param(self) -> None:
        """Adds what the model has changed since the last call, and sets the model to what all have added."""
        self.tbh.add(_flat(self._values()) - self.all_param_list)
        self._take()

    def _values(self) -> List[Any]:
        values = [np.asarray(value) for value in self.get_all_param_values()]
        for i, value in enumerate(values):
            if value.dtype != np.float32:
                raise TypeError("parameter %d of the model is %s, and must be float32" % (i, value.dtype))
        return values

    def _take(self) -> None:
        self.all_param_list = self.tbh.get()
        parts = np.split(self.all_param_list, np.cumsum(self.sizes)[:-1])
        # Copies, as the model may change them in place.
        self.set_all_param_values([part.reshape(shape).copy() for part, shape in zip(parts, self.shapes)])


def _flat(values: List[Any]) -> Any:
    if not values:
        raise ValueError("the model has no parameters")
    return np.concatenate([value.reshape(-1) for value in values])
