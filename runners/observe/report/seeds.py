"""Pool runs that differ in their seed alone: means, with an interval over the seeds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from runners.observe.figures.statistics import mean_interval
from runners.observe.figures.training_counts import count_trained
from runners.records.session_summary import mean


def pool_seeds(runs: Sequence[dict[str, Any]], settings: Sequence[str]) -> list[dict[str, Any]]:
    """Return a document for each setting that two runs or more have finished.

    ``settings``: of each run, the keys in which it differs from the others, but for the seed. A
    document has the form of a run's, with the means over the setting's runs. The interval of
    ``eval`` belongs to the mean of their last solve rates, and follows from how much they differ.
    """
    pools: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run, setting in zip(runs, settings, strict=True):
        if run.get("eval", {}).get("last") is not None:
            pools[setting].append(run)
    return [_pool(name, found) for name, found in pools.items() if len(found) > 1]


def _pool(name: str, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    last = [run["eval"]["last"] for run in runs]
    low, high = mean_interval(last) or (0.0, 1.0)
    return {
        "label": f"{name or 'all'}: {len(runs)} seeds",
        "seeds": len(runs),
        "steps": min(run["steps"] for run in runs),
        "eval": {
            "first": _mean([run["eval"]["first"] for run in runs]),
            "last": mean(last),
            "interval": [max(0.0, low), min(1.0, high)],
        },
        "reward": _mean([run["reward"] for run in runs]),
        "k3": _mean([run["k3"] for run in runs]),
        "tokens": {"trained": round(mean([count_trained(run["tokens"]) for run in runs]) or 0)},
        "wall_s": mean([run["wall_s"] for run in runs]),
        "state": "mean",
    }


def _mean(values: Sequence[float | None]) -> float | None:
    return mean([value for value in values if value is not None])
