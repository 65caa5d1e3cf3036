"""The reward of a graded rollout: its tests' result less penalties for turns and bad calls."""

from __future__ import annotations

from conf.sections.task import RewardConfig
from runners.tasks.contract import Verdict, VerdictKind
from runners.trajectory.turn_totals import TurnTotals


def compute_reward(config: RewardConfig, verdict: Verdict, totals: TurnTotals) -> float:
    """Return ``unsolved + share · (solved − unsolved)`` less the penalties.

    ``share`` is 1 for a solved task; else 0, or with ``partial`` the passed share of the tests that
    have to change. ``turn_penalty`` and ``length_penalty`` are taken in proportion to the used part
    of their budgets, at most whole; ``malformed_penalty`` once, if any turn has a call that did not
    parse. So a rollout loses at most the sum of the three, which the configuration keeps below
    ``solved − unsolved``.
    """
    reward = config.unsolved + _solved_share(config, verdict) * (config.solved - config.unsolved)
    reward -= config.turn_penalty * min(1.0, totals.turns / config.turn_budget)
    reward -= config.length_penalty * min(1.0, totals.sampled_tokens / config.token_budget)
    if totals.malformed_turns:
        reward -= config.malformed_penalty
    return reward


def _solved_share(config: RewardConfig, verdict: Verdict) -> float:
    """Return the share of the task that counts as solved, in [0, 1].

    A patch that breaks a test which passed before, that tampered with the tests, or whose grading
    timed out, has no part of it.
    """
    if verdict.kind is VerdictKind.SOLVED:
        return 1.0
    if verdict.tampered:
        return 0.0
    nothing_broken = verdict.pass_to_pass_passed == verdict.pass_to_pass_total
    partial = config.partial and nothing_broken and not verdict.timed_out
    if not partial or not verdict.fail_to_pass_total:
        return 0.0
    return verdict.fail_to_pass_passed / verdict.fail_to_pass_total
