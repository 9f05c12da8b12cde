"""Reads dpwa's config files, the few forms of YAML that they use, with or without their indentation.

    - nodes:                                         - nodes:
      - {name: w1, host: localhost, port: 45000}     - {name: w1, host: localhost, port: 45000}
    - timeout_ms: 2500                               - timeout_ms: 2500

All keys of such a file differ from each other, so a key alone says where its value belongs: `name`, `host` and `port`
are of a node, `value` is of the section `constant`.
"""
from __future__ import annotations

import re
from typing import Any, Dict, Iterator, List, Tuple

NODE = ("name", "host", "port")
_COMMENT = re.compile(r"(^|\s)#.*")
_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}


class DpwaConfigError(KeyError, ValueError):
    """A config file that lacks something, or cannot be read. The sentence names the file and the key."""

    def __str__(self) -> str:
        return str(self.args[0])


def _scalar(text: str) -> Any:
    text = text.strip()
    if len(text) > 1 and text[0] in "'\"" and text[-1] == text[0]:
        return text[1:-1]
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in int, float:
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def _map(text: str) -> Dict[str, Any]:
    """{a: 1, b: x}"""
    pairs = [pair.partition(":") for pair in text.strip()[1:-1].split(",") if pair.strip()]
    return {key.strip(): _scalar(value) for key, _, value in pairs}


def _value(text: str) -> Any:
    if text.startswith("["):
        return [_map(item) for item in re.findall(r"\{[^{}]*\}", text)]
    return _map(text) if text.startswith("{") else _scalar(text)


def _lines(text: str) -> Iterator[Tuple[int, bool, str]]:
    """The items: the number of the line, whether a dash begins the item, and the rest. Braces may span lines."""
    held, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        line = _COMMENT.sub("", line).strip()
        if not line or (not held and line in ("---", "...")):
            continue
        first = first if held else number
        held = (held + " " + line).strip()
        if held.count("{") + held.count("[") > held.count("}") + held.count("]"):
            continue
        yield first, held.startswith("- "), held[2:].strip() if held.startswith("- ") else held
        held = ""
    if held:
        yield first, False, held


class _Reader:
    def __init__(self) -> None:
        self.config: Dict[str, Any] = {}

    def _nodes(self) -> List[Dict[str, Any]]:
        nodes: List[Dict[str, Any]] = self.config.setdefault("nodes", [])
        return nodes

    def take(self, dash: bool, item: str) -> bool:
        """Takes one item. False: the item is neither a map nor a key."""
        if item.startswith("{") and item.endswith("}"):
            self._nodes().append(_map(item))
            return True
        key, colon, rest = (part.strip() for part in item.partition(":"))
        if not colon or not re.fullmatch(r"\w+", key):
            return False
        if key in NODE:
            self._take_node(dash, key, rest)
        elif key == "value":
            self.config["constant"] = {"value": _scalar(rest)}
        elif key == "nodes" and not rest:
            self._nodes()
        else:
            self.config[key] = _value(rest)
        return True

    def _take_node(self, dash: bool, key: str, rest: str) -> None:
        nodes = self._nodes()
        if dash or not nodes or key in nodes[-1]:
            nodes.append({})
        nodes[-1][key] = _scalar(rest)


def read(path: Any) -> Dict[str, Any]:
    """The keys of a config file and their values; `nodes` is a list of maps.

    Raises OSError, and DpwaConfigError with the number of the line that is no such item.
    """
    reader = _Reader()
    with open(path, encoding="utf-8") as file:
        for number, dash, item in _lines(file.read()):
            if not reader.take(dash, item):
                raise DpwaConfigError("%s:%d: %r is neither `key: value` nor a map in braces" % (path, number, item))
    return reader.config
