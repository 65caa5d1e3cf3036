"""The reward of a graded rollout."""

from __future__ import annotations

from collections.abc import Sequence

from conf.sections.task import TestsRewardConfig
from runners.tasks.contract import Verdict, VerdictKind
from runners.trajectory.record import Turn


def reward_of(reward: TestsRewardConfig, verdict: Verdict, turns: Sequence[Turn]) -> float:
    """Return what a rollout is worth: the tests decide, turns and malformed calls cost a little."""
    value = reward.unsolved + _share(reward, verdict) * (reward.solved - reward.unsolved)
    value -= reward.turn_penalty * len(turns)
    if any(turn.malformed_calls for turn in turns):
        value -= reward.malformed_penalty
    return value


def _share(reward: TestsRewardConfig, verdict: Verdict) -> float:
    """Return 1 for solved; otherwise, if asked for, the passed share of the fail-to-pass tests,
    unless a pass-to-pass test fails.
    """
    if verdict.kind is VerdictKind.SOLVED:
        return 1.0
    kept = verdict.pass_to_pass_passed == verdict.pass_to_pass_total
    if not reward.partial or not kept or verdict.timed_out or not verdict.fail_to_pass_total:
        return 0.0
    return verdict.fail_to_pass_passed / verdict.fail_to_pass_total
