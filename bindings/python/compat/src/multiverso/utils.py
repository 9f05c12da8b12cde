"""Data of a program as the tables take them."""
from __future__ import annotations

from typing import Any

import numpy as np


def convert_data(data: Any) -> Any:
    """data (an array, a tensor, numbers, lists of numbers) as a float32 array in C order.

    Where data is such an array, the result has the memory of data; else the result is a copy.
    """
    return np.ascontiguousarray(data, dtype=np.float32)
