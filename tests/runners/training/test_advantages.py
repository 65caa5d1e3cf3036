"""GRPO's advantage."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.training.advantages import GrpoEstimator, compute_group_advantages

REWARDS = st.lists(
    st.one_of(st.none(), st.floats(-2, 2, allow_nan=False).map(lambda value: round(value, 3))),
    min_size=1,
    max_size=12,
)


def test_a_group_is_normalised_by_mean_and_population_std() -> None:
    advantages = compute_group_advantages([1.0, 0.0, 0.0, 0.0], GrpoEstimator(), min_group=2)
    assert advantages == pytest.approx([math.sqrt(3), *[-1 / math.sqrt(3)] * 3])


def test_without_std_the_advantage_is_the_distance_from_the_mean() -> None:
    assert compute_group_advantages(
        [1.0, 0.0], GrpoEstimator(normalize_std=False), min_group=2
    ) == [0.5, -0.5]


def test_an_ungraded_rollout_does_not_touch_the_baseline() -> None:
    with_failure = compute_group_advantages([1.0, None, 0.0], GrpoEstimator(), min_group=2)
    assert with_failure == [1.0, None, -1.0]


def test_an_all_solved_group_has_advantage_exactly_zero() -> None:
    assert compute_group_advantages([0.94] * 8, GrpoEstimator(), min_group=2) == [0.0] * 8


def test_a_group_below_min_group_has_no_advantage_at_all() -> None:
    assert compute_group_advantages([1.0, None, None], GrpoEstimator(), min_group=2) == [
        None,
        None,
        None,
    ]


@given(REWARDS, st.booleans())
def test_advantages_of_a_group_sum_to_zero(rewards: list[float | None], normalize: bool) -> None:
    advantages = compute_group_advantages(rewards, GrpoEstimator(normalize), min_group=2)
    graded = [advantage for advantage in advantages if advantage is not None]
    assert abs(math.fsum(graded)) < 1e-6
    assert all(
        advantage is None
        for advantage, reward in zip(advantages, rewards, strict=True)
        if reward is None
    )
