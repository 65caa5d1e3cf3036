"""Reads the data of a report from a run's store: sums over all attempts, and a few records."""

from __future__ import annotations

import heapq
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from conf.compose import changed_keys
from runners.campaign.result import find_interval, metrics_rows
from runners.evaluation.passes import estimate_passes
from runners.evaluation.statistics import wilson_interval
from runners.observe.cost import Cost, read_cost
from runners.observe.status import Status, read_store_status
from runners.observe.swimlane import name_end, without_texts
from runners.observe.task_rates import TaskRate, read_examples, read_task_rates
from runners.store.run_store import EventRow, RunStore
from runners.store.session_tables import SAMPLED_TOKENS
from runners.trajectory.outcome import OutcomeClass, OutcomeCode
from runners.trajectory.record import RolloutRecord

SLOWEST = 12
_MESSAGE = 160
"""Failures whose messages share so many first characters are counted as one."""
_CAUSES, _TAIL = 1_000, 1_200
"""Reasons that are told apart, and characters of a log: a policy may write what it likes."""
_NUMBER = re.compile(r"\d+")

UNGRADED = "no grade"


@dataclass(frozen=True, slots=True)
class SolveRate:
    """A solve rate with its 95 % interval."""

    name: str
    """"step 20", "pass@1"."""
    step: int
    value: float
    low: float
    high: float
    of: int
    """Rollouts, or tasks, it is the mean of."""


@dataclass(slots=True)
class Failure:
    """Attempts without a grade that ended alike."""

    code: str
    message: str
    first: RolloutRecord
    count: int = 0
    retried: int = 0
    """Those of them that another attempt replaced."""


@dataclass(slots=True)
class Cause:
    """Unsolved rollouts whose verdicts have the same reason, but for its numbers."""

    reason: str
    """That of the first of them."""
    rollout_id: str
    tail: str
    """End of the first one's test log."""
    count: int = 0


@dataclass(slots=True)
class Sums:
    """Sums over the attempts of a run; mutated by ``add``."""

    outcomes: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """Split → outcome code → rollouts."""
    ends: dict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """Training step → solved, unsolved or no grade → rollouts."""
    stages: dict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """Training step → stage → seconds of its rollouts together."""
    tokens: Counter[str] = field(default_factory=Counter)
    """Sampled tokens by their use: graded, ungraded, replaced, evaluation."""
    failures: dict[tuple[str, str], Failure] = field(default_factory=dict)
    causes: dict[str, Cause] = field(default_factory=dict)
    tampered: list[RolloutRecord] = field(default_factory=list)
    """Rollouts whose patch tampered with its grading."""
    tasks: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Group of an evaluation → its graded rollouts, and how many of them are solved."""
    slow: list[tuple[float, str, RolloutRecord]] = field(default_factory=list)
    """A heap of the rollouts that took longest."""

    def add(self, record: RolloutRecord) -> None:
        """Add an attempt."""
        graded = record.outcome.meaning.reward_counts and record.solved is not None
        if not graded and record.outcome.outcome_class is not OutcomeClass.CANCELLED:
            self._failed(record)
        if not record.counts:
            self.tokens["replaced"] += record.sampled_tokens
            return
        self.outcomes[record.split][record.outcome.code.value] += 1
        if record.outcome.code is OutcomeCode.POLICY_TAMPERED:
            self.tampered.append(without_texts(record))
        end = name_end(record) if graded else UNGRADED
        if graded and not record.solved:
            self._unsolved(record)
        if record.split == "train":
            self.ends[record.step][end] += 1
            self.stages[record.step].update(record.timings)
            self.tokens["graded" if graded else "ungraded"] += record.sampled_tokens
        else:
            self.tokens["evaluation"] += record.sampled_tokens
            if graded:
                seen, solved = self.tasks.get(record.group, (0, 0))
                self.tasks[record.group] = (seen + 1, solved + bool(record.solved))
        took = record.timings.get("total", 0.0), record.session_id
        if len(self.slow) < SLOWEST:
            heapq.heappush(self.slow, (*took, without_texts(record)))
        elif took > self.slow[0][:2]:
            heapq.heapreplace(self.slow, (*took, without_texts(record)))

    def _unsolved(self, record: RolloutRecord) -> None:
        verdict = record.verdict or {}
        reason = str(verdict.get("reason") or record.outcome.message or record.outcome.code.value)
        cause = self.causes.get(key := _NUMBER.sub("#", reason[:_MESSAGE]))
        if cause is None and len(self.causes) < _CAUSES:
            tail = str(verdict.get("log") or "").rstrip()[-_TAIL:]
            cause = self.causes[key] = Cause(reason, record.rollout_id, tail)
        if cause is not None:
            cause.count += 1

    def _failed(self, record: RolloutRecord) -> None:
        message = record.outcome.message
        key = (record.outcome.code.value, message[:_MESSAGE])
        failure = self.failures.setdefault(key, Failure(key[0], message, without_texts(record)))
        failure.count += 1
        failure.retried += not record.counts

    @property
    def slowest(self) -> list[RolloutRecord]:
        """The rollouts that took longest, the longest first."""
        return [record for _, _, record in sorted(self.slow, reverse=True)]


@dataclass(frozen=True, slots=True)
class BranchTotals:
    """The turns of one kind of branch, over all counting rollouts."""

    kind: str
    threads: int
    turns: int
    sampled: int


@dataclass(frozen=True, slots=True)
class BreakTotals:
    """Chains that could not be continued, for one reason."""

    kind: str
    count: int
    example: str
    session_id: str


@dataclass(frozen=True, slots=True)
class ReportData:
    """Data of the whole page."""

    status: Status
    config: dict[str, Any]
    changes: dict[str, Any]
    """Keys whose values are not the defaults."""
    written_at: float
    wall_s: float
    steps: list[dict[str, Any]]
    """Metrics of each finished step, ``step`` among them."""
    rates: list[SolveRate]
    """Held-out solve rates of a campaign; pass@1, pass@2, … of an evaluation."""
    sums: Sums
    branches: list[BranchTotals]
    breaks: list[BreakTotals]
    events: list[EventRow]
    cost: Cost
    task_rates: list[TaskRate] = field(default_factory=list)
    """Training tasks that were tried, the least solved first."""
    held_out_tasks: list[TaskRate] = field(default_factory=list)
    """Tasks that evaluations measured, likewise."""
    examples: dict[str, str] = field(default_factory=dict)
    """Training task → a rollout of it, one that does not solve it if there is one."""
    held_out_examples: dict[str, str] = field(default_factory=dict)
    """The same of the tasks that evaluations measured."""

    def kind(self, group: str) -> str:
        """Return the kind chosen in a configuration group."""
        section = self.config.get(group)
        return str(section.get("kind", "?")) if isinstance(section, dict) else "?"

    @property
    def routing(self) -> bool:
        """True if the configuration replays routing in training."""
        return self.kind("routing_replay") not in ("off", "?")


def read_report_data(store: RunStore) -> ReportData:
    """Read the data of a run, which may be running; raises StoreError."""
    state, config, status = store.state(), store.config(), read_store_status(store)
    sums = Sums()
    for record in store.each_rollout():
        sums.add(record)
    rates = list(_passes(sums, config) if status.benchmark else _held_out(store))
    return ReportData(
        status=status,
        config=config,
        changes=changed_keys(config),
        written_at=time.time(),
        wall_s=state.spent_s,
        steps=metrics_rows(store),
        rates=rates,
        sums=sums,
        branches=_branches(store),
        breaks=_breaks(store),
        events=store.events(),
        cost=read_cost(store, config, state.spent_s),
        task_rates=read_task_rates(store),
        held_out_tasks=read_task_rates(store, "eval"),
        examples=read_examples(store, "train"),
        held_out_examples=read_examples(store, "eval"),
    )


def solve_rate_intervals(facts: ReportData) -> list[tuple[int, float, float]]:
    """Return (step, low, high): Wilson's interval of each finished step's training solve rate."""
    found = []
    for step in (row["step"] for row in facts.steps if row["step"] in facts.sums.ends):
        ends = facts.sums.ends[step]
        interval = wilson_interval(ends["solved"], ends["solved"] + ends["unsolved"])
        if interval is not None:
            found.append((step, *interval))
    return found


def _held_out(store: RunStore) -> Iterator[SolveRate]:
    for row in store.evaluations():
        rate, of = row.result.get("solve_rate"), row.result.get("graded", row.result.get("tasks"))
        if rate is not None:
            low, high = find_interval(store, row) or (rate, rate)
            yield SolveRate(f"step {row.step}", row.step, rate, low, high, of or 0)


def _passes(sums: Sums, config: dict[str, Any]) -> Iterator[SolveRate]:
    """Yield pass@k over the tasks that an evaluation has graded so far."""
    attempts = int(config.get("eval", {}).get("attempts_per_task", 1))
    for each in estimate_passes(sums.tasks.values(), attempts):
        yield SolveRate(f"pass@{each.k}", each.k, each.value, *each.interval, each.tasks)


def _branches(store: RunStore) -> list[BranchTotals]:
    rows = store.query(
        f"""
        SELECT branch, count(DISTINCT session_id || ' ' || thread), count(*), sum({SAMPLED_TOKENS})
        FROM turn WHERE session_id IN (SELECT session_id FROM rollout WHERE counts)
        GROUP BY branch ORDER BY 4 DESC
        """
    )
    return [BranchTotals(*row) for row in rows]


def _breaks(store: RunStore) -> list[BreakTotals]:
    rows = store.query(
        """
        SELECT break_reason, count(*), min(session_id) FROM turn
        WHERE break_reason IS NOT NULL
        AND session_id IN (SELECT session_id FROM rollout WHERE counts)
        GROUP BY break_reason ORDER BY 2 DESC
        """
    )
    found: dict[str, BreakTotals] = {}
    for reason, number, session in rows:
        kind = reason.partition(":")[0]
        old = found.get(kind, BreakTotals(kind, 0, reason, session))
        found[kind] = replace(old, count=old.count + number)
    return list(found.values())
