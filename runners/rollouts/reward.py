"""The reward of a graded rollout: its tests' result less penalties for turns and bad calls."""

from __future__ import annotations

from conf.sections.task import RewardConfig
from runners.tasks.contract import Verdict, VerdictKind
from runners.trajectory.turn_totals import TurnTotals


def compute_reward(config: RewardConfig, verdict: Verdict, totals: TurnTotals) -> float:
    """Return ``solved``, or ``unsolved + partial_credit · share``, less the penalties.

    ``share``: of the fail-to-pass tests that pass, if the task is solved in part
    (``Verdict.solved_in_part``); else 0. ``turn_penalty`` and ``length_penalty`` are taken in
    proportion to the used part of their budgets, at most whole; ``malformed_penalty`` once, if any
    turn has a call that did not parse. The configuration keeps ``solved`` less all three above
    ``unsolved + partial_credit``, so a part never pays as much as the whole.
    """
    reward = config.solved
    if verdict.kind is not VerdictKind.SOLVED:
        share = verdict.fail_to_pass_share if verdict.solved_in_part else None
        reward = config.unsolved + config.partial_credit * (share or 0.0)
    reward -= config.turn_penalty * min(1.0, totals.turns / config.turn_budget)
    reward -= config.length_penalty * min(1.0, totals.sampled_tokens / config.token_budget)
    if totals.malformed_turns:
        reward -= config.malformed_penalty
    return reward
