"""What a config file says: the nodes, and how a round goes. No key has a default."""
from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Tuple

from . import _yaml
from ._yaml import DpwaConfigError

METHODS = ("constant", "clock", "loss")
_KEYS = ("nodes", "fetch_probability", "timeout_ms", "interpolation", "divergence_threshold")


class Node(NamedTuple):
    """A process of the cluster, and where it listens."""

    name: str
    host: str
    port: int


def make_node(name: Any, host: Any, port: Any) -> Node:
    """A node of values of any type. Raises ValueError if the port is no number."""
    return Node(str(name), str(host), int(port))


class DpwaConfiguration:
    """A config file. Raises DpwaConfigError, which is a KeyError and a ValueError, and names what is missing or wrong.

    Keys that dpwa does not know have no effect.
    """

    def __init__(self, config_file: Any) -> None:
        self._file = config_file
        self.config: Dict[str, Any] = _yaml.read(config_file)
        self._need(*_KEYS)
        self._check_method()
        self._nodes = [self._node(node) for node in self.config["nodes"]]
        names = [node.name for node in self._nodes]
        for name in names:
            if names.count(name) > 1:
                raise self._error("two nodes are named %r" % name)

    def _error(self, sentence: str) -> DpwaConfigError:
        return DpwaConfigError("%s: %s" % (self._file, sentence))

    def _need(self, *keys: str) -> None:
        missing = [key for key in keys if self.config.get(key) is None]
        if missing:
            raise self._error("the key%s missing: no key has a default"
                              % (" %s is" % missing[0] if len(missing) == 1 else "s %s are" % ", ".join(missing)))

    def _check_method(self) -> None:
        method = self.config["interpolation"]
        if method not in METHODS:
            raise self._error("interpolation is %r, and must be %s or %s" % (method, ", ".join(METHODS[:-1]),
                                                                            METHODS[-1]))
        self._need(method)
        if method == "constant" and "value" not in self.get_interpolation()[1]:
            raise self._error("interpolation is constant, and the section is `constant: {value: 0.5}`")
        for what in (self.get_value, self.get_fetch_probability, self.get_divergence_threshold, self.get_timeoutms):
            what()

    def _node(self, node: Dict[str, Any]) -> Node:
        for key in _yaml.NODE:
            if node.get(key) is None:
                raise self._error("node %r has no key %s" % (node.get("name", node), key))
        if not isinstance(node["port"], int):
            raise self._error("the port of node %r is %r, and must be a number" % (node["name"], node["port"]))
        return make_node(**{key: node[key] for key in _yaml.NODE})

    def _number(self, key: str, value: Any, least: float, most: float) -> float:
        if isinstance(value, (int, float)) and least <= value <= most:
            return value
        raise self._error("%s is %r, and must be a number from %g to %g" % (key, value, least, most))

    def get_nodes(self) -> List[Node]:
        """The nodes, in the order of the file."""
        return list(self._nodes)

    def get_interpolation(self) -> Tuple[str, Dict[str, Any]]:
        """The name of the method, and its options."""
        options = self.config[self.config["interpolation"]]
        return self.config["interpolation"], options if isinstance(options, dict) else {}

    def get_value(self) -> float:
        """The factor of the method constant, from 0 to 1; 0.5 with another method, which does not use it."""
        return self._number("value", self.get_interpolation()[1].get("value", 0.5), 0, 1)

    def get_timeoutms(self) -> float:
        """Milliseconds that update_wait waits at most."""
        return self._number("timeout_ms", self.config["timeout_ms"], 1, 86400000)

    def get_fetch_probability(self) -> float:
        """How likely it is that a round has a peer, from 0 to 1."""
        return self._number("fetch_probability", self.config["fetch_probability"], 0, 1)

    def get_divergence_threshold(self) -> float:
        """Below this loss the factor shrinks with the loss; 0: never."""
        return self._number("divergence_threshold", self.config["divergence_threshold"], 0, float("inf"))


__all__ = ["DpwaConfigError", "DpwaConfiguration", "Node", "make_node"]
