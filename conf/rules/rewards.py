"""Rules of rewards: what is worth more pays more."""

from __future__ import annotations

from collections.abc import Iterator

from conf.rules.rule import Rule
from conf.sections.task import (
    RewardConfig,
    VerdictRewardConfig,
    name_penalties,
    sum_penalties,
)


def reward_rules(reward: RewardConfig) -> Iterator[Rule]:
    """Yield the rules that solving a task at the highest cost beats giving up at once, and solving
    a part of it at no cost. What a plug-in pays is unknown.
    """
    if not isinstance(reward, VerdictRewardConfig):
        return
    most, named = sum_penalties(reward), name_penalties(reward)
    part = reward.unsolved + reward.partial_credit
    yield (
        reward.unsolved < reward.solved - most <= part,
        f"reward.unsolved={reward.unsolved:g} + reward.partial_credit={reward.partial_credit:g} = "
        f"{part:g} is not less than reward.solved={reward.solved:g}"
        + (f" less {named} = {most:g}" if named else "")
        + ": a part of a task could pay as much as solving it; lower reward.partial_credit",
    )
    yield (
        reward.solved - most <= reward.unsolved,
        f"reward.solved={reward.solved:g}"
        + (f" less {named} = {most:g}" if named else "")
        + f" is not more than reward.unsolved={reward.unsolved:g}: giving up at once would pay at "
        f"least as much as solving; {'lower the penalties' if named else 'raise reward.solved'}",
    )
    yield (
        reward.overlong_penalty > 0 and reward.overlong_tokens > reward.token_budget,
        f"reward.overlong_tokens={reward.overlong_tokens} is more than reward.token_budget="
        f"{reward.token_budget}: a rollout without a token would be penalised; lower it",
    )
