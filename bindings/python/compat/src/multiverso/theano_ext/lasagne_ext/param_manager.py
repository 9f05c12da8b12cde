"""The parameters of a network of Lasagne in one table."""
from __future__ import annotations

from typing import Any, List, Sequence

from ..param_manager import MVModelParamManager


class LasagneParamManager(MVModelParamManager):
    """network: what lasagne.layers.get_all_param_values takes, an output layer say. Needs Lasagne."""

    def __init__(self, network: Any) -> None:
        self.network = network
        super().__init__(network)

    def get_all_param_values(self) -> Sequence[Any]:
        """The network's parameters."""
        return _layers().get_all_param_values(self.network)  # type: ignore[no-any-return]

    def set_all_param_values(self, params: List[Any]) -> None:
        """Sets the network's parameters."""
        _layers().set_all_param_values(self.network, params)


def _layers() -> Any:
    import lasagne
    return lasagne.layers
