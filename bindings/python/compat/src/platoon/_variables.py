"""Parameters of a model: NumPy arrays, torch tensors, and objects with get_value and set_value, as Theano's."""
from __future__ import annotations

import copy
import sys
from typing import Any, List

import numpy


def refuse_gpu(x: Any) -> None:
    """Raises TypeError for arrays of pygpu, whose memory is a GPU's."""
    if type(x).__module__.split(".")[0] == "pygpu":
        raise TypeError("arrays of pygpu are not supported: give a NumPy array, or an object with get_value and "
                        "set_value")


def value_of(x: Any) -> Any:
    """A parameter's value as a NumPy array: the parameter's own memory, or a copy if it has get_value."""
    refuse_gpu(x)
    if hasattr(x, "get_value"):
        return numpy.asarray(x.get_value())
    if isinstance(x, numpy.ndarray):
        return x
    if hasattr(x, "detach"):
        return x.detach().numpy()
    raise TypeError("a parameter is a NumPy array, a torch tensor, or an object with get_value and set_value, and not "
                    "%r" % type(x).__name__)


def assign(x: Any, value: Any) -> None:
    """Gives a parameter a value."""
    if hasattr(x, "get_value"):
        x.set_value(value)
    else:
        mine = value_of(x)
        if mine is not value:
            mine[...] = value


def new_like(x: Any, value: Any) -> Any:
    """The value as an object of x's kind if that has get_value, else the value itself."""
    if not hasattr(x, "get_value"):
        return value
    theano = sys.modules.get("theano")
    if theano is not None and type(x).__module__.split(".")[0] == "theano":
        return theano.shared(value)
    new = copy.deepcopy(x)  # set_value may write into memory that a copy shares with x
    new.set_value(value)
    return new


def as_list(x: Any) -> List[Any]:
    """A list of parameters, also of one parameter alone."""
    return list(x) if isinstance(x, (list, tuple)) else [x]
