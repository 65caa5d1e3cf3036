"""The reward of a graded rollout, term by term."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from conf.sections.task import VerdictRewardConfig
from runners.rollouts.reward import VerdictReward
from runners.tasks.contract import Verdict, VerdictKind
from runners.tasks.rollout_result import RolloutResult
from runners.trajectory.session_summary import SessionSummary, TokenUsage
from tests.runners.tasks.pytest_tasks import scripted_verdict
from tests.runners.tasks.repositories import result_of

CONFIG = VerdictRewardConfig(
    kind="tests", solved=1, unsolved=-1, partial_credit=0.0, malformed_penalty=0.25,
    turn_penalty=0.2, turn_budget=10, length_penalty=0.5, token_budget=1000,
)  # fmt: skip
UNSHAPED: dict[str, Any] = {
    "turn_penalty": 0.0, "turn_budget": 1, "length_penalty": 0.0, "token_budget": 1,
    "malformed_penalty": 0.0,
}  # fmt: skip


def make_verdict(kind: VerdictKind) -> Verdict:
    return Verdict(kind, int(kind is VerdictKind.SOLVED), 1, 1, 1, "", "", 0.0)


def summary(turns: int = 0, sampled: int = 0, malformed: int = 0) -> SessionSummary:
    usage = TokenUsage(sampled_tokens=sampled)
    return SessionSummary(turns=turns, usage=usage, malformed_turns=malformed)


def make_result(verdict: Verdict, spent: SessionSummary) -> RolloutResult:
    return replace(result_of(b""), summary=spent, verdict=verdict)


@pytest.mark.parametrize(
    ("kind", "spent", "reward"),
    [
        (VerdictKind.SOLVED, summary(), 1.0),
        (VerdictKind.UNSOLVED, summary(), -1.0),
        (VerdictKind.SOLVED, summary(turns=3), 0.94),
        (VerdictKind.SOLVED, summary(turns=3, malformed=1), 0.69),
        (VerdictKind.SOLVED, summary(turns=3, malformed=2), 0.69),
        (VerdictKind.UNSOLVED, summary(turns=1, malformed=1), -1.27),
        (VerdictKind.SOLVED, summary(sampled=100), 0.95),
        (VerdictKind.SOLVED, summary(turns=10, sampled=1000), 0.3),
        (VerdictKind.SOLVED, summary(turns=99, sampled=9999, malformed=9), 0.05),
    ],
)
def test_turns_and_tokens_cost_by_their_budgets_and_malformed_calls_once(
    kind: VerdictKind, spent: SessionSummary, reward: float
) -> None:
    assert VerdictReward(CONFIG)(make_result(make_verdict(kind), spent)) == pytest.approx(reward)


def test_a_rollout_without_a_verdict_has_no_reward() -> None:
    with pytest.raises(ValueError, match="was not graded"):
        VerdictReward(CONFIG)(result_of(b""))


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
    reward = VerdictRewardConfig(
        kind="tests", solved=1, unsolved=-1, partial_credit=credit, **UNSHAPED
    )
    verdict = replace(scripted_verdict(first, second), **finding)
    assert VerdictReward(reward)(make_result(verdict, summary())) == expected
