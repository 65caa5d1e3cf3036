"""Weight versions of a generation whose weights were switched while it ran: runs of tokens.

A span is (version, tokens). Invariant: no spans mean one version for all tokens, as almost always.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

WeightSpans = Sequence[Sequence[int]]
"""Pairs of a version and a number of tokens, in order."""


def find_spans(versions: NDArray[np.int32]) -> tuple[tuple[int, int], ...]:
    """Return the spans of versions, int32 [m]; none if all are the same.

    Example: ``[3, 3, 4]`` gives ``((3, 2), (4, 1))``.
    """
    starts = np.flatnonzero(np.diff(versions)) + 1
    if not len(starts):
        return ()
    edges = [0, *starts.tolist(), len(versions)]
    return tuple((int(versions[start]), stop - start) for start, stop in pairwise(edges))


def expand_spans(spans: WeightSpans, version: int, tokens: int) -> NDArray[np.int32]:
    """Return the version of each token, int32 [tokens]; without spans ``version`` for all.

    Spans of more tokens are cut. The last one's goes on for tokens after them: some servers leave
    out the stop token when they count.
    """
    if not spans:
        return np.full(tokens, version, np.int32)
    found = np.repeat(*np.array(spans, np.int32).T)[:tokens]
    return np.append(found, np.full(tokens - len(found), spans[-1][0], np.int32))
