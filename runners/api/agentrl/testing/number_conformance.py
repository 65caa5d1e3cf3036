"""The suites for plug-ins that compute numbers: rewards and advantages."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

import pytest

from agentrl.testing.plugin_target import PluginTests
from conf.compose import compose
from conf.sections.plugin import PluginConfig
from conf.sections.task import CustomRewardConfig
from runners.records.outcome import Outcome, OutcomeCode, Stage
from runners.records.session_summary import FinishReason, SessionSummary, TokenUsage
from runners.rollouts.reward import ComputeReward, make_reward
from runners.tasks.contract import DecidingTest, Patch, Verdict, VerdictKind
from runners.tasks.grading import RolloutResult
from runners.training.advantages import AdvantageEstimator, compute_group_advantages, make_estimator

DEADLINE_S = 60.0
DIFF = b"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-one\n+two\n"
HOSTILE_TEXTS = (
    "",
    "{0} {missing} %s %d",
    "1e999 nan",
    "\N{REPLACEMENT CHARACTER}" * 99,
    "x" * 262_144,
)
"""Texts that a policy may write; a reward formats with them at most."""
SOLVED = Verdict(
    VerdictKind.SOLVED, 2, 2, 1, 1, "all tests pass", "", 1.0,
    tests=(DecidingTest("a", "fail_to_pass", "passed"),), rewards=(("reward", 1.0),),
)  # fmt: skip
UNSOLVED = Verdict(
    VerdictKind.UNSOLVED, 0, 2, 1, 1, "2 of 2 fail-to-pass tests fail", "", 1.0,
    rewards=(("reward", 0.0),),
)  # fmt: skip
SUMMARY = SessionSummary(
    turns=3,
    usage=TokenUsage(3000, 2000, 300),
    final_message="Done.",
    finish_reason=FinishReason.STOP,
    raw_finish_reason="stop",
    tool_calls_total=2,
    tool_turns=2,
)


def graded(diff: bytes = b"", *, solved: bool = True) -> RolloutResult:
    """Return a graded rollout whose change is a diff, to test what a reward pays for it.

    ``dataclasses.replace`` changes what else a reward looks at: the verdict, the summary.
    """
    files = tuple(name.decode() for name in re.findall(rb"^\+\+\+ b/(.+)$", diff, re.MULTILINE))
    patch = Patch(diff, hashlib.sha256(diff).hexdigest(), files, ())
    outcome = Outcome(OutcomeCode.POLICY_FINISHED, Stage.END)
    return RolloutResult(outcome, SUMMARY, patch, SOLVED if solved else UNSOLVED)


def make_results() -> Iterator[tuple[str, RolloutResult]]:
    """Yield graded rollouts of every kind, each with its description."""
    base = graded(DIFF)
    yield "solved", base
    yield "unsolved", replace(base, verdict=UNSOLVED)
    part = replace(UNSOLVED, fail_to_pass_passed=1, rewards=(("reward", 0.5),))
    yield "solved in part", replace(base, verdict=part)
    yield "out of time", replace(base, verdict=replace(UNSOLVED, timed_out=True))
    yield "tampered", replace(base, verdict=replace(UNSOLVED, tampered="the tests were edited"))
    yield "without tests", replace(base, verdict=replace(UNSOLVED, fail_to_pass_total=0))
    yield "without a turn", replace(base, summary=SessionSummary())
    yield "without a patch", graded(solved=False)
    yield "with a binary patch", replace(base, patch=replace(base.patch, diff=b"\xff\x00" * 999))
    for number, text in enumerate(HOSTILE_TEXTS):
        yield f"text {number}", replace(base, summary=replace(SUMMARY, final_message=text))


class RewardConformance(PluginTests):
    """Tests of a reward, on rollouts of every kind that a run can grade."""

    settings: ClassVar[Sequence[str]] = ()
    """KEY=VALUE of the run's configuration."""
    solved_pays_more: ClassVar[bool] = True
    """A solved rollout is paid more than the same one unsolved."""

    def test_every_graded_rollout_has_a_finite_reward(self) -> None:
        for name, result in make_results():
            assert math.isfinite(self._pay(result)), name

    def test_the_same_rollout_is_paid_the_same_again(self) -> None:
        for name, result in make_results():
            assert self._pay(result) == self._pay(result), name

    def test_solving_pays(self) -> None:
        results = dict(make_results())
        if not self.solved_pays_more:
            pytest.skip("its author says that it need not")
        solved, unsolved = (self._pay(results[kind]) for kind in ("solved", "unsolved"))
        assert solved > unsolved, f"solved pays {solved:g}, unsolved {unsolved:g}"

    @functools.cached_property
    def _reward(self) -> ComputeReward:
        config = compose([f"reward={self.find_target()}", *self.settings]).reward
        if isinstance(config, CustomRewardConfig):
            config = config.model_copy(update={"options": dict(self.options)})
        return make_reward(config)

    def _pay(self, result: RolloutResult) -> float:
        return asyncio.run(self._pay_within(result))

    async def _pay_within(self, result: RolloutResult) -> float:
        return (await self._reward(result, DEADLINE_S)).value


class AdvantageConformance(PluginTests):
    """Tests of an advantage; groups are as small as ``trainer.min_group`` allows, and larger."""

    def test_there_is_one_finite_number_for_each_reward(self) -> None:
        for rewards in ([1.0, 0.0], [0.0, 0.5, 1.0], [-3.0, 1e6, 2.0], [0.25] * 15 + [1.0]):
            found = self._compute(rewards)
            assert len(found) == len(rewards), f"{len(found)} for {len(rewards)} rewards"

    def test_a_group_of_equal_rewards_has_no_signal(self) -> None:
        for reward in (0.0, 1.0, 0.1, -2.5):
            for size in (2, 3, 8):
                found = self._compute([reward] * size)
                assert found == pytest.approx([0.0] * size), f"{size} rewards of {reward}"

    def test_the_order_of_a_group_does_not_matter(self) -> None:
        rewards, order = [0.0, 0.25, 1.0, 0.75], [2, 0, 3, 1]
        found = self._compute(rewards)
        moved = self._compute([rewards[index] for index in order])
        assert moved == pytest.approx([found[index] for index in order])

    def test_a_higher_reward_has_the_higher_advantage(self) -> None:
        found = self._compute([0.0, 0.5, 1.0])
        assert found == sorted(found)

    @functools.cached_property
    def _estimator(self) -> AdvantageEstimator:
        trainer = compose([f"trainer.advantage={self.find_target()}"]).trainer
        if isinstance(trainer.advantage, PluginConfig):
            plugin = trainer.advantage.model_copy(update={"options": dict(self.options)})
            trainer = trainer.model_copy(update={"advantage": plugin})
        return make_estimator(trainer)

    def _compute(self, rewards: Sequence[float]) -> list[float]:
        found = compute_group_advantages(rewards, self._estimator, min_group=2)
        return [float("nan") if each is None else each for each in found]
