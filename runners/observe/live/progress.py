"""Counts how far a campaign is, for the live view.

Only the campaign mutates it, on its event loop. A reader on another thread takes ``snapshot()``,
which copies each container in one step.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from runners.observe.adviser.alarm import Alarm
from runners.observe.figures.curves import REWARD, SOLVE_RATE, STEP_S, Curve
from runners.records.text import make_printable
from runners.system.diagnostics import AttemptWatch

_RATE_WINDOW_S = 30.0
"""Period over which tokens per second are counted."""
_ETA_STEPS = 5
"""Number of last steps that the time left is estimated from; earlier ones had shorter rollouts."""
_NOTES = 8
EXAMPLES = "sft/examples"
"""Metric that only supervised steps have."""


@dataclass(slots=True)
class Progress:
    """Progress of a campaign or an evaluation."""

    run: str
    steps: int
    """Steps to do."""
    step: int = 0
    """Steps done."""
    phase: str = "starting"
    batch_done: int = 0
    batch_size: int = 0
    """Rollouts of the phase, done and in all."""
    watch: AttemptWatch = field(default_factory=AttemptWatch)
    """The attempts in flight."""
    in_flight: Counter[str] = field(default_factory=Counter)
    """Attempts by stage that other processes run; in a snapshot, all attempts."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """Rollouts that ended, by outcome code."""
    columns: Counter[str] = field(default_factory=Counter)
    """Verdicts of an evaluation: solved, unsolved, error."""
    rewards: Curve = field(default_factory=list)
    solve_rates: Curve = field(default_factory=list)
    """Solve rates of training rollouts."""
    evaluations: Curve = field(default_factory=list)
    """Held-out solve rates."""
    passes: dict[int, tuple[str, float]] = field(default_factory=dict)
    """Name and rate of pass@k by step, for evaluations with k > 1 attempts per task."""
    alarms: list[Alarm] = field(default_factory=list)
    """Findings of the adviser after the last step; replaced as a whole."""
    sampled_tokens: int = 0
    notes: deque[str] = field(default_factory=lambda: deque(maxlen=_NOTES))
    """The last messages."""
    noted: int = 0
    """Messages so far."""
    started_at: float = field(default_factory=time.monotonic)
    phase_at: float = field(default_factory=time.monotonic)
    """When the phase began."""
    step_s: list[float] = field(default_factory=list)
    """Duration of each step done by this process."""
    recent: deque[tuple[float, int]] = field(default_factory=deque)
    """When tokens were sampled, and how many."""

    def begin_phase(self, phase: str, batch_size: int = 0) -> None:
        """Enter a phase of ``batch_size`` rollouts."""
        self.phase, self.batch_done, self.batch_size = phase, 0, batch_size
        self.phase_at = time.monotonic()

    def add_rollout(self, outcome: str, tokens: int, *, batch: bool = True) -> None:
        """Count a rollout that ended; ``batch``: it is one of the phase's."""
        self.batch_done += batch
        self.outcomes[outcome] += 1
        self.add_tokens(tokens)

    def add_tokens(self, tokens: int) -> None:
        """Count tokens that were sampled just now."""
        now = time.monotonic()
        self.sampled_tokens += tokens
        self.recent.append((now, tokens))
        while self.recent and self.recent[0][0] < now - _RATE_WINDOW_S:
            self.recent.popleft()

    def add_step(
        self, step: int, reward: float | None, solve_rate: float | None, seconds: float
    ) -> None:
        """Count a finished step (the first is 1); None if none of its rollouts was graded."""
        self.step = step
        if reward is None or solve_rate is None:
            self.add_note(f"step {step}: no rollout was graded")
            return
        self.rewards.append((step, reward))
        self.solve_rates.append((step, solve_rate))
        self.step_s.append(seconds)

    def add_step_metrics(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Count a finished step whose metrics are in the store; note what a supervised one did."""
        if metrics.get(EXAMPLES):
            self.step = step
            self.add_note(_describe_supervised(step, metrics))
            return
        self.add_step(step, metrics.get(REWARD), metrics.get(SOLVE_RATE), metrics.get(STEP_S, 0.0))

    def add_evaluation(self, step: int, solve_rate: float | None) -> None:
        """Add the held-out solve rate after ``step`` steps; None if no rollout was graded."""
        if solve_rate is None:
            self.add_note(f"step {step}: no held-out rollout was graded")
        else:
            self.evaluations.append((step, solve_rate))

    def add_evaluation_result(self, step: int, result: Mapping[str, Any]) -> None:
        """Add an evaluation as the store has it."""
        passes = {name: rate for name, rate in result.items() if name.startswith("pass@")}
        for name, rate in passes.items():  # in order of k: the last one stays
            if rate is not None:
                self.passes[step] = name, rate
        self.add_evaluation(step, result.get("solve_rate"))

    def add_note(self, text: str) -> None:
        """Add a message, which is shown on one line."""
        self.notes.append(" ".join(make_printable(text).split()))
        self.noted += 1

    def notes_since(self, noted: int) -> list[str]:
        """Return the messages after the first ``noted``; only the last few are kept."""
        new = min(self.noted - noted, len(self.notes))
        return list(self.notes)[len(self.notes) - new :]

    def snapshot(self) -> Progress:
        """Return a copy that does not change any more."""
        return replace(
            self,
            in_flight=self.in_flight + Counter(one.stage for one in self.watch.in_flight()),
            outcomes=Counter(dict(self.outcomes)),
            columns=Counter(dict(self.columns)),
            rewards=list(self.rewards),
            solve_rates=list(self.solve_rates),
            evaluations=list(self.evaluations),
            passes=dict(self.passes),
            notes=self.notes.copy(),
            step_s=list(self.step_s),
            recent=self.recent.copy(),
        )

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start of this process's part."""
        return time.monotonic() - self.started_at

    @property
    def tokens_per_s(self) -> float:
        """Sampled tokens per second over the last 30 s."""
        since = max(time.monotonic() - _RATE_WINDOW_S, self.started_at)
        tokens = sum(count for at, count in self.recent if at >= since)
        return tokens / max(time.monotonic() - since, 1.0)

    def eta_s(self) -> float | None:
        """Return the estimated seconds left of the run (None until a step is done), or of the phase
        if the run has no steps.
        """
        if not self.steps and self.batch_done:
            each_s = (time.monotonic() - self.phase_at) / self.batch_done
            return each_s * (self.batch_size - self.batch_done)
        if not self.step_s:
            return None
        lately = self.step_s[-_ETA_STEPS:]
        begun = self.batch_done / self.batch_size if self.batch_size else 0.0
        left = max(self.steps - self.step - (begun if self.phase == "rollouts" else 0.0), 0.0)
        return left * sum(lately) / len(lately)


def _describe_supervised(step: int, metrics: Mapping[str, Any]) -> str:
    nll = metrics.get("sft/nll")
    return (
        f"step {step}: {metrics[EXAMPLES]:,} examples, {metrics.get('sft/tokens') or 0:,} tokens "
        f"trained, loss {'unknown' if nll is None else format(nll, '.4f')} per token, "
        f"{metrics.get(STEP_S) or 0.0:.1f} s"
    )
