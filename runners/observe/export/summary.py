"""Sums up the exported rollouts for ``summary.json``."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from runners.observe.export.contract import ExportedRollout


@dataclass(slots=True)
class Moments:
    """Mean and variance of a stream of numbers by Welford's method; mutated by ``add``."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    """Sum of squared distances from the mean."""
    least: float = math.inf
    most: float = -math.inf

    def add(self, value: float) -> None:
        """Add a number."""
        self.count += 1
        away = value - self.mean
        self.mean += away / self.count
        self.squares += away * (value - self.mean)
        self.least, self.most = min(self.least, value), max(self.most, value)


@dataclass(slots=True)
class ExportSummary:
    """Sums over the rollouts; mutated by ``add``."""

    rollouts: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    rewards: dict[str, Moments] = field(default_factory=dict)
    """By split; only rewards that count."""
    solved: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    segments: Counter[str] = field(default_factory=Counter)
    """By kind."""
    sampled: Counter[str] = field(default_factory=Counter)
    """Sampled tokens by kind of segment."""
    turns: int = 0

    def add(self, rollout: ExportedRollout) -> None:
        """Add a rollout."""
        record = rollout.record
        self.rollouts += 1
        self.outcomes[record.outcome.code] += 1
        self.turns += len(rollout.turns)
        self.tokens.update(
            sampled=rollout.trajectory["tokens"]["sampled"], trained=record.trained_tokens
        )
        for chain in rollout.chains:
            self.segments[chain.kind] += 1
            self.sampled[chain.kind] += int(chain.loss_mask.sum())
        if record.reward is not None and record.outcome.meaning.reward_counts:
            self.rewards.setdefault(record.split, Moments()).add(record.reward)
            self.solved[record.split] += record.solved is True

    def result(self) -> dict[str, Any]:
        """Return the sums; the mean of no rollouts is null."""
        return {
            "rollouts": self.rollouts,
            "outcomes": dict(sorted(self.outcomes.items())),
            "turns_mean": self.turns / self.rollouts if self.rollouts else None,
            "tokens": {"sampled": self.tokens["sampled"], "trained": self.tokens["trained"]},
            "segments": {
                kind: {"count": count, "sampled": self.sampled[kind]}
                for kind, count in sorted(self.segments.items())
            },
            "reward": {
                split: {
                    "count": rewards.count,
                    "mean": rewards.mean,
                    "std": math.sqrt(rewards.squares / rewards.count),
                    "min": rewards.least,
                    "max": rewards.most,
                    "solve_rate": self.solved[split] / rewards.count,
                }
                for split, rewards in sorted(self.rewards.items())
            },
        }
