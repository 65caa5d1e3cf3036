"""The reward of a graded rollout, in parts: of its tests, or of a plug-in."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, Protocol

from conf.sections.task import (
    CustomRewardConfig,
    RewardConfig,
    VerdictRewardConfig,
    find_part_weights,
)
from runners.records.session_summary import SessionSummary
from runners.records.text import make_printable
from runners.system.plugins import PluginFailedError, call_plugin, check_number, load_plugin
from runners.tasks.contract import VerdictKind
from runners.tasks.grading import RolloutResult

OF_TURNS = "turns"
"""Name of the part that is the sum of what turns earned (``RewardParts.turns``)."""
MOST_PARTS, NAME_CHARS = 64, 100


@dataclass(frozen=True, slots=True)
class RewardParts:
    """A reward in parts, which a ``Reward`` may return in place of a number."""

    parts: Mapping[str, float]
    """Scores by name, at most 64. The reward is their sum, each times its ``reward.part_weights``
    (1 for one without), and what the turns earned.
    """
    turns: Mapping[int, float] = field(default_factory=dict)
    """Earnings and costs of single turns, by their index in the session (``CalledTool.turn``), for
    ``trainer.credit=turn``: what a turn's own output, or what it led to, brought by then.
    """


@dataclass(frozen=True, slots=True)
class RolloutReward:
    """The reward of a rollout as its record keeps it."""

    value: float
    parts: dict[str, float] = field(default_factory=dict)
    """Summands of ``value`` by name; empty: it has no parts."""
    turns: list[float] = field(default_factory=list)
    """The share of ``value`` that turns earned, by index, trailing zeros left out."""


class Reward(Protocol):
    """Turns the result of a graded rollout into a number; ``def`` or ``async def``.

    It is called once per graded rollout, in the driver or on the node that ran it, and has
    ``rollout.deadlines.grade_s``. A plug-in that raises, takes too long or returns no finite number
    gives no reward: the rollout's outcome is ``grader.error``, and it is not trained. What the
    policy can cause must therefore have a value.
    """

    def __call__(
        self, result: RolloutResult
    ) -> float | RewardParts | Awaitable[float | RewardParts]:
        """Return the reward; ``result.verdict`` is there."""
        ...


class VerdictReward:
    """``solved``, or ``unsolved + partial_credit · part``, less the penalties.

    ``part``: ``Verdict.part``. ``turn_penalty`` and ``length_penalty`` are taken in
    proportion to the used part of their budgets, at most whole; ``overlong_penalty`` in proportion
    to the used part of the budget's last ``overlong_tokens`` (DAPO's soft overlong punishment,
    arXiv 2503.14476); ``malformed_penalty`` once, if any turn has a call that did not parse. The
    configuration keeps ``solved`` less all of them above ``unsolved + partial_credit``, so a part
    never pays as much as the whole.
    """

    def __init__(self, config: VerdictRewardConfig) -> None:
        self._config = config

    def __call__(self, result: RolloutResult) -> RolloutReward:
        """Return the reward; raises ValueError for a result without a verdict.

        Turns have earned what the penalties grew by, the tests are of the whole rollout.
        """
        config, verdict, summary = self._config, result.verdict, result.summary
        if verdict is None:
            raise ValueError("a rollout that was not graded has no reward")
        reward = config.solved
        if verdict.kind is not VerdictKind.SOLVED:
            reward = config.unsolved + config.partial_credit * verdict.part
        costs = self._costs(
            summary.turns, summary.usage.sampled_tokens, malformed=summary.malformed_turns > 0
        )
        parts = {"tests": reward, **costs}
        for cost in costs.values():  # not sum(): from Python 3.12 it rounds otherwise
            reward += cost
        return RolloutReward(reward, parts, self._costs_by_turn(summary))

    async def compute(self, result: RolloutResult, deadline_s: float) -> RolloutReward:
        """Return the reward, as ``ComputeReward`` does: at once, since nothing of it can hang."""
        return self(result)

    def _costs(self, turns: int, sampled: int, *, malformed: bool) -> dict[str, float]:
        """Return the penalties that are set, as summands of the reward, by their keys."""
        config = self._config
        over = (sampled - config.token_budget) / config.overlong_tokens + 1.0
        costs = {
            "turn_penalty": min(1.0, turns / config.turn_budget),
            "length_penalty": min(1.0, sampled / config.token_budget),
            "malformed_penalty": float(malformed),
            "overlong_penalty": min(1.0, max(0.0, over)),
        }
        rates = {name: getattr(config, name) for name in costs}
        return {name: 0.0 - rates[name] * used for name, used in costs.items() if rates[name]}

    def _costs_by_turn(self, summary: SessionSummary) -> list[float]:
        turns = summary.by_turn
        sampled = accumulate((turn.sampled_tokens for turn in turns), initial=0)
        malformed = accumulate((turn.malformed for turn in turns), max, initial=False)
        until = [
            math.fsum(self._costs(number, tokens, malformed=wrong).values())
            for number, (tokens, wrong) in enumerate(zip(sampled, malformed, strict=True))
        ]
        return _strip([after - before for before, after in pairwise(until)])


def add_parts(
    name: str, found: RewardParts, weights: Mapping[str, float], turns: int
) -> RolloutReward:
    """Return the reward that a plug-in's parts make, of a rollout of so many turns.

    Raises PluginFailedError for what is no number, no text, or too much, and for a turn that is not
    there.
    """
    known = list(found.parts.items())
    named = all(isinstance(part, str) and 0 < len(part) <= NAME_CHARS for part, _ in known)
    if not named or len(known) > MOST_PARTS or OF_TURNS in found.parts:
        raise PluginFailedError(
            f"{name} returned parts that are more than {MOST_PARTS}, or whose names are no texts "
            f"of 1 to {NAME_CHARS} characters, or called {OF_TURNS!r}, which is the turns' own"
        )
    parts = {
        part: check_number(f"{name}: part {part!r}", value) * weights.get(part, 1.0)
        for part, value in known
    }
    earned = [0.0] * turns
    for index, value in found.turns.items():
        if not isinstance(index, int) or not 0 <= index < turns:
            raise PluginFailedError(f"{name} paid turn {index!r}, and the rollout has {turns}")
        earned[index] = check_number(f"{name}: turn {index}", value)
    if found.turns:
        parts[OF_TURNS] = sum(earned)
    value = check_number(name, sum(parts.values()))  # not fsum(), which raises at infinity
    printable = {make_printable(part): amount for part, amount in parts.items()}
    return RolloutReward(value, printable, _strip(earned))


def _strip(turns: list[float]) -> list[float]:
    """Return the numbers without the zeros at their end."""
    last = max((number for number, each in enumerate(turns, 1) if each), default=0)
    return turns[:last]


def _load_custom(config: CustomRewardConfig) -> Reward:
    reward: Reward = load_plugin(config, Reward, "reward")
    return reward


REWARDS: dict[str, Callable[[Any], Any]] = {"tests": VerdictReward, "custom": _load_custom}
"""By the ``kind`` of their configuration."""
ComputeReward = Callable[[RolloutResult, float], Awaitable[RolloutReward]]
"""Returns a rollout's reward within a deadline in seconds; raises PluginFailedError."""


def make_reward(config: RewardConfig) -> ComputeReward:
    """Return the reward that is configured; raises PluginError."""
    reward = REWARDS[config.kind](config)
    if isinstance(reward, VerdictReward):
        return reward.compute
    name = f"reward={getattr(config, 'target', config.kind)}"

    async def compute(result: RolloutResult, deadline_s: float) -> RolloutReward:
        found = await call_plugin(
            name, reward, result, deadline_s=deadline_s, deadline_key="rollout.deadlines.grade_s"
        )
        if isinstance(found, RolloutReward):
            return found
        if isinstance(found, RewardParts):
            return add_parts(name, found, find_part_weights(config), result.summary.turns)
        return RolloutReward(check_number(name, found))

    return compute
