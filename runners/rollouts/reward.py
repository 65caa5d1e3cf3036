"""The reward of a graded rollout: of its tests, or of a plug-in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from conf.sections.task import CustomRewardConfig, RewardConfig, VerdictRewardConfig
from runners.plugins.calls import call_plugin, check_number
from runners.plugins.loading import load_plugin
from runners.tasks.contract import VerdictKind
from runners.tasks.rollout_result import RolloutResult


class Reward(Protocol):
    """Turns the result of a graded rollout into a number; ``def`` or ``async def``.

    It is called once per graded rollout, in the driver or on the node that ran it, and has
    ``rollout.deadlines.grade_s``. A plug-in that raises, takes too long or returns no finite number
    gives no reward: the rollout's outcome is ``grader.error``, and it is not trained. What the
    policy can cause must therefore have a value.
    """

    def __call__(self, result: RolloutResult) -> float | Awaitable[float]:
        """Return the reward; ``result.verdict`` is there."""
        ...


class VerdictReward:
    """``solved``, or ``unsolved + partial_credit · part``, less the penalties.

    ``part``: ``Verdict.part``. ``turn_penalty`` and ``length_penalty`` are taken in
    proportion to the used part of their budgets, at most whole; ``malformed_penalty`` once, if any
    turn has a call that did not parse. The configuration keeps ``solved`` less all three above
    ``unsolved + partial_credit``, so a part never pays as much as the whole.
    """

    def __init__(self, config: VerdictRewardConfig) -> None:
        self._config = config

    def __call__(self, result: RolloutResult) -> float:
        """Return the reward; raises ValueError for a result without a verdict."""
        config, verdict, summary = self._config, result.verdict, result.summary
        if verdict is None:
            raise ValueError("a rollout that was not graded has no reward")
        reward = config.solved
        if verdict.kind is not VerdictKind.SOLVED:
            reward = config.unsolved + config.partial_credit * verdict.part
        reward -= config.turn_penalty * min(1.0, summary.turns / config.turn_budget)
        used = summary.usage.sampled_tokens / config.token_budget
        reward -= config.length_penalty * min(1.0, used)
        if summary.malformed_turns:
            reward -= config.malformed_penalty
        return reward


def _load_custom(config: CustomRewardConfig) -> Reward:
    reward: Reward = load_plugin(config, Reward, "reward")
    return reward


REWARDS: dict[str, Callable[[Any], Reward]] = {"tests": VerdictReward, "custom": _load_custom}
"""By the ``kind`` of their configuration."""
ComputeReward = Callable[[RolloutResult, float], Awaitable[float]]
"""Returns a rollout's reward within a deadline in seconds; raises PluginFailedError."""


def make_reward(config: RewardConfig) -> ComputeReward:
    """Return the reward that is configured; raises PluginError."""
    reward = REWARDS[config.kind](config)
    name = f"reward={getattr(config, 'target', config.kind)}"

    async def compute(result: RolloutResult, deadline_s: float) -> float:
        found = await call_plugin(name, reward, result, deadline_s=deadline_s)
        return check_number(name, found)

    return compute
