"""The results of a run, read from its store alone: summary, evaluations, lines of metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from conf.errors import ExitCode
from runners.observe.adviser.metric_lines import MetricLines
from runners.observe.figures.statistics import (
    Interval,
    pass_at_k,
    task_interval,
    wilson_interval,
)
from runners.observe.figures.training_counts import count_training
from runners.observe.live.status import read_best, read_outcomes
from runners.records.record import TASK_SET, RolloutRecord
from runners.records.session_summary import mean
from runners.records.store import EvaluationRow, RunStore, StepRow


@dataclass(frozen=True, slots=True)
class CampaignResult:
    """The end of a run and its summary."""

    summary: dict[str, Any]
    """``run_dir, steps, eval: {first, last, interval}, best_checkpoint: {step, solve_rate, path},
    reward, k3, wall_s, rollouts, outcomes, groups: {total, flat, dropped}, tokens: {sampled,
    in_loss, trained, examples}``, reward and k3 as means over steps, groups and tokens as
    ``count_training`` has them; with routing replay also ``routing: {captured, disagree_token, k3,
    k3_native}``.
    """
    exit_code: ExitCode
    message: str = ""
    """The reason of an early end; empty when the run is done."""
    stop_requested: bool = False
    """True if a signal came, even if there was nothing left to interrupt."""


def summarize(store: RunStore, *, wall_s: float) -> dict[str, Any]:
    """Return the summary of a run: finished steps, first and last evaluation, final rollouts.

    ``eval.last`` and its ``interval``, of 95 %, are None until there is a second evaluation,
    ``best_checkpoint`` (its step, path
    and held-out solve rate) without one that was evaluated.
    """
    rows = [row for row in store.steps() if row.state == "done"]
    evaluations = store.evaluations()
    outcomes = read_outcomes(store)
    return {
        "run_dir": str(store.run_dir),
        "steps": len(rows),
        "eval": {
            "first": evaluations[0].result["solve_rate"] if evaluations else None,
            "last": evaluations[-1].result["solve_rate"] if len(evaluations) > 1 else None,
            "interval": find_interval(store, evaluations[-1]) if len(evaluations) > 1 else None,
        },
        "best_checkpoint": read_best(store),
        "reward": _mean(rows, "train/reward_mean"),
        "k3": _mean(rows, "policy/k3"),
        "wall_s": round(wall_s, 1),
        "rollouts": sum(outcomes.values()),
        "outcomes": dict(sorted(outcomes.items())),
        **asdict(count_training(rows)),
        **_routing(rows),
    }


def find_interval(store: RunStore, row: EvaluationRow) -> Interval | None:
    """Return the 95 % interval of an evaluation's solve rate; None without a rate.

    Wilson's with one attempt per task, else over tasks: attempts at one task are not independent.
    """
    rate, of = row.result.get("solve_rate"), row.result.get("graded", row.result.get("tasks"))
    if rate is None:
        return None
    if "pass@2" in row.result:
        return task_interval(_task_rates(store, row.step))
    return wilson_interval(round(rate * (of or 0)), of or 0)


def _task_rates(store: RunStore, step: int) -> list[float]:
    """Return each task's solve rate in the evaluation after ``step`` steps."""
    return [
        rate
        for (rate,) in store.query(
            "SELECT avg(solved) FROM rollout WHERE counts AND split = 'eval' "
            f"AND solved IS NOT NULL AND step = {step:d} GROUP BY group_index"
        )
    ]


def summarize_evaluation(records: Sequence[RolloutRecord]) -> dict[str, Any]:
    """Return the stored result of an evaluation.

    ``solve_rate`` is the mean over tasks of the share of their graded rollouts that solve them
    (pass@1), ``pass@k`` the mean of its estimate over the tasks with k graded rollouts or more, for
    each k from 2 to the number of attempts; ``solve_rate/NAME`` is that of one set of a mixture.
    ``tasks`` and ``graded`` count tasks and rollouts.
    """
    graded = [record for record in records if record.solved is not None]
    counts = _count_solved(graded)
    names = sorted({name for record in records if (name := record.extra.get(TASK_SET))})
    by_set = {name: [r for r in graded if r.extra.get(TASK_SET) == name] for name in names}
    attempts = max(_count_groups(records).values(), default=1)
    return {
        "solve_rate": _solve_rate(graded),
        **{f"pass@{k}": _pass_rate(counts, k) for k in range(2, attempts + 1)},
        **{f"solve_rate/{name}": _solve_rate(found) for name, found in by_set.items()},
        "tasks": len(_count_groups(records)),
        "graded": len(graded),
        "turns_mean": mean([float(record.turns) for record in graded]),
    }


def _count_solved(graded: Sequence[RolloutRecord]) -> list[tuple[int, int]]:
    """Return how many rollouts of each task are graded, and how many of them solve it."""
    solved = Counter(record.group for record in graded if record.solved)
    return [(number, solved[group]) for group, number in _count_groups(graded).items()]


def _solve_rate(graded: Sequence[RolloutRecord]) -> float | None:
    return _pass_rate(_count_solved(graded), 1)


def _count_groups(records: Sequence[RolloutRecord]) -> Counter[int]:
    return Counter(record.group for record in records)


def _pass_rate(counts: Sequence[tuple[int, int]], k: int) -> float | None:
    """Return the mean estimate of pass@k over tasks (graded, solved) with k graded or more."""
    return mean([pass_at_k(graded, solved, k) for graded, solved in counts if graded >= k])


def _mean(steps: list[StepRow], name: str) -> float | None:
    """Return the mean of a metric over the steps in which it is known."""
    known = [step.metrics[name] for step in steps if step.metrics.get(name) is not None]
    return sum(known) / len(known) if known else None


def _routing(steps: list[StepRow]) -> dict[str, Any]:
    """Return the means over steps of the replay's metrics, ``k3_native`` over the steps in which it
    was measured; nothing without replay.
    """
    names = ("captured", "disagree_token", "k3", "k3_native")
    figures = {name: _mean(steps, f"r3/{name}") for name in names}
    return {"routing": figures} if figures["k3"] is not None else {}


def metrics_rows(store: RunStore) -> list[dict[str, Any]]:
    """Return the lines of ``metrics.jsonl``: one per finished step, each with the last evaluation
    made during it, and with the adviser's alarms after it.
    """
    return MetricLines(store).read()
