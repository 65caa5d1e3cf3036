"""Decisions of a plan: a pure function of the hit, fair, and bounded by ``when``."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.fault_table import Boundary
from conf.sections.faults import FaultRule
from runners.services.faults.plan import MAX_FORESEEN, Fault, FaultPlan, Injection, parse_attempt

Hit = tuple[Boundary, str, int, int]


def rule(where: str = "turn", what: str = "error", **when: Any) -> FaultRule:
    return FaultRule.model_validate({"where": where, "what": what, "when": when})


wheres = st.sampled_from(["session", "turn", "grade"])
rules = st.builds(
    lambda where, probability, k, attempts: rule(
        where, probability=probability, k=k, attempts=attempts
    ),
    wheres,
    st.floats(min_value=0.001, max_value=1.0),
    st.none() | st.integers(1, 5),
    st.none() | st.integers(1, 3),
)
hits = st.tuples(wheres, st.text(max_size=12), st.integers(0, 5), st.integers(1, 9))


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**40),
    given_rules=st.lists(rules, max_size=5),
    drawn=st.lists(hits, max_size=20, unique=True),
    shuffle=st.randoms(use_true_random=False),
)
def test_a_plan_decides_the_same_in_any_order(
    seed: int, given_rules: list[FaultRule], drawn: list[Hit], shuffle: random.Random
) -> None:
    first = {hit: FaultPlan(seed, given_rules).decide(*hit) for hit in drawn}
    again = FaultPlan(seed, given_rules)
    shuffle.shuffle(drawn)
    assert {hit: again.decide(*hit) for hit in drawn} == first


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**40),
    given_rules=st.lists(rules, max_size=5),
    rollout_id=st.text(max_size=12),
    attempt=st.integers(0, 4),
)
def test_what_is_foreseen_is_what_happens(
    seed: int, given_rules: list[FaultRule], rollout_id: str, attempt: int
) -> None:
    plan = FaultPlan(seed, given_rules)
    decided = {k: plan.decide("turn", rollout_id, attempt, k) for k in range(1, MAX_FORESEEN + 1)}
    expected = {k: fault for k, fault in decided.items() if fault is not None}
    assert plan.foresee("turn", rollout_id, attempt) == expected


@pytest.mark.parametrize("probability", [0.01, 0.2, 0.5, 0.97])
def test_the_share_of_hits_follows_the_probability(probability: float) -> None:
    plan = FaultPlan(11, [rule(probability=probability)])
    draws = 10_000
    hits = sum(
        plan.decide("turn", f"train-{i // 100}", i % 10, i // 10 % 10 + 1) is not None
        for i in range(draws)
    )
    margin = 4 * (draws * probability * (1 - probability)) ** 0.5  # sigmas
    assert abs(hits - draws * probability) < margin


def test_seed_rule_rollout_and_attempt_each_change_the_draw() -> None:
    half = rule(probability=0.5)
    base = FaultPlan(0, [half])

    def pattern(plan: FaultPlan, rollout_id: str = "r", attempt: int = 0) -> list[bool]:
        return [plan.decide("turn", rollout_id, attempt, k) is not None for k in range(1, 65)]

    patterns = [
        pattern(base),
        pattern(base, rollout_id="s"),
        pattern(base, attempt=1),
        pattern(FaultPlan(1, [half])),
        pattern(FaultPlan(0, [rule("grade"), half])),
    ]
    assert all(one != other for i, one in enumerate(patterns) for other in patterns[:i])


def test_the_first_rule_that_applies_wins_and_no_rule_is_no_fault() -> None:
    plan = FaultPlan(0, [rule("grade"), rule(what="cut", k=3), rule(what="abort")])
    what = [fault.what for k in (1, 2, 3, 4) if (fault := plan.decide("turn", "r", 0, k))]
    assert what == ["abort", "abort", "cut", "abort"]
    assert FaultPlan(3, []).decide("turn", "r", 0, 1) is None


def test_when_restricts_hit_attempts_and_rollouts() -> None:
    plan = FaultPlan(0, [rule(k=2, attempts=2, rollouts="train-000001-*")])
    hit = [
        (rollout_id, attempt, k)
        for rollout_id in ("train-000001-000-00", "train-000002-000-00", "eval-000001-000-00")
        for attempt in range(4)
        for k in range(1, 5)
        if plan.decide("turn", rollout_id, attempt, k)
    ]
    assert hit == [("train-000001-000-00", 0, 2), ("train-000001-000-00", 1, 2)]


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("train-000001-000-00-a0", ("train-000001-000-00", 0)),
        ("train-000001-000-00-a12-grade", ("train-000001-000-00", 12)),
        ("eval-a1-a2", ("eval-a1", 2)),
        ("by-hand", ("by-hand", 0)),
        ("", ("", 0)),
    ],
)
def test_names_of_sessions_and_sandboxes_give_their_attempt(
    name: str, owner: tuple[str, int]
) -> None:
    assert parse_attempt(name) == owner


class NoEvents:
    """An ``Events`` that keeps nothing."""

    def event(self, kind: str, data: dict[str, Any]) -> None:
        """Ignore it."""


def test_hits_are_counted_for_each_attempt_and_boundary() -> None:
    injection = Injection(FaultPlan(0, [rule(k=2), rule("grade", k=1)]), NoEvents())
    hits: list[tuple[Boundary, str]] = [
        ("turn", "r-a0"),
        ("turn", "r-a1"),
        ("grade", "r-a0-grade"),
        ("turn", "r-a0"),
        ("turn", "r-a0"),
    ]
    drawn = [injection.draw(where, name) for where, name in hits]
    assert [fault and (fault.where, fault.attempt, fault.k) for fault in drawn] == [
        None,
        None,
        ("grade", 0, 1),
        ("turn", 0, 2),
        None,
    ]


def test_the_event_of_a_fault_has_the_fields_that_a_report_compares() -> None:
    fault = Fault(3, "turn", "status", "train-000001-000-00", 1, 2, status=503)
    assert fault.to_event() == {
        "rule": 3,
        "where": "turn",
        "what": "status",
        "rollout_id": "train-000001-000-00",
        "attempt": 1,
        "k": 2,
        "status": 503,
    }
