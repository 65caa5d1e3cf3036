"""The samples of a step whose rollouts have a few turns, made without a store."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from conf.compose import compose
from conf.schema import Config
from runners.records.graph import build_segments
from runners.records.record import RolloutRecord, Turn
from runners.training.advantages import StepGroups
from runners.training.step_samples import StepSamples, StoredRollout, build_samples
from tests.fakes.records import a_rollout, a_turn


@functools.cache
def read_config(line: str) -> Config:
    """Return the configuration of overrides with blanks between them."""
    return compose(line.split())


def chain(index: int, length: int = 5, **changes: Any) -> Turn:
    """Return a turn that starts a chain of ``length`` tokens, two of them sampled."""
    return a_turn(
        index=index, segment=index, parent=None, prompt_kept=0,
        prompt_new=np.arange(length - 2, dtype=np.int32), **changes,
    )  # fmt: skip


LINEAR = [a_turn(index=0), a_turn(index=1), a_turn(index=2)]
BRANCHED = [
    chain(0),
    chain(1, thread="a1", branch="subagent"),
    chain(2, branch="compaction"),
    chain(3, branch="side"),
    chain(4),
]


def rollouts(*rewards: float | None, group: int = 0, sampled: int = 6) -> list[RolloutRecord]:
    """Return one group's counting rollouts."""
    return [
        a_rollout(
            f"train-000001-{group:02d}-{member:02d}",
            reward=reward, advantage=None, sampled_tokens=sampled, trained_tokens=0,
        )
        for member, reward in enumerate(rewards)
    ]  # fmt: skip


def build(
    records: list[RolloutRecord],
    turns_of: Callable[[str], list[Turn]],
    line: str = "fanout=segments",
) -> StepSamples:
    """Return the samples of records whose sessions have these turns; ``line``: overrides."""
    config = read_config(line)

    def load(record: RolloutRecord) -> StoredRollout:
        turns = turns_of(record.session_id)
        return StoredRollout(record, turns, build_segments(turns), lambda segment: None)

    return build_samples(StepGroups(config, records), load, config)


def samples_of(
    records: list[RolloutRecord], turns: list[Turn], line: str = "fanout=segments"
) -> StepSamples:
    """Return the samples of records whose sessions all have the same turns."""
    return build(records, lambda name: [replace(turn, session_id=name) for turn in turns], line)
