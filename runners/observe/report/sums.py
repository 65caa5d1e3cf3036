"""Sums over the attempts of a run: outcomes, stages, tokens, failures, a few rollouts by name."""

from __future__ import annotations

import heapq
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from runners.observe.figures.swimlane import name_end
from runners.records.outcome import OutcomeClass, OutcomeCode
from runners.records.record import RolloutRecord
from runners.records.text import make_printable, shorten

SLOWEST, FAILURES, CAUSES, TAMPERED = 12, 20, 12, 20
"""The most rollouts of each kind that are named; the number of all of them stands beside."""
_MESSAGE = 160
"""Failures whose messages share so many first characters are counted as one."""
_REASONS, _REASON, _TAIL = 1_000, 2_000, 1_200
"""Reasons that are told apart, and characters of one, and of a log: a policy may write what it
likes.
"""
_NUMBER = re.compile(r"\d+")

UNGRADED = "no grade"


@dataclass(slots=True)
class Failure:
    """Attempts without a grade that ended alike."""

    code: str
    message: str
    stage: str
    first: str
    """The first of these rollouts."""
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


@dataclass(frozen=True, slots=True)
class RolloutLine:
    """A rollout that the report names."""

    rollout_id: str
    step: int
    split: str
    task: str
    code: str
    message: str
    timings: dict[str, float]
    turns: int
    sampled: int


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
    tampered: list[RolloutLine] = field(default_factory=list)
    """Rollouts whose patch tampered with its grading."""
    tasks: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Group of an evaluation → its graded rollouts, and how many of them are solved."""
    slow: list[tuple[float, str, RolloutLine]] = field(default_factory=list)
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
            self.tampered.append(_line(record))
        if graded and not record.solved:
            self._unsolved(record)
        if record.split == "train":
            self.ends[record.step][name_end(record) if graded else UNGRADED] += 1
            self.stages[record.step].update(record.timings)
            self.tokens["graded" if graded else "ungraded"] += record.sampled_tokens
        else:
            self.tokens["evaluation"] += record.sampled_tokens
            if graded:
                seen, solved = self.tasks.get(record.group, (0, 0))
                self.tasks[record.group] = (seen + 1, solved + bool(record.solved))
        took = record.timings.get("total", 0.0), record.session_id
        if len(self.slow) < SLOWEST:
            heapq.heappush(self.slow, (*took, _line(record)))
        elif took > self.slow[0][:2]:
            heapq.heapreplace(self.slow, (*took, _line(record)))

    def _unsolved(self, record: RolloutRecord) -> None:
        verdict = record.verdict or {}
        reason = str(verdict.get("reason") or record.outcome.message or record.outcome.code.value)
        cause = self.causes.get(key := _NUMBER.sub("#", reason[:_MESSAGE]))
        if cause is None and len(self.causes) < _REASONS:
            tail = str(verdict.get("log") or "").rstrip()[-_TAIL:]
            cause = self.causes[key] = Cause(
                make_printable(shorten(reason, _REASON)), record.rollout_id, make_printable(tail)
            )
        if cause is not None:
            cause.count += 1

    def _failed(self, record: RolloutRecord) -> None:
        code, message = record.outcome.code.value, record.outcome.message
        failure = self.failures.setdefault(
            (code, message[:_MESSAGE]),
            Failure(code, message, record.outcome.stage.value, record.rollout_id),
        )
        failure.count += 1
        failure.retried += not record.counts

    def total(self) -> Totals:
        """Return the sums as they are now."""
        failures = sorted(self.failures.values(), key=lambda each: -each.count)
        causes = sorted(self.causes.values(), key=lambda each: -each.count)
        return Totals(
            outcomes={split: dict(counts) for split, counts in self.outcomes.items()},
            ends={step: dict(counts) for step, counts in self.ends.items()},
            stages={step: dict(spent) for step, spent in self.stages.items()},
            tokens=dict(self.tokens),
            failed=sum(each.count for each in failures),
            failures=failures[:FAILURES],
            failure_kinds=len(failures),
            unsolved=sum(each.count for each in causes),
            causes=causes[:CAUSES],
            cause_kinds=len(causes),
            tampered=self.tampered[-TAMPERED:],
            tampered_count=len(self.tampered),
            tampered_steps=dict(
                Counter(each.step for each in self.tampered if each.split == "train")
            ),
            slowest=[line for _, _, line in sorted(self.slow, reverse=True)],
        )


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums of a run as its document has them; the lists are cut."""

    outcomes: dict[str, dict[str, int]]
    """Split → outcome code → rollouts."""
    ends: dict[int, dict[str, int]]
    """Training step → solved, unsolved or no grade → rollouts."""
    stages: dict[int, dict[str, float]]
    """Training step → stage → seconds of its rollouts together."""
    tokens: dict[str, int]
    """Sampled tokens by their use: graded, ungraded, replaced, evaluation."""
    failed: int
    """Attempts without a grade."""
    failures: list[Failure]
    """The most frequent ones, of ``failure_kinds``."""
    failure_kinds: int
    unsolved: int
    """Rollouts of all ``causes``."""
    causes: list[Cause]
    cause_kinds: int
    tampered: list[RolloutLine]
    """The last ones."""
    tampered_count: int
    tampered_steps: dict[int, int]
    """Training step → rollouts that tampered."""
    slowest: list[RolloutLine]
    """The longest first."""


def _line(record: RolloutRecord) -> RolloutLine:
    return RolloutLine(
        rollout_id=record.rollout_id,
        step=record.step,
        split=record.split,
        task=record.task_id,
        code=record.outcome.code.value,
        message=record.outcome.message,
        timings=record.timings,
        turns=record.turns,
        sampled=record.sampled_tokens,
    )
