"""The steps of a run as the adviser judges them: metrics, outcomes, findings about the data.

Invariant: a history is plain data, so that every illness is a pure function of it. Runs of older
versions lack metrics; a figure that is not known is None and never an alarm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import Any

from runners.store.run_store import RunStore
from runners.trajectory.outcome import OutcomeClass, OutcomeCode

DUPLICATES = "duplicates"
"""Kind of the event that names tasks which are in the data twice."""


@dataclass(frozen=True, slots=True)
class StepFacts:
    """One finished step."""

    step: int
    metrics: Mapping[str, Any]
    """As in ``metrics.jsonl``, with the evaluation that was made after the step."""
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
        return int(self.number(name) or 0)

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
        return replace(self, steps=[each for each in self.steps if each.step <= step])

    def last(self, number: int) -> Sequence[StepFacts]:
        """Return the last steps; none if there are fewer than ``number``."""
        return self.steps[-number:] if len(self.steps) >= number else []

    def key(self, name: str, default: Any = None) -> Any:
        """Return the value of a key of the configuration, ``default`` if it is unset."""
        value: Any = self.config
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return default if value is None else value


def class_of(code: str) -> OutcomeClass:
    """Return the class of an outcome code."""
    return OutcomeCode(code).outcome_class


def known(steps: Sequence[StepFacts], name: str) -> list[float]:
    """Return a metric of the steps in which it is known."""
    return [value for step in steps if (value := step.number(name)) is not None]


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
    steps: Sequence[StepFacts], wanted: Callable[[OutcomeClass], bool], *, replaced: bool
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
    ends: dict[int, tuple[Counter[str], Counter[str]]] = {}
    for step, counts, code, number in store.query(
        "SELECT step, counts, code, count(*) FROM rollout WHERE split = 'train' "
        "GROUP BY step, counts, code"
    ):
        ends.setdefault(step, (Counter(), Counter()))[0 if counts else 1][code] += number
    steps = [
        StepFacts(row["step"], row, *ends.get(row["step"], (Counter(), Counter())))
        for row in store.metric_rows()
    ]
    doubled = store.events(DUPLICATES)
    return History(
        config=store.config(),
        steps=[each for each in steps if each.outcomes],
        duplicates=doubled[-1].data if doubled else {},
    )
