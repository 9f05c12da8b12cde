"""Data of a program as the tables take them."""
from __future__ import annotations

from typing import Any

import numpy as np


def convert_data(data: Any) -> Any:
    """data (an array, a tensor, numbers, lists of numbers) as a float32 array in C order.

    Where data is such an array, the result has the memory of data; else the result is a copy. Raises TypeError if data
    is None, which NumPy takes for one element.
    """
    if data is None:
        raise TypeError("data is None, and must be an array or a list of numbers")
    return np.ascontiguousarray(data, dtype=np.float32)
