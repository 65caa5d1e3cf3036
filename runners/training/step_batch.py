"""What a step trains on, made of its rollouts: groups → advantages → segments → samples.

A rollout is compared with its group before its segments are looked at, so how many there are, or
whether any is left, does not touch the baseline. A batch has a row for every rollout, also for one
that failed: a placeholder, which weighs nothing.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np

from conf.errors import ExitCode, error_text
from conf.schema import Config
from conf.sections.training import RoutingRolloutConfig
from runners.store.store_error import StoreError
from runners.training.advantages import group_advantages
from runners.training.fanout import DropReason, FanOut, fan_out
from runners.training.placeholder import minimal, placeholder
from runners.training.sample import Sample
from runners.trajectory.counters import SUMMED_COUNTERS
from runners.trajectory.outcome import OutcomeClass
from runners.trajectory.record import RolloutRecord, Segment, SegmentKind
from runners.trajectory.routing import (
    Routing,
    RoutingError,
    RoutingShape,
    TurnRouting,
    build_segment_routing,
)


@dataclass(frozen=True, slots=True)
class Batch:
    """What a step trains on."""

    records: list[RolloutRecord]
    """Counting rollouts with their advantages, all of the step."""
    rollouts: list[list[Sample]]
    """Samples of each rollout that has an advantage; empty if none of its segments is trained."""
    rows: list[list[Sample]]
    """Samples of every record, in order, never empty: a placeholder where nothing is trained."""
    dropped_groups: list[int]
    """Groups without enough graded rollouts for a baseline."""
    flat_groups: list[int]
    """Groups whose rewards are all equal: advantage 0, or none if such groups are replaced."""
    unbuilt: dict[str, str]
    """Rollouts whose samples could not be made, with the reason; their rewards still count."""
    trained: Counter[SegmentKind]
    """Trained tokens, by kind of their segment."""
    dropped: Counter[DropReason]
    """Segments of ``rollouts`` that did not become samples."""


@dataclass(frozen=True, slots=True)
class Sessions:
    """What the sessions of rollouts hold, by session id, and what stands in where they hold
    nothing.
    """

    chains: Callable[[str], Sequence[Segment]]
    routing: Callable[[str], Mapping[int, TurnRouting]] = lambda _: {}
    """Of a session's turns; asked only if there is a shape."""
    shape: RoutingShape | None = None
    """Set if the batch's samples carry routing."""
    pad: int = 0
    """Token of placeholders."""


def make_batch(records: Iterable[RolloutRecord], sessions: Sessions, config: Config) -> Batch:
    """Return the batch of a step's counting rollouts."""
    groups: dict[int, list[RolloutRecord]] = defaultdict(list)
    for record in records:
        groups[record.group].append(record)
    entered: list[RolloutRecord] = []
    fans: list[FanOut] = []
    rows: list[list[Sample]] = []
    dropped, flat = [], []
    unbuilt: dict[str, str] = {}
    for group, members in groups.items():
        advantages = _advantages(members, config)
        graded = [advantage for advantage in advantages if advantage is not None]
        if not graded:
            dropped.append(group)
        elif not any(graded):
            flat.append(group)
            if config.rollout.replace_flat:
                advantages = [None] * len(members)
        for record, advantage in zip(members, advantages, strict=True):
            trained, samples = 0, []
            if advantage is not None:
                fan = _fan_out(record, advantage, sessions, config, unbuilt)
                trained, samples = fan.trained.total(), fan.samples
                fans.append(fan)
            entered.append(replace(record, advantage=advantage, trained_tokens=trained))
            rows.append(samples or [_stand_in(record, sessions)])
    return Batch(
        records=entered,
        rollouts=[fan.samples for fan in fans],
        rows=rows,
        dropped_groups=dropped,
        flat_groups=flat,
        unbuilt=unbuilt,
        trained=sum((fan.trained for fan in fans), Counter()),
        dropped=sum((fan.dropped for fan in fans), Counter()),
    )


def untrainable_groups(records: Iterable[RolloutRecord], config: Config) -> list[int]:
    """Return the groups that another task should stand in for: those without a baseline and, with
    ``rollout.replace_flat``, those whose rewards are all equal.
    """
    groups: dict[int, list[RolloutRecord]] = defaultdict(list)
    for record in records:
        groups[record.group].append(record)
    lacking = []
    for group, members in groups.items():
        graded = [value for value in _advantages(members, config) if value is not None]
        if not graded or (config.rollout.replace_flat and not any(graded)):
            lacking.append(group)
    return lacking


def _advantages(members: Sequence[RolloutRecord], config: Config) -> list[float | None]:
    return group_advantages(
        [record.reward for record in members],
        min_group=config.trainer.min_group,
        normalize_std=config.trainer.normalize_std,
    )


def _fan_out(
    record: RolloutRecord,
    advantage: float,
    sessions: Sessions,
    config: Config,
    unbuilt: dict[str, str],
) -> FanOut:
    """Make a rollout's samples; one whose turns cannot be read has none, and is noted."""
    unfinished = record.outcome.outcome_class is OutcomeClass.BUDGET
    if unfinished and not config.trainer.train_unfinished:
        return FanOut([], Counter(), Counter(("unfinished",)))
    shape = sessions.shape
    try:
        turns = sessions.routing(record.session_id) if shape is not None else {}

        def routing(segment: Segment) -> Routing | None:
            return None if shape is None else build_segment_routing(segment, turns, shape)

        segments = sessions.chains(record.session_id)
        return fan_out(record.rollout_id, segments, advantage, config.fanout, routing)
    except (Exception, CancelledError) as error:  # one rollout's damage is not its siblings'
        if isinstance(error, StoreError) and error.exit_code is ExitCode.SERVICE_GONE:
            raise  # the disk's, not the rollout's
        if isinstance(error, RoutingError) and _stops(config):
            raise
        unbuilt[record.rollout_id] = f"{type(error).__name__}: {error_text(error)}"
        return FanOut([], Counter(), Counter())


def _stops(config: Config) -> bool:
    """Whether routing that cannot be a rollout's own stops the run."""
    return isinstance(config.routing_replay, RoutingRolloutConfig) and (
        config.routing_replay.on_fault == "stop"
    )


def _stand_in(record: RolloutRecord, sessions: Sessions) -> Sample:
    """Return the placeholder of a rollout: of its first prompt if it has one, else the constant."""
    try:
        first = sessions.chains(record.session_id)[0]
        prompt = first.tokens[: int(np.argmax(first.loss_mask))]
        return placeholder(record.rollout_id, prompt, sessions.pad, sessions.shape)
    except (Exception, CancelledError):  # whatever is wrong with it, the constant row is right
        return minimal(record.rollout_id, sessions.pad, sessions.shape)


def step_metrics(batch: Batch, rollout_s: float) -> dict[str, Any]:
    """Return what the rollouts of a step say; graded rollouts only, where a grade is needed.

    The keys are the same in every step. ``fanout/`` counts segments.
    """
    graded = [record for record in batch.records if record.reward is not None]
    sampled = sum(record.sampled_tokens for record in graded)
    trained = batch.trained.total()
    by_kind = {f"tokens/trained_{kind}": batch.trained[kind] for kind in get_args(SegmentKind)}
    return {
        "train/reward_mean": mean(
            [record.reward for record in graded if record.reward is not None]
        ),
        "train/solve_rate": mean([float(bool(record.solved)) for record in graded]),
        "rollout/turns_mean": mean([float(record.turns) for record in graded]),
        "rollout/turns_max": max((record.turns for record in graded), default=0),
        "rollout/ungraded": len(batch.records) - len(graded),
        "rollout/retried": sum(record.attempt > 0 for record in batch.records),
        **{
            f"rollout/{name}": sum(_counter(record, name) for record in graded)
            for name in SUMMED_COUNTERS
        },
        "rollout/groups": len({record.group for record in batch.records}),
        "rollout/groups_dropped": len(batch.dropped_groups),
        "rollout/groups_flat": len(batch.flat_groups),
        "rollout/unbuilt": len(batch.unbuilt),
        "fanout/segments_mean": mean([float(len(samples)) for samples in batch.rollouts]),
        "fanout/dropped_long": batch.dropped["long"],
        "fanout/dropped_many": batch.dropped["many"],
        "fanout/untrained_side": batch.dropped["side"],
        "fanout/untrained_unfinished": batch.dropped["unfinished"],
        "tokens/sampled": sampled,
        "tokens/trained": trained,
        "tokens/trained_share": trained / sampled if sampled else None,
        **by_kind,
        **_staleness(batch),
        "tokens/per_s": sampled / max(rollout_s, 1e-9),
        "time/rollout_s": rollout_s,
    }


def _staleness(batch: Batch) -> dict[str, float | None]:
    """Say how old the weights were that sampled the trained tokens, in updates before the newest
    among them.
    """
    parts = [
        sample.weight_versions[sample.loss_mask]
        for samples in batch.rollouts
        for sample in samples
        if sample.weight_versions is not None
    ]
    versions = np.concatenate(parts) if parts else np.zeros(0, np.int32)
    age = versions.max() - versions if len(versions) else versions
    return {
        "policy/staleness_mean": float(age.mean()) if len(age) else None,
        "policy/staleness_max": int(age.max()) if len(age) else None,
    }


def _counter(record: RolloutRecord, name: str) -> int:
    """Return a figure of the rollout's gateway session."""
    return int(record.extra.get("session", {}).get(name, 0))


def mean(values: Sequence[float]) -> float | None:
    """Return the mean; None of nothing."""
    return sum(values) / len(values) if values else None
