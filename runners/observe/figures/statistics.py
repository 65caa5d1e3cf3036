"""Estimate pass@k and its confidence intervals from a sample of rollouts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist, fmean, stdev

import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 10_000
"""Bootstrap resamples; with this many, an end of the interval is exact to about 0.2 percentage
points.
"""
_SEED = 0
"""Fixed, so that the same rollouts give the same report."""
_CELLS = 1 << 22
"""Most resampled values in memory at once (float64: 32 MiB)."""

Interval = tuple[float, float]
"""Low and high end of a confidence interval."""


def pass_at_k(samples: int, solved: int, k: int) -> float:
    """Return the unbiased estimate of pass@k, 1 - C(n - c, k) / C(n, k) for c of n samples solved
    (Chen et al. 2021, arXiv 2107.03374, eq. 1).

    Raises ValueError if k > n, where no unbiased estimate exists.

    Example: ``pass_at_k(samples=4, solved=1, k=2)`` is 0.5.
    """
    if not 0 <= solved <= samples or not 1 <= k <= samples:
        raise ValueError(f"pass@{k} of {samples} rollouts, {solved} of them solved")
    return 1.0 - math.comb(samples - solved, k) / math.comb(samples, k)


def bootstrap_interval(values: Sequence[float]) -> Interval | None:
    """Return the percentile bootstrap interval of the mean of ``values``; None without values.

    ``values`` has one value per task: tasks are resampled, not rollouts, because the rollouts of
    one task are not independent.
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


def task_interval(values: Sequence[float]) -> Interval | None:
    """Return the 95 % interval of the mean of one rate per task; None without tasks.

    The bootstrap's over tasks; Wilson's with a trial per task where every value is 0 or 1, or all
    are the same: the bootstrap of 0 of 4 is [0, 0], as if four tasks had proven it.

    Example: ``task_interval([0, 0, 0, 0])`` is (0.0, 0.49).
    """
    if len(set(values)) == 1 or set(values) <= {0.0, 1.0}:
        return wilson_interval(sum(values), len(values))
    return bootstrap_interval(values)


def wilson_interval(successes: float, trials: int) -> Interval | None:
    """Return Wilson's score interval of a rate (JASA 22, 1927, p. 209); None without trials."""
    if not trials:
        return None
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    rate, weight = successes / trials, z * z / trials
    middle = (rate + weight / 2) / (1 + weight)
    half = z / (1 + weight) * math.sqrt(rate * (1 - rate) / trials + weight / (4 * trials))
    return max(0.0, middle - half), min(1.0, middle + half)


_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's t at 97.5 %, for 1 to 9 degrees of freedom; beyond, the expansion of Cornish and Fisher
is exact to 0.003.
"""


def mean_interval(values: Sequence[float]) -> Interval | None:
    """Return Student's interval of the mean of few independent values; None with fewer than two."""
    freedom = len(values) - 1
    if freedom < 1:
        return None
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    expansion = z + (z**3 + z) / (4 * freedom)
    expansion += (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    quantile = _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else expansion
    middle, half = fmean(values), quantile * stdev(values) / math.sqrt(len(values))
    return middle - half, middle + half


def summarize_values(values: Iterable[float]) -> dict[str, float] | None:
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
