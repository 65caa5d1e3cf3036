"""The longest common prefix of tokens or bytes: the one function that the repository has for it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def common_prefix_length(first: NDArray[np.integer[Any]], *others: NDArray[np.integer[Any]]) -> int:
    """Return how many leading tokens (int32 [n_i]) or bytes (uint8 [n_i]) all sequences share; n_i
    may be 0.

    >>> common_prefix_length(np.array([7, 8, 9], np.int32), np.array([7, 8, 1, 2], np.int32))
    2
    """
    length = len(first)
    for other in others:
        length = min(length, len(other))
        differs = first[:length] != other[:length]
        at = int(differs.argmax()) if length else 0  # the first True; 0 also if there is none
        length = at if length and differs[at] else length
    return length
