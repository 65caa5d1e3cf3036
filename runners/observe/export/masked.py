"""Tells why the tokens of a chain are not in the loss, from what a run stored.

Not seen here: what only training knew, such as routing that it refused; the run's events have it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from conf.sections.plugin import PluginConfig
from conf.sections.training import FanoutConfig, SegmentsFanoutConfig, TrainerConfig
from runners.records.graph import (
    DropReason,
    choose_segments,
    divide_advantage,
    trains_without_advantage,
)
from runners.records.outcome import OutcomeClass
from runners.records.record import RolloutRecord, Segment

MaskReason = Literal[DropReason, "ungraded", "no_advantage", "unbuilt", "no_share"]
"""``ungraded``: the rollout has no reward; ``no_advantage``: nothing to compare it with, or its
step is not trained yet; ``unbuilt``: its samples could not be built, or shares of the user's own
are all 0; ``no_share``: ``fanout.reward`` pays other chains only; the others are the fan-out's.
"""


def find_masked(
    record: RolloutRecord, chains: Sequence[Segment], config: Mapping[str, Any]
) -> dict[int, MaskReason]:
    """Return the chains of a training rollout that are not in the loss, with the reason, by index.

    ``config``: the run's, as it is stored. An evaluation trains nothing, so it masks nothing.
    """
    if record.split != "train":
        return {}
    whole = _find_reason(record, config)
    if whole is not None:
        return {chain.index: whole for chain in chains}
    try:
        fanout = _fanouts().validate_python(config.get("fanout"))
    except ValidationError:  # of another version: which chains it left out is not known
        return {}
    kept, left_out = choose_segments(chains, fanout)
    found: dict[int, MaskReason] = dict(left_out)
    if not _trains_without_share(config):
        found |= _find_unpaid(kept, fanout)
    unmasked = any(chain.index not in found for chain in chains)
    if unmasked and record.advantage and not record.trained_tokens:
        return {chain.index: "unbuilt" for chain in chains}
    return found


def _find_unpaid(kept: Sequence[Segment], fanout: FanoutConfig) -> dict[int, MaskReason]:
    """Return the kept chains that a rule of agentrl gives no share; a user's own is not called."""
    reward = fanout.reward if isinstance(fanout, SegmentsFanoutConfig) else "copy"
    if isinstance(reward, PluginConfig):
        return {}
    shares = zip(kept, divide_advantage(kept, reward), strict=True)
    return {chain.index: "no_share" for chain, share in shares if share == 0}


def _trains_without_share(config: Mapping[str, Any]) -> bool:
    """Return whether tokens without an advantage have a gradient; of another version: they may."""
    try:
        return trains_without_advantage(_trainers().validate_python(config.get("trainer")))
    except ValidationError:
        return True


@cache
def _trainers() -> TypeAdapter[TrainerConfig]:
    return TypeAdapter(TrainerConfig)


@cache
def _fanouts() -> TypeAdapter[FanoutConfig]:
    return TypeAdapter(FanoutConfig)


def _find_reason(record: RolloutRecord, config: Mapping[str, Any]) -> MaskReason | None:
    """Return the reason why no chain of a rollout is in the loss; None if there is none."""
    if record.reward is None or not record.outcome.meaning.trained:
        return "ungraded"
    if record.advantage is None:
        return "no_advantage"
    trainer = config.get("trainer")
    trains_all = not isinstance(trainer, dict) or trainer.get("train_unfinished", True)
    if record.outcome.outcome_class is OutcomeClass.BUDGET and not trains_all:
        return "unfinished"
    return None
