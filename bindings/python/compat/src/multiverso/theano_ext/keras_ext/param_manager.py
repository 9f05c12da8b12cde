"""The weights of a model of Keras in one table."""
from __future__ import annotations

from typing import Any, List, Sequence

from ..param_manager import MVModelParamManager


class KerasParamManager(MVModelParamManager):
    """model: has get_weights() and set_weights(arrays), as a model of Keras."""

    def get_all_param_values(self) -> Sequence[Any]:
        """The model's weights."""
        return self.model.get_weights()  # type: ignore[no-any-return]

    def set_all_param_values(self, params: List[Any]) -> None:
        """Sets the model's weights."""
        self.model.set_weights(params)
