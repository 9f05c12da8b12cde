"""Platoon's Theano operations, which are refused: Theano's graphs do not reach Tutti."""
from __future__ import annotations

from typing import Any


def _refuse(name: str) -> Any:
    def op(*args: Any, **kwds: Any) -> None:
        raise NotImplementedError("platoon.ops.%s is a Theano operation, which Tutti does not have: call "
                                  "Worker.all_reduce, or a rule of platoon.training.global_dynamics" % name)
    op.__name__ = name
    return op


AllReduce = _refuse("AllReduce")
AllReduceSum = _refuse("AllReduceSum")
AllReduceProd = _refuse("AllReduceProd")
AllReduceMax = _refuse("AllReduceMax")
AllReduceMin = _refuse("AllReduceMin")
