"""Means of figures that rollouts bring under names of their own: parts of rewards, verifiers."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from runners.records.text import make_printable

MOST_NAMES = 64
NAME_CHARS = 64
"""A verifier may run where the policy can write: what it names must not flood the metrics."""


def means_by_name(
    prefix: str, rollouts: Sequence[Mapping[str, float]], *, summands: bool = False
) -> dict[str, float]:
    """Return ``prefix/NAME``: the mean over the rollouts that have it; of ``summands`` over all,
    one that is not there being 0.

    At most MOST_NAMES, those that most rollouts have; names are printable and cut at NAME_CHARS.
    """
    values: dict[str, list[float]] = defaultdict(list)
    for figures in rollouts:
        for name, value in figures.items():
            values["_".join(make_printable(name).split())[:NAME_CHARS]].append(value)
    chosen = sorted(values, key=lambda name: (-len(values[name]), name))[:MOST_NAMES]
    return {
        f"{prefix}/{name}": math.fsum(values[name])
        / (len(rollouts) if summands else len(values[name]))
        for name in chosen
    }
