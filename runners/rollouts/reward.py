"""The reward of a graded rollout: its tests' result less penalties for turns and bad calls."""

from __future__ import annotations

from conf.sections.task import RewardConfig
from runners.tasks.contract import Verdict, VerdictKind
from runners.trajectory.turn_totals import TurnTotals


def compute_reward(config: RewardConfig, verdict: Verdict, totals: TurnTotals) -> float:
    """Return ``unsolved + share · (solved − unsolved) − turn_penalty · turns − malformed_penalty``.

    ``share`` is 1 for a solved task; else 0, or with ``partial`` the passed share of the tests that
    have to change. ``malformed_penalty`` is taken once, if any turn has a call that did not parse.
    """
    reward = config.unsolved + _solved_share(config, verdict) * (config.solved - config.unsolved)
    reward -= config.turn_penalty * totals.turns
    if totals.malformed_turns:
        reward -= config.malformed_penalty
    return reward


def _solved_share(config: RewardConfig, verdict: Verdict) -> float:
    """Return the share of the task that counts as solved, in [0, 1].

    A patch that breaks a test which passed before, or whose grading timed out, has no part of it.
    """
    if verdict.kind is VerdictKind.SOLVED:
        return 1.0
    nothing_broken = verdict.pass_to_pass_passed == verdict.pass_to_pass_total
    partial = config.partial and nothing_broken and not verdict.timed_out
    if not partial or not verdict.fail_to_pass_total:
        return 0.0
    return verdict.fail_to_pass_passed / verdict.fail_to_pass_total
