"""The training samples of a step: advantages → segments → samples, rollout by rollout.

A rollout is read back from the store once: its turns are read once, their graph is built once. It
is compared with its group before its segments are looked at: how many there are, or whether any is
left, does not touch the baseline. One that cannot be read trains nothing, and its siblings are
trained as if nothing had happened.

The fan-out turns a rollout's segments into samples that share its advantage; the loss is averaged
per rollout (``sample.compute_token_weights``). Invariants: a sampled token is trained at most once
over the samples of its rollout; a segment is kept or dropped whole, except that a final one may
lose its tail; what is dropped is counted with its reason; an advantage of 0 stays exactly 0.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from conf.errors import ExitCode, error_text
from conf.schema import Config
from conf.sections.plugin import PluginConfig
from conf.sections.training import (
    FanoutConfig,
    RewardShare,
    RoutingRolloutConfig,
    SegmentsFanoutConfig,
    TrainerConfig,
)
from runners.records.graph import DropReason, build_segments, choose_segments, divide_advantage
from runners.records.outcome import OutcomeClass
from runners.records.record import LogprobArray, RolloutRecord, Segment, SegmentKind, Turn
from runners.records.routing import Routing, RoutingError, RoutingShape, build_segment_routing
from runners.records.store import RunStore, StoreError
from runners.system.plugins import PluginFailedError, check_number, describe_failure, load_shared
from runners.training.advantages import StepGroups, spread_over_tokens
from runners.training.sample import Sample, has_gradient


@dataclass(frozen=True, slots=True)
class StoredRollout:
    """One attempt with its turns, and the segments that they form."""

    record: RolloutRecord
    turns: Sequence[Turn]
    """Without their texts."""
    segments: Sequence[Segment]
    """In order of their first turns."""
    routing: Callable[[Segment], Routing | None]
    """Return a segment's captured routing; None if samples carry none. Raises RoutingError."""


LoadRollout = Callable[[RolloutRecord], StoredRollout]
"""Reads a rollout; raises StoreError, ChainError."""


def load_rollout(
    store: RunStore, shape: RoutingShape | None, record: RolloutRecord
) -> StoredRollout:
    """Read a rollout from the store, with routing if a ``shape`` is given.

    Raises StoreError, and ChainError if the turns do not fit together.
    """
    turns = store.turns(record.session_id, texts=False)
    captured = store.routing(record.session_id) if shape is not None else {}

    def routing(segment: Segment) -> Routing | None:
        return None if shape is None else build_segment_routing(segment, captured, shape)

    return StoredRollout(record, turns, build_segments(turns), routing)


@dataclass(frozen=True, slots=True)
class FanOut:
    """The samples of a rollout, and counts of its segments."""

    samples: list[Sample]
    """In order of the segments' first turns. A segment without a share has advantage 0.0: its
    tokens still count in the rollout's average.
    """
    kinds: list[SegmentKind]
    """Kind of each sample's segment."""
    dropped: Counter[DropReason]
    """Segments that did not become samples."""
    cut_tokens: int = 0
    """Tokens of the final segment beyond the cap (``fanout.long_final=cut``)."""


def fan_out(
    rollout_id: str,
    segments: Iterable[Segment],
    advantage: float,
    config: FanoutConfig,
    routing: Callable[[Segment], Routing | None] = lambda _: None,
    credit: Callable[[Segment], LogprobArray | None] = lambda _: None,
) -> FanOut:
    """Turn a rollout's segments, in order of their first turns, into samples.

    Each sample's advantage is ``advantage · share`` (see ``compute_shares``). ``routing`` returns a
    segment's captured routing and is called once for each kept segment, in order and uncut.
    ``credit`` returns the advantages of a segment's tokens; None: all have the sample's.

    Tokens that a kept segment shares with a dropped one are context in the kept one: they were
    sampled in the dropped one and go with it.
    """
    kept, left_out = choose_segments(segments, config)
    reward: RewardShare = config.reward if isinstance(config, SegmentsFanoutConfig) else "copy"
    samples = []
    fitting = [_cut(segment, config.max_segment_tokens) for segment in kept]
    for segment, whole, share in zip(fitting, kept, compute_shares(fitting, reward), strict=True):
        by_token = credit(whole)
        samples.append(
            Sample(
                rollout_id=rollout_id,
                tokens=segment.tokens,
                loss_mask=segment.loss_mask,
                logprobs=segment.logprobs,
                advantage=advantage * share if share else 0.0,
                weight_versions=segment.weight_versions,
                routing=_cut_routing(routing(whole), len(segment.tokens)),
                token_advantages=None if by_token is None else by_token[: len(segment.tokens)],
            )
        )
    cut_tokens = sum(len(segment.tokens) for segment in kept)
    cut_tokens -= sum(len(segment.tokens) for segment in fitting)
    return FanOut(
        samples, [segment.kind for segment in kept], Counter(left_out.values()), cut_tokens
    )


class SharePolicy(Protocol):
    """Divides a rollout's advantage among its kept segments (``fanout.reward``)."""

    def __call__(self, segments: Sequence[Segment]) -> Sequence[float]:
        """Return one finite factor of the advantage per segment, in order; 0: not trained.

        Should it raise, the rollout is not trained.
        """
        ...


def compute_shares(kept: Sequence[Segment], reward: RewardShare) -> list[float]:
    """Return each kept segment's share of the rollout's advantage, as a factor of it.

    Raises PluginFailedError, of a user's own rule.
    """
    if isinstance(reward, PluginConfig):
        return _call(load_shared(reward, SharePolicy, "fanout.reward"), kept)
    return divide_advantage(kept, reward)


def _call(policy: SharePolicy, kept: Sequence[Segment]) -> list[float]:
    name = "fanout.reward"
    try:
        found = list(policy(tuple(kept)))
    except (Exception, SystemExit) as error:
        raise describe_failure(name, error) from error
    if len(found) != len(kept):
        raise PluginFailedError(f"{name} returned {len(found)} shares of {len(kept)} segments")
    return [check_number(name, share) for share in found]


def _cut(segment: Segment, longest: int | None) -> Segment:
    """Return the segment without its tokens beyond ``longest``."""
    if longest is None or len(segment.tokens) <= longest:
        return segment
    return replace(
        segment,
        tokens=segment.tokens[:longest],
        loss_mask=segment.loss_mask[:longest],
        logprobs=segment.logprobs[:longest],
        weight_versions=segment.weight_versions[:longest],
    )


def _cut_routing(routing: Routing | None, tokens: int) -> Routing | None:
    if routing is None or len(routing.valid) == tokens:
        return routing
    return Routing(routing.experts[:tokens], routing.valid[:tokens])


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
