"""Choose the chains of a rollout that are trained, and divide its advantage among them.

The trainer does it with the chains of a step; a reader of the store does it again, to tell why a
chain is not in the loss. Invariant: a chain is kept or dropped whole, but a final one may lose its
tail.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from conf.sections.plugin import PluginConfig
from conf.sections.training import (
    CollapseFanoutConfig,
    FanoutConfig,
    LocalTrainerConfig,
    SegmentsFanoutConfig,
    ShareName,
    TrainerConfig,
)
from runners.records.record import MAIN_THREAD, Segment

DropReason = Literal[
    "unfinished", "collapsed", "side", "subagent", "compaction", "empty", "long", "many"
]
"""``unfinished``: the whole rollout, which ran out of its budget; ``collapsed``, ``side``,
``subagent``, ``compaction``: the configuration does not train such a segment; ``empty``: nothing
was sampled in it; ``long``, ``many``: a cap.
"""


def choose_segments(
    segments: Iterable[Segment], config: FanoutConfig
) -> tuple[list[Segment], dict[int, DropReason]]:
    """Return the segments that become samples, and the reason against each other one, by index."""
    left_out: dict[int, DropReason] = {}
    kept = []
    for segment in segments:
        reason = _unwanted(segment, config) or _unusable(segment, config)
        if reason is None:
            kept.append(segment)
        else:
            left_out[segment.index] = reason
    if isinstance(config, SegmentsFanoutConfig):
        capped = _capped(kept, config.max_segments)
        few = {segment.index for segment in capped}
        left_out |= {segment.index: "many" for segment in kept if segment.index not in few}
        kept = capped
    return kept, left_out


def divide_advantage(kept: Sequence[Segment], rule: ShareName) -> list[float]:
    """Return each kept chain's share of the rollout's advantage, as a factor of it.

    With K chains of n sampled tokens each: ``copy`` 1; ``uniform`` 1 / K; ``token_share`` n / Σn;
    ``final_only`` 1 on the final chain, else 0; ``root_only`` 1 on chains of the main thread, else
    0. Example: ``token_share`` of chains with 2 and 6 sampled tokens: [0.25, 0.75].
    """
    match rule:
        case "copy":
            return [1.0] * len(kept)
        case "uniform":
            return [1.0 / len(kept) for _ in kept]
        case "token_share":
            tokens = [_sampled(segment) for segment in kept]
            return [count / sum(tokens) for count in tokens]
        case "final_only":
            return [float(segment.kind == "final") for segment in kept]
        case "root_only":
            return [float(_on_main_thread(segment)) for segment in kept]


def _unwanted(segment: Segment, config: FanoutConfig) -> DropReason | None:
    """Return the reason why the configuration does not train such a segment; None if it does."""
    if isinstance(config, CollapseFanoutConfig):
        if segment.kind == "final":
            return None
        return "side" if segment.kind == "side" else "collapsed"
    if segment.kind == "side" and not config.train_side:
        return "side"
    if not _on_main_thread(segment) and not config.train_subagents:
        return "subagent"
    if segment.kind == "compaction" and not config.train_compaction:
        return "compaction"
    return None


def _unusable(segment: Segment, config: FanoutConfig) -> DropReason | None:
    """Return the reason why no sample can be made of a segment; None if one can."""
    if not segment.loss_mask.any():
        return "empty"
    longest = config.max_segment_tokens
    if longest is None or len(segment.tokens) <= longest:
        return None
    # what is left of a cut segment must have something to train
    may_cut = segment.kind == "final" and config.long_final == "cut"
    return None if may_cut and segment.loss_mask[:longest].any() else "long"


def _capped(kept: list[Segment], most: int | None) -> list[Segment]:
    """Return the final segment and the first others, ``most`` in total, in their order."""
    if most is None or len(kept) <= most:
        return kept
    finals = sum(segment.kind == "final" for segment in kept)  # 0 if it was dropped, else 1
    head = [segment.index for segment in kept if segment.kind != "final"][: most - finals]
    return [segment for segment in kept if segment.kind == "final" or segment.index in head]


def _on_main_thread(segment: Segment) -> bool:
    return segment.thread == MAIN_THREAD


def _sampled(segment: Segment) -> int:
    return int(segment.loss_mask.sum())


def trains_without_advantage(trainer: TrainerConfig) -> bool:
    """Return whether tokens with an advantage of 0 have a gradient: a KL penalty, an entropy bonus,
    a teacher, or a loss of the user's own, which may do anything.
    """
    return isinstance(trainer, LocalTrainerConfig) and (
        isinstance(trainer.loss, PluginConfig)
        or trainer.kl.weight > 0
        or trainer.entropy_bonus > 0
        or trainer.distill.url is not None
    )
