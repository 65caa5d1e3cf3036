"""Tells why the tokens of a chain are not in the loss, from what a run stored.

Not seen here: what only training knew, such as routing that it refused; the run's events have it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from conf.sections.training import FanoutConfig
from runners.training.fanout import DropReason, choose_segments
from runners.trajectory.outcome import OutcomeClass
from runners.trajectory.record import RolloutRecord, Segment

MaskReason = Literal[DropReason, "ungraded", "no_advantage", "unbuilt"]
"""``ungraded``: the rollout has no reward; ``no_advantage``: nothing to compare it with, or its
step is not trained yet; ``unbuilt``: its samples could not be built, or each has a share of 0; the
others are the fan-out's.
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
    if kept and record.advantage and not record.trained_tokens:
        return {chain.index: "unbuilt" for chain in chains}
    return dict(left_out)


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
