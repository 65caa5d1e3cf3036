"""Compares runs by their results and configurations, read from their stores alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conf.keys import flatten
from runners.observe.figures.curves import REWARD, SOLVE_RATE, STEP_S, metric_points
from runners.observe.live.result import summarize
from runners.observe.report.paired import Verdicts, compare_tasks, read_verdicts
from runners.observe.report.report_data import RunDocument, read_document
from runners.observe.report.seeds import pool_seeds
from runners.records.store import RunStore

SEED = "seed"
CURVES = (SOLVE_RATE, REWARD, "tokens/trained", "tokens/per_s", STEP_S, "policy/k3")
"""Metrics whose values of all steps are compared."""
_OWN = ("run.dir",)
"""Keys in which every two runs differ."""


def compare_runs(run_dirs: Sequence[Path]) -> dict[str, Any]:
    """Return ``runs``, a document of each; ``seeds``, one of those that differ in their seed alone;
    ``pairs``, each run against the first over the tasks that both measured (``PairedResult``);
    ``tasks``: task → [graded, solved] in each run's last evaluation, None in a run that did not
    measure it, the least solved first; and ``differences``: key → value in each run, None in a run
    that lacks the key. Raises StoreError.
    """
    names = [path.resolve().name for path in run_dirs]
    runs, configs, verdicts, ids = [], [], [], []
    for path, name in zip(run_dirs, names, strict=True):
        with RunStore.open(path, read_only=True) as store:
            document = read_document(store)
            summary = summarize(store, wall_s=document.wall_s)
            verdicts.append(read_verdicts(store))
            ids.append(store.run_id)
        label = name if names.count(name) == 1 else str(path)
        runs.append({"label": label, **summary, **_further(document, summary)})
        configs.append(dict(flatten(document.config)))
    keys = dict.fromkeys(key for config in configs for key in config if key not in _OWN)
    values = {key: [config.get(key) for config in configs] for key in keys}
    differences = {
        key: found for key, found in values.items() if any(one != found[0] for one in found)
    }
    pairs = [
        pair.to_dict()
        for run, measured in zip(runs[1:], verdicts[1:], strict=True)
        if (pair := compare_tasks(run["label"], measured, runs[0]["label"], verdicts[0]))
    ]
    return {
        "runs": runs,
        "seeds": _pool(runs, ids, differences),
        "pairs": pairs,
        "tasks": _list_tasks(verdicts),
        "differences": differences,
    }


def _list_tasks(
    verdicts: Sequence[Mapping[str, Verdicts]],
) -> dict[str, list[tuple[int, int] | None]]:
    def rate(task: str) -> float:
        found = [measured[task].rate for measured in verdicts if task in measured]
        return sum(found) / len(found)

    names = dict.fromkeys(task for measured in verdicts for task in measured)
    return {
        task: [
            (measured[task].graded, measured[task].solved) if task in measured else None
            for measured in verdicts
        ]
        for task in sorted(names, key=lambda task: (rate(task), task))
    }


def _pool(
    runs: Sequence[dict[str, Any]], ids: Sequence[str], differences: dict[str, list[Any]]
) -> list[dict[str, Any]]:
    """Return the pools of runs that differ in their seed alone; a copy of a run is no other run."""
    settings = [
        " ".join(
            f"{key.rpartition('.')[2]}={found[index]}"
            for key, found in differences.items()
            if key != SEED
        )
        for index in range(len(runs))
    ]
    distinct = dict(zip(zip(ids, settings, strict=True), runs, strict=True))
    return pool_seeds(list(distinct.values()), [setting for _, setting in distinct])


def _further(document: RunDocument, summary: dict[str, Any]) -> dict[str, Any]:
    """Return what a campaign's summary lacks; an evaluation's own rate is its last one."""
    status = document.status
    rates = [
        {"name": r.name, "step": r.step, "value": r.value, "interval": [r.low, r.high]}
        for r in document.rates
    ]
    rate = document.rates[0] if document.rates else None
    measured = {
        "first": None,
        "last": rate and rate.value,
        "interval": rate and (rate.low, rate.high),
    }
    return {
        "benchmark": status.benchmark,
        "state": status.state,
        "exit_code": status.exit_code,
        "message": status.message,
        "eval": measured if status.benchmark else summary["eval"],
        "rates": rates,
        "curves": {name: points for name in CURVES if (points := _curve(document, name))},
        "intervals": {SOLVE_RATE: document.intervals},
        "cost": document.cost.to_dict(),
    }


def _curve(document: RunDocument, name: str) -> list[tuple[int, float]]:
    return [
        (step, value) for step, value in metric_points(document.steps, name) if value is not None
    ]
