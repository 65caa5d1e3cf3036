"""Turn-level credit: the tokens of a turn answer for what was earned from that turn on.

What turn t of a rollout is worth is the reward less what earlier turns earned. It is compared with
the same of the other rollouts of the group at turn t, those included that had stopped before: they
earn nothing from there on but their rollout's own part. Invariant: a rollout's baseline is a
function of the others alone, whichever turns they reached, so the policy gradient is unbiased
although the policy chooses when to stop. A mean among the rollouts that reach turn t, the rollout
itself included, scales each turn's gradient by how many others reach it, which is a bias.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np

from conf.sections.training import LocalTrainerConfig, TrainerConfig
from runners.records.record import LogprobArray, RolloutRecord, Segment, Turn
from runners.training.estimators import AdvantageEstimator


def credits_turns(trainer: TrainerConfig) -> bool:
    """Return whether ``trainer.credit`` is "turn"."""
    return isinstance(trainer, LocalTrainerConfig) and trainer.credit == "turn"


def compute_turn_credits(
    records: Sequence[RolloutRecord], estimator: AdvantageEstimator
) -> dict[str, list[float]]:
    """Return the advantages of the turns of a group's graded rollouts, by rollout and turn.

    Turn 0 has the rollout's own advantage, since all is still to be earned; the last number of a
    list also holds for all later turns. ``estimator``: linear in the rewards (rloo, dr_grpo).
    Rewards 1 and 0, of which turn 0 of the first has earned 0.5, yield with rloo ``[1.0, 0.5]``
    and ``[-1.0, -0.5]``.
    """
    graded = [record for record in records if record.reward is not None]
    turns = max((len(record.turn_rewards) for record in graded), default=0)
    to_go = [_reward_to_go(record, turns) for record in graded]
    by_turn = [estimator(rewards) for rewards in zip(*to_go, strict=True)]
    return {
        record.rollout_id: list(credits)
        for record, credits in zip(graded, zip(*by_turn, strict=True), strict=True)
    }


def _reward_to_go(record: RolloutRecord, turns: int) -> list[float]:
    """Return what is earned from each of ``turns`` turns on, and after them."""
    padded = [*record.turn_rewards, *[0.0] * (turns - len(record.turn_rewards))]
    reward = record.reward or 0.0
    return [reward - earned for earned in accumulate(padded, initial=0.0)]


def spread_over_tokens(
    credits: Sequence[float] | None, turns: Sequence[Turn]
) -> Callable[[Segment], LogprobArray | None]:
    """Return a function that gives the tokens that a segment sampled the advantages of their turns,
    float32 [T], 0.0 elsewhere; None without ``credits``.

    A turn is credited by its index in the session, whatever thread it is of: turns are counted as
    they are completed, so what a turn of a sub-agent may have caused comes after it.
    """

    def spread(segment: Segment) -> LogprobArray | None:
        if credits is None:
            return None
        found = np.zeros(len(segment.tokens), np.float32)
        for index in segment.own_turns:
            start = turns[index].prompt_tokens
            span = slice(start, start + turns[index].output_tokens)
            found[span] = credits[min(index, len(credits) - 1)]
        return found

    return spread
