"""The reward of a graded rollout, term by term."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf.sections.task import CustomRewardConfig, VerdictRewardConfig
from runners.records.session_summary import SessionSummary, TokenUsage, TurnUsage
from runners.rollouts.reward import (
    RewardParts,
    RolloutReward,
    VerdictReward,
    add_parts,
    make_reward,
)
from runners.system.plugins.calls import PluginFailedError
from runners.tasks.contract import Verdict, VerdictKind
from runners.tasks.grading import RolloutResult
from tests.runners.tasks.example_repositories import result_of
from tests.runners.tasks.pytest_tasks import scripted_verdict

CONFIG = VerdictRewardConfig(
    kind="tests", solved=1, unsolved=-1, partial_credit=0.0, malformed_penalty=0.25,
    turn_penalty=0.2, turn_budget=10, length_penalty=0.5, token_budget=1000,
    overlong_penalty=0.0, overlong_tokens=200,
)  # fmt: skip
UNSHAPED: dict[str, Any] = {
    "turn_penalty": 0.0, "turn_budget": 1, "length_penalty": 0.0, "token_budget": 1,
    "overlong_penalty": 0.0, "overlong_tokens": 1, "malformed_penalty": 0.0,
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
    found = VerdictReward(CONFIG)(make_result(make_verdict(kind), spent))
    assert found.value == pytest.approx(reward)
    assert math.fsum(found.parts.values()) == pytest.approx(reward)
    assert [*found.parts] == ["tests", "turn_penalty", "length_penalty", "malformed_penalty"]


@pytest.mark.parametrize(
    ("sampled", "cost"), [(0, 0.0), (799, 0.0), (800, 0.0), (850, 0.075), (1000, 0.3), (9999, 0.3)]
)
def test_the_overlong_penalty_rises_over_the_last_tokens_of_the_budget(
    sampled: int, cost: float
) -> None:
    """DAPO's equation 13, with L_max = 1000 and L_cache = 200."""
    shaped = {**UNSHAPED, "token_budget": 1000, "overlong_tokens": 200, "overlong_penalty": 0.3}
    reward = VerdictRewardConfig(kind="tests", solved=1, unsolved=0, partial_credit=0, **shaped)
    verdict = make_verdict(VerdictKind.SOLVED)
    found = VerdictReward(reward)(make_result(verdict, summary(turns=3, sampled=sampled)))
    assert found.parts == {"tests": 1.0, "overlong_penalty": pytest.approx(-cost)}
    assert found.value == pytest.approx(1 - cost)


TURN = st.builds(
    TurnUsage, st.sampled_from(["main", "subagent"]), st.integers(0, 400), st.booleans()
)


@given(st.lists(TURN, max_size=14), st.floats(0, 0.3))
def test_what_the_turns_cost_is_the_whole_cost_each_at_the_turn_that_caused_it(
    turns: list[TurnUsage], overlong: float
) -> None:
    config = CONFIG.model_copy(update={"overlong_penalty": overlong})
    sampled = sum(turn.sampled_tokens for turn in turns)
    malformed = sum(turn.malformed for turn in turns)
    spent = replace(summary(len(turns), sampled, malformed), by_turn=tuple(turns))
    found = VerdictReward(config)(make_result(make_verdict(VerdictKind.SOLVED), spent))
    assert found.parts["tests"] + math.fsum(found.turns) == pytest.approx(found.value, abs=1e-9)
    assert len(found.turns) <= len(turns)
    first = next((number for number, turn in enumerate(turns) if turn.malformed), None)
    for number, cost in enumerate(found.turns):
        share = 0.02 * (number < 10) + 0.5 * turns[number].sampled_tokens / 1000
        least = 0.25 * (number == first)
        assert -cost <= share + least + overlong + 1e-9
        assert -cost >= least - 1e-9, "a malformed call costs where it happened first"


def in_parts(result: RolloutResult, *, parts: dict[str, float]) -> float | RewardParts:
    """Pay parts and two turns, or a number: a reward plug-in."""
    return RewardParts(parts, {1: 0.25, 0: -0.5}) if parts else 0.5


async def paid(parts: dict[str, float], **weights: float) -> RolloutReward:
    """Return the reward of a rollout of three turns for which a plug-in returns ``parts``."""
    config = CustomRewardConfig(
        kind="custom",
        target=f"{__name__}:in_parts",
        options={"parts": {**parts}},
        part_weights=weights,
    )
    result = make_result(make_verdict(VerdictKind.SOLVED), summary(turns=3))
    return await make_reward(config)(result, 5.0)


async def test_a_plug_in_may_return_parts_with_weights_and_rewards_of_turns() -> None:
    found = await paid({"right": 1.0, "style": 0.5}, style=0.2)
    assert found.parts == {"right": 1.0, "style": 0.1, "turns": -0.25}
    assert found.value == pytest.approx(0.85)
    assert found.turns == [-0.5, 0.25]
    assert await paid({}) == RolloutReward(0.5)
    assert "a\N{REPLACEMENT CHARACTER}b" in (await paid({"a\0b": 1})).parts


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (RewardParts({"right": float("nan")}), "part 'right' returned nan"),
        (RewardParts({"right": 1e308, "more": 1e308}), "no finite number"),
        (RewardParts({"turns": 1.0}), "called 'turns'"),
        (RewardParts({"": 1.0}), "whose names are no texts"),
        (RewardParts({str(number): 0.0 for number in range(65)}), "more than 64"),
        (RewardParts({}, {3: 1.0}), "paid turn 3, and the rollout has 3"),
        (RewardParts({}, {-1: 1.0}), "paid turn -1"),
        (RewardParts({}, {0: float("inf")}), "turn 0 returned inf"),
    ],
)
def test_parts_that_are_no_reward_are_refused(parts: RewardParts, message: str) -> None:
    with pytest.raises(PluginFailedError, match=message):
        add_parts("reward", parts, {}, turns=3)


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
    assert VerdictReward(reward)(make_result(verdict, summary())).value == expected
