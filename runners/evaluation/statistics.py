"""What a sample of rollouts says of a policy: pass@k, and how sure it is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist

import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 10_000
"""The 2.5 % quantile of so many resamples is itself known to about 0.2 percentage points."""
_SEED = 0
"""The same rollouts give the same report."""
_CELLS = 1 << 22
"""Resampled values in memory at once."""

Interval = tuple[float, float]
"""Low and high end."""


def pass_at_k(samples: int, solved: int, k: int) -> float:
    """Return the unbiased estimate of the chance that of ``k`` rollouts of a task one solves it
    (Chen et al. 2021, arXiv 2107.03374, eq. 1): 1 - C(n - c, k) / C(n, k).

    Raises ValueError for more than ``samples`` rollouts: there is no unbiased estimate then.
    """
    if not 0 <= solved <= samples or not 1 <= k <= samples:
        raise ValueError(f"pass@{k} of {samples} rollouts, {solved} of them solved")
    return 1.0 - math.comb(samples - solved, k) / math.comb(samples, k)


def bootstrap_interval(values: Sequence[float]) -> Interval | None:
    """Return the percentile bootstrap interval of the mean, resampling ``values``: one per task, so
    that several rollouts of one task do not pass for independent. None without values.
    """
    if not values:
        return None
    data = np.asarray(values, np.float64)
    rng = np.random.default_rng(_SEED)
    rows = max(1, _CELLS // len(data))
    means = [
        data[rng.integers(len(data), size=(min(rows, RESAMPLES - done), len(data)))].mean(axis=1)
        for done in range(0, RESAMPLES, rows)
    ]
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    return float(low), float(high)


def wilson_interval(successes: int, trials: int) -> Interval | None:
    """Return Wilson's score interval of a rate (JASA 22, 1927); None without trials."""
    if not trials:
        return None
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    rate, weight = successes / trials, z * z / trials
    middle = (rate + weight / 2) / (1 + weight)
    half = z / (1 + weight) * math.sqrt(rate * (1 - rate) / trials + weight / (4 * trials))
    return max(0.0, middle - half), min(1.0, middle + half)


def spread(values: Iterable[float]) -> dict[str, float] | None:
    """Return mean, median, 95 % quantile and maximum; None without values."""
    data = np.asarray(list(values), np.float64)
    if not len(data):
        return None
    median, high = np.quantile(data, [0.5, 0.95])
    return {
        "mean": float(data.mean()),
        "p50": float(median),
        "p95": float(high),
        "max": float(data.max()),
    }
