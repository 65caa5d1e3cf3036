"""The reward of a graded rollout, term by term."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from conf.sections.task import RewardConfig
from runners.rollouts.reward import compute_reward
from runners.tasks.contract import Verdict, VerdictKind
from runners.trajectory.turn_totals import TurnTotals
from tests.runners.tasks.pytest_tasks import scripted_verdict

CONFIG = RewardConfig(
    kind="tests", solved=1, unsolved=-1, partial_credit=0.0, malformed_penalty=0.25,
    turn_penalty=0.2, turn_budget=10, length_penalty=0.5, token_budget=1000,
)  # fmt: skip
UNSHAPED: dict[str, Any] = {
    "turn_penalty": 0.0, "turn_budget": 1, "length_penalty": 0.0, "token_budget": 1,
    "malformed_penalty": 0.0,
}  # fmt: skip


def make_verdict(kind: VerdictKind) -> Verdict:
    return Verdict(kind, int(kind is VerdictKind.SOLVED), 1, 1, 1, "", "", 0.0)


@pytest.mark.parametrize(
    ("kind", "totals", "reward"),
    [
        (VerdictKind.SOLVED, TurnTotals(), 1.0),
        (VerdictKind.UNSOLVED, TurnTotals(), -1.0),
        (VerdictKind.SOLVED, TurnTotals(turns=3), 0.94),
        (VerdictKind.SOLVED, TurnTotals(turns=3, malformed_turns=1), 0.69),
        (VerdictKind.SOLVED, TurnTotals(turns=3, malformed_turns=2), 0.69),
        (VerdictKind.UNSOLVED, TurnTotals(turns=1, malformed_turns=1), -1.27),
        (VerdictKind.SOLVED, TurnTotals(sampled_tokens=100), 0.95),
        (VerdictKind.SOLVED, TurnTotals(turns=10, sampled_tokens=1000), 0.3),
        (VerdictKind.SOLVED, TurnTotals(turns=99, sampled_tokens=9999, malformed_turns=9), 0.05),
    ],
)
def test_turns_and_tokens_cost_by_their_budgets_and_malformed_calls_once(
    kind: VerdictKind, totals: TurnTotals, reward: float
) -> None:
    assert compute_reward(CONFIG, make_verdict(kind), totals) == pytest.approx(reward)


def test_the_totals_of_turns_count_malformed_turns_and_look_at_the_last() -> None:
    assert TurnTotals.add_up([(5, 0), (3, 2), (1, 0)]) == TurnTotals(3, 9, 1, ends_malformed=False)
    assert TurnTotals.add_up([(5, 0), (3, 2)]).ends_malformed
    assert TurnTotals.add_up([]) == TurnTotals()


@pytest.mark.parametrize(
    ("first", "second", "finding", "credit", "expected"),
    [
        (2, 2, {}, 0.0, 1.0),
        (2, 2, {}, 0.5, 1.0),
        (1, 2, {}, 0.0, -1.0),
        (1, 2, {}, 0.5, -0.75),
        (1, 1, {}, 0.5, -1.0),
        (0, 2, {}, 0.5, -1.0),
        (1, 2, {"timed_out": True}, 0.5, -1.0),
        (1, 2, {"tampered": "canary: 1 of 1"}, 0.5, -1.0),
        (2, 2, {"kind": VerdictKind.UNSOLVED}, 0.5, -1.0),
    ],
)
def test_partial_credit_is_for_the_share_of_fixed_tests_of_an_honest_patch_that_breaks_none(
    first: int, second: int, finding: dict[str, Any], credit: float, expected: float
) -> None:
    reward = RewardConfig(kind="tests", solved=1, unsolved=-1, partial_credit=credit, **UNSHAPED)
    verdict = replace(scripted_verdict(first, second), **finding)
    assert compute_reward(reward, verdict, TurnTotals()) == expected
