"""Fan-out: turn a rollout's segments into samples that share its advantage.

The advantage comes from the rollout's group, before any fan-out; the loss is averaged per rollout
(``token_weights.compute_token_weights``). Invariants: a sampled token is trained at most once over
the samples of its rollout; a segment is kept or dropped whole, except that a final one may lose its
tail; what is dropped is counted with its reason; an advantage of 0 stays exactly 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from conf.sections.plugin import PluginConfig
from conf.sections.training import (
    FanoutConfig,
    RewardShare,
    SegmentsFanoutConfig,
)
from runners.records.chain_choice import DropReason, choose_segments, divide_advantage
from runners.records.record import LogprobArray, Segment, SegmentKind
from runners.records.routing import Routing
from runners.system.plugins import PluginFailedError, check_number, describe_failure, load_shared
from runners.training.sample import Sample


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
