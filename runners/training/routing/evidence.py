"""Evidence that replayed choices are not the training router's own.

The unit is a row: a token's choices in one or in all layers, as the share x in [0, 1] of them that
training would not make. Engines of another precision differ in few choices, so the expected x is
below a limit p; rows of other tokens differ in most. Invariant: evidence grows with the number of
rows, so that few of them are never an alarm.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import numpy as np
from numpy.typing import NDArray

CERTAINTY = 28.0
"""Nats. exp(−28) is 7e-13: among the million rows of a large step, whichever interval of them is
looked at, evidence that strong is a coincidence less than once in 10⁵ steps.
"""
ALTERNATIVES = (0.05, 0.5)
"""Places between the limit and 1 of the shares that ``scan_rows`` looks for: the lower notices one
wrong expert of eight (x = 1/8), the higher a few rows of another token.
"""


@dataclass(frozen=True, slots=True)
class RowRange:
    """The rows of a sequence that differ most: ``start`` to ``stop``, exclusive."""

    evidence: float
    """Nats; 0 for no row above the limit."""
    start: int
    stop: int


def pool_rows(share: float, rows: int, limit: float) -> float:
    """Return the evidence of so many rows with a mean ``share``, in nats; 0 up to the limit.

    ``rows · KL(share ‖ limit)`` of Bernoulli distributions: the probability of such a mean is below
    exp(−evidence) if the rows' expectations are at most the limit (Chernoff; for x in [0, 1]
    Hoeffding 1963, theorem 1).
    """
    if share <= limit or limit >= 1.0:
        return 0.0
    rest = (1.0 - share) * log((1.0 - share) / (1.0 - limit)) if share < 1.0 else 0.0
    return rows * (share * log(share / limit) + rest)


def scan_rows(shares: NDArray[np.float64], limit: float) -> RowRange:
    """Return the interval with the most evidence; ``shares``: float64 [n], rows in order.

    CUSUM (Page 1954): the greatest rise of the running sum of
    ``x·log(q / p) + (1 − x)·log((1 − q) / (1 − p))`` for an alternative q above the limit p. The
    expectation of a row's exponential is at most 1 whatever the rows before it, so that a rise by h
    has probability below n·exp(−h) (Ville 1939), also of rows that depend on each other.
    """
    best = RowRange(0.0, 0, 0)
    if limit >= 1.0:
        return best
    for place in ALTERNATIVES:
        rate = limit + place * (1.0 - limit)
        gain = shares * log(rate / limit) + (1.0 - shares) * log((1.0 - rate) / (1.0 - limit))
        total = np.concatenate([[0.0], np.cumsum(gain)])
        rise = total - np.minimum.accumulate(total)
        stop = int(rise.argmax())
        if rise[stop] > best.evidence:
            best = RowRange(float(rise[stop]), int(total[: stop + 1].argmin()), stop)
    return best
