"""The training samples of a step: advantages → segments → samples, rollout by rollout.

A rollout is compared with its group before its segments are looked at: how many there are, or
whether any is left, does not touch the baseline. A rollout that cannot be read trains nothing, and
its siblings are trained as if nothing had happened.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from conf.errors import ExitCode, error_text
from conf.schema import Config
from conf.sections.training import RoutingRolloutConfig, TrainerConfig
from runners.records.chain_choice import DropReason
from runners.records.outcome import OutcomeClass
from runners.records.record import RolloutRecord, SegmentKind
from runners.records.routing import RoutingError
from runners.records.store import StoreError
from runners.training.advantages import StepGroups
from runners.training.fanout import FanOut, fan_out
from runners.training.gradient import has_gradient
from runners.training.sample import Sample
from runners.training.stored_rollout import LoadRollout
from runners.training.turn_credit import spread_over_tokens


@dataclass(frozen=True, slots=True)
class StepSamples:
    """The rollouts of a step and what is trained of them."""

    records: list[RolloutRecord]
    """Final records of the step with their advantages and their tokens that have a gradient."""
    rollouts: list[list[Sample]]
    """Samples of each rollout that has an advantage; empty if none of its segments is trained."""
    kinds: list[list[SegmentKind]]
    """Kinds of the samples' segments."""
    groups: StepGroups
    unbuilt: dict[str, str]
    """Rollouts whose samples could not be built, or whose teacher failed, with the reason; their
    rewards still count.
    """
    in_loss: int
    """Sampled tokens over whose losses the step averages."""
    trained: Counter[SegmentKind]
    """Those of them that have a gradient (``has_gradient``), by kind of their segment."""
    dropped: Counter[DropReason]
    """Segments of ``rollouts`` that did not become samples."""
    cut_tokens: int = 0
    """Tokens of final segments beyond ``fanout.max_segment_tokens``."""


def build_samples(groups: StepGroups, load: LoadRollout, config: Config) -> StepSamples:
    """Return the samples of a step's final rollouts; each that has an advantage is loaded once.

    Raises StoreError if the disk is gone, and RoutingError if captured routing belongs to other
    tokens and ``routing_replay.on_fault`` is "stop".
    """
    records: list[RolloutRecord] = []
    fans: list[FanOut] = []
    unbuilt: dict[str, str] = {}
    trained: Counter[SegmentKind] = Counter()
    for record, advantage in groups.advantages:
        own: Counter[SegmentKind] = Counter()
        if advantage is not None:
            credits = groups.turn_credits.get(record.rollout_id)
            fan = _fan_out(record, advantage, credits, load, config, unbuilt)
            own = _count_trained(fan.samples, fan.kinds, config.trainer)
            fans.append(fan)
        records.append(replace(record, advantage=advantage, trained_tokens=own.total()))
        trained += own
    return StepSamples(
        records=records,
        rollouts=[fan.samples for fan in fans],
        kinds=[fan.kinds for fan in fans],
        groups=groups,
        unbuilt=unbuilt,
        in_loss=sum(int(sample.loss_mask.sum()) for fan in fans for sample in fan.samples),
        trained=trained,
        dropped=sum((fan.dropped for fan in fans), Counter()),
        cut_tokens=sum(fan.cut_tokens for fan in fans),
    )


def leave_out(step: StepSamples, reasons: Mapping[str, str], trainer: TrainerConfig) -> StepSamples:
    """Return the step without the samples of some rollouts; their rewards still count."""
    if not reasons:
        return step
    pairs = [
        (samples, kinds) if not samples or samples[0].rollout_id not in reasons else ([], [])
        for samples, kinds in zip(step.rollouts, step.kinds, strict=True)
    ]
    counts = (_count_trained(samples, kinds, trainer) for samples, kinds in pairs)
    return replace(
        step,
        records=[
            replace(record, trained_tokens=0) if record.rollout_id in reasons else record
            for record in step.records
        ],
        rollouts=[samples for samples, _ in pairs],
        kinds=[kinds for _, kinds in pairs],
        unbuilt=step.unbuilt | dict(reasons),
        in_loss=sum(int(sample.loss_mask.sum()) for samples, _ in pairs for sample in samples),
        trained=sum(counts, Counter()),
    )


def _count_trained(
    samples: Sequence[Sample], kinds: Sequence[SegmentKind], trainer: TrainerConfig
) -> Counter[SegmentKind]:
    """Return a rollout's tokens that have a gradient, by kind of their segment."""
    trained: Counter[SegmentKind] = Counter()
    for sample, kind in zip(samples, kinds, strict=True):
        if has_gradient(sample, trainer):
            trained[kind] += int(sample.loss_mask.sum())
    return trained


def _fan_out(
    record: RolloutRecord,
    advantage: float,
    credits: Sequence[float] | None,
    load: LoadRollout,
    config: Config,
    unbuilt: dict[str, str],
) -> FanOut:
    """Return a rollout's samples; of one that cannot be read none, and note it in ``unbuilt``."""
    unfinished = record.outcome.outcome_class is OutcomeClass.BUDGET
    if unfinished and not config.trainer.train_unfinished:
        return FanOut([], [], Counter(("unfinished",)))
    try:
        stored = load(record)
        return fan_out(
            record.rollout_id,
            stored.segments,
            advantage,
            config.fanout,
            stored.routing,
            spread_over_tokens(credits, stored.turns),
        )
    except (Exception, CancelledError) as error:  # one rollout's damage is not its siblings'
        if isinstance(error, StoreError) and error.exit_code is ExitCode.SERVICE_GONE:
            raise  # the disk's, not the rollout's
        if isinstance(error, RoutingError) and _stops_at_bad_routing(config):
            raise
        unbuilt[record.rollout_id] = f"{type(error).__name__}: {error_text(error)}"
        return FanOut([], [], Counter())


def _stops_at_bad_routing(config: Config) -> bool:
    mode = config.routing_replay
    return isinstance(mode, RoutingRolloutConfig) and mode.on_fault == "stop"
