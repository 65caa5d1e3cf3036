"""The steps of a run as the adviser judges them: metrics, outcomes, findings about the data.

Invariant: a history is plain data, so that every illness is a pure function of it. Runs of older
versions lack metrics; a figure that is not known is None and never an alarm.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from statistics import fmean, median
from typing import Any

from runners.records.outcome import OutcomeClass
from runners.records.store import RunStore

DUPLICATES = "duplicates"
"""Kind of the event that names tasks which are in the data twice."""

JUDGED = frozenset(
    (
        *("cheating/signs", "cheating/tampered", "disk/free_mb", "eval/solve_rate"),
        *("fanout/dropped_long", "fanout/dropped_many", "fanout/segments_mean"),
        *("policy/entropy", "policy/ess", "policy/k3", "policy/staleness_max"),
        *("r3/refused_samples", "rollout/compactions_missed", "rollout/edits"),
        "rollout/engine_retries",
        *("rollout/groups", "rollout/groups_flat", "rollout/pushed_back", "rollout/turns_mean"),
        *("time/step_s", "time/train_s", "tokens/per_s", "train/reward_mean", "train/solve_rate"),
        *("train/updates", "train/updates_failed"),
    )
)
"""The metrics by which a run is judged; of a long run a driver keeps no others."""


@dataclass(frozen=True, slots=True)
class StepFacts:
    """One finished step."""

    step: int
    metrics: Mapping[str, Any]
    """Those of ``JUDGED`` that are known, as in ``metrics.jsonl``: ``eval/…`` are of the evaluation
    that was made after the step.
    """
    outcomes: Mapping[str, int] = field(default_factory=dict)
    """Outcome code → training rollouts that ended so."""
    replaced: Mapping[str, int] = field(default_factory=dict)
    """Outcome code → attempts that another attempt replaced."""

    def number(self, name: str) -> float | None:
        """Return a metric; None if it is not known."""
        value = self.metrics.get(name)
        return float(value) if isinstance(value, int | float) else None

    def count(self, name: str) -> int:
        """Return a count among the metrics, 0 if it is not known."""
        value = self.number(name) or 0
        return int(value) if math.isfinite(value) else 0

    @property
    def graded(self) -> int:
        """Training rollouts with a verdict."""
        return sum(
            count
            for code, count in self.outcomes.items()
            if class_of(code) in (OutcomeClass.POLICY, OutcomeClass.BUDGET)
        )


@dataclass(frozen=True, slots=True)
class History:
    """The finished steps of a run up to the one that is judged."""

    config: Mapping[str, Any]
    """The run's configuration; older ones lack keys."""
    steps: Sequence[StepFacts]
    """Those with rollouts, in order: supervised steps have nothing to judge."""
    duplicates: Mapping[str, Any] = field(default_factory=dict)
    """Data of the event that names tasks which are there twice; empty: there are none."""

    def until(self, step: int) -> History:
        """Return the history as it was when a step had ended."""
        end = bisect_right(self.steps, step, key=lambda each: each.step)
        return replace(self, steps=self.steps[:end])

    def last(self, number: int) -> Sequence[StepFacts]:
        """Return the last steps; none if there are fewer than ``number``."""
        return self.steps[-number:] if len(self.steps) >= number else []

    def key(self, name: str, default: Any = None) -> Any:
        """Return the value of a key of the configuration, ``default`` if it is unset."""
        value: Any = self.config
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return default if value is None else value


def class_of(code: str) -> OutcomeClass | None:
    """Return the class of an outcome code, also of one that only a newer agentrl knows; None if
    its class is new, too.
    """
    with suppress(ValueError):
        return OutcomeClass(code.partition(".")[0])
    return None


def known(steps: Sequence[StepFacts], name: str) -> list[float]:
    """Return a metric of the steps in which it is known."""
    return [value for step in steps if (value := step.number(name)) is not None]


def first_known(steps: Sequence[StepFacts], name: str, number: int) -> list[float]:
    """Return a metric of the first steps in which it is known."""
    found = (value for step in steps if (value := step.number(name)) is not None)
    return list(islice(found, number))


def mean_of(steps: Sequence[StepFacts], name: str) -> float | None:
    """Return the mean of a metric over the steps in which it is known."""
    values = known(steps, name)
    return fmean(values) if values else None


def median_of(steps: Sequence[StepFacts], name: str) -> float | None:
    """Return the median of a metric over the steps in which it is known."""
    values = known(steps, name)
    return median(values) if values else None


def total(steps: Sequence[StepFacts], name: str) -> int:
    """Return the sum of a count over steps."""
    return sum(step.count(name) for step in steps)


def name_steps(steps: Sequence[StepFacts]) -> str:
    """Return ``step 4`` or ``steps 4 to 6``."""
    first, last = steps[0].step, steps[-1].step
    return f"step {last}" if first == last else f"steps {first} to {last}"


def count_outcomes(
    steps: Sequence[StepFacts], wanted: Callable[[OutcomeClass | None], bool], *, replaced: bool
) -> Counter[str]:
    """Return the number of ends by outcome code, of the classes that are ``wanted``; with
    ``replaced`` also those of attempts that another one replaced.
    """
    found: Counter[str] = Counter()
    for step in steps:
        for ends in (step.outcomes, step.replaced) if replaced else (step.outcomes,):
            found.update({code: n for code, n in ends.items() if wanted(class_of(code))})
    return found


def read_history(store: RunStore) -> History:
    """Read the history of a run, which may be running; raises StoreError."""
    steps = [each for each in read_steps(store) if each.outcomes]
    return History(store.config(), steps, read_duplicates(store))


def read_steps(store: RunStore, first: int = 0) -> list[StepFacts]:
    """Read the finished steps from ``first`` on, supervised ones too; raises StoreError."""
    ends: dict[int, tuple[Counter[str], Counter[str]]] = {}
    for step, counts, code, number in store.query(
        "SELECT step, counts, code, count(*) FROM rollout WHERE split = 'train' AND step >= ? "
        "GROUP BY step, counts, code",
        (first,),
    ):
        ends.setdefault(step, (Counter(), Counter()))[0 if counts else 1][code] += number
    return [
        StepFacts(
            row["step"],
            {name: row[name] for name in JUDGED & row.keys()},
            *ends.get(row["step"], (Counter(), Counter())),
        )
        for row in store.metric_rows(first)
    ]


def read_duplicates(store: RunStore) -> Mapping[str, Any]:
    """Read which tasks are in the data twice; empty if none are known."""
    found = store.events(DUPLICATES)
    return found[-1].data if found else {}
