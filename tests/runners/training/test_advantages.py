"""Advantages against the formulas of their papers, and what holds for all of them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from conf.compose import compose
from conf.sections.training import AdvantageName
from runners.training.advantages import (
    AdvantageEstimator,
    Gdpo,
    GrpoEstimator,
    StepGroups,
    compute_group_advantages,
    make_estimator,
    normalize_step,
)
from tests.fakes.records import a_rollout

Array = NDArray[np.float64]
REWARD = st.floats(-2, 2).map(lambda value: round(value, 3))
GROUP = st.lists(REWARD, min_size=2, max_size=12)
SOLVED = st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=12)
GRADED_OR_NOT = st.lists(st.one_of(st.none(), REWARD), min_size=1, max_size=12)


@functools.cache
def estimator(name: str) -> AdvantageEstimator:
    lines = [f"trainer.advantage={name}", "reward.malformed_penalty=0.1"]
    if name == "rejection":
        lines.append("trainer.accept_reward=0.5")
    return make_estimator(compose(lines).trainer)


def leave_one_out(rewards: Array) -> Array:
    others = np.array([np.delete(rewards, index).mean() for index in range(len(rewards))])
    return np.asarray(rewards - others)


PAPERS: dict[str, Callable[[Array], Array]] = {
    "grpo": lambda rewards: (rewards - rewards.mean()) / rewards.std(),
    "dr_grpo": lambda rewards: rewards - rewards.mean(),
    "rloo": leave_one_out,
    "reinforce_pp_baseline": lambda rewards: rewards - rewards.mean(),
    "reinforce_pp": lambda rewards: rewards,
    "rejection": lambda rewards: (rewards >= 0.5).astype(float),
}
UNCOMPARED = ("reinforce_pp", "rejection")
"""Estimators that compare a rollout with none of its group."""


@pytest.mark.parametrize("name", PAPERS)
@given(rewards=GROUP)
def test_a_group_has_the_advantages_of_the_paper(name: str, rewards: list[float]) -> None:
    array = np.array(rewards)
    found = estimator(name)(rewards)
    if array.std() < 1e-6 and name not in UNCOMPARED:
        assert list(found) == [0.0] * len(rewards)
    else:
        assert np.allclose(found, PAPERS[name](array), rtol=1e-9, atol=1e-9)


@given(SOLVED)
def test_max_rl_estimates_the_gradient_of_the_log_of_the_solve_rate(rewards: list[float]) -> None:
    """Theorem of arXiv 2602.02710: the mean score of the solved ones, less the mean of all."""
    array = np.array(rewards)
    found = np.array(estimator("max_rl")(rewards))
    scores = np.random.default_rng(0).normal(size=len(rewards))
    if array.sum() in (0, len(array)):
        assert not found.any()
        return
    expected = scores[array == 1].mean() - scores.mean()
    assert np.mean(found * scores) == pytest.approx(expected)


# GDPO. The formulas of arXiv 2601.05242, sections 3.1 and 3.2, written out in numpy.
PARTS = st.integers(2, 7).flatmap(
    lambda size: st.lists(
        st.fixed_dictionaries({name: REWARD for name in ("tests", "length", "style")}),
        min_size=size, max_size=size,
    )
)  # fmt: skip
WEIGHTS = {"tests": 1.0, "length": 0.25}


def gdpo(parts: list[dict[str, float]]) -> Array:
    total = np.zeros(len(parts))
    for name in parts[0]:
        column = np.array([each[name] for each in parts])
        if column.std() > 1e-6:
            total += WEIGHTS.get(name, 1.0) * (column - column.mean()) / column.std()
    return total


@given(PARTS, st.integers(0, 99))
def test_gdpo_normalises_every_part_in_its_group(parts: list[dict[str, float]], seed: int) -> None:
    estimator = Gdpo(WEIGHTS)
    found = np.array(estimator.compare_parts(parts))
    assert np.allclose(found, gdpo(parts))
    order = np.random.default_rng(seed).permutation(len(parts))
    assert np.allclose(estimator.compare_parts([parts[index] for index in order]), found[order])
    scaled = [{**each, "length": 7 * each["length"] - 2} for each in parts]
    if np.std([each["length"] for each in parts]) > 1e-6:
        assert np.allclose(estimator.compare_parts(scaled), found, atol=1e-6)
    signs = Gdpo({"tests": -1.0, "length": -0.25})
    assert signs.compare_parts(parts) == estimator.compare_parts(parts)
    only = [{"tests": each["tests"]} for each in parts]
    assert estimator.compare_parts(only) == list(estimator([each["tests"] for each in parts]))


def test_gdpo_tells_apart_what_the_sum_of_a_reward_does_not() -> None:
    """Figure 2 of the paper: (0, 1) and (0, 2) are one and the same to GRPO."""
    two = [{"a": 0.0, "b": 0.0}, {"a": 0.0, "b": 1.0}], [{"a": 0.0, "b": 0.0}, {"a": 1.0, "b": 1.0}]
    sums = [[math.fsum(each.values()) for each in group] for group in two]
    assert [estimator("grpo")(each) for each in sums] == [[-1.0, 1.0]] * 2
    assert [Gdpo({}).compare_parts(each) for each in two] == [[-1.0, 1.0], [-2.0, 2.0]]


PARTED = [
    [{"tests": 1.0, "cost": -0.1}, {"tests": 0.0, "cost": 0.0}, {}],
    [{"tests": 0.0, "cost": -0.3}, {"tests": 0.0, "cost": -0.2}],
]


def test_gdpo_is_normalised_over_the_groups_of_a_step() -> None:
    """Of both groups the penalty is unknown to the configuration, and weighs as much as the tests.

    In the first they cancel; what is left of the second has the standard deviation √½ of the step.
    """
    groups = StepGroups(compose(["trainer.advantage=gdpo", "reward.malformed_penalty=0.1"]))
    for group, parts in enumerate(PARTED):
        groups.add(
            a_rollout(
                f"train-000001-{group:02}-{member:02}", group=group, reward_parts=each,
                reward=math.fsum(each.values()) if each else None,
            )
            for member, each in enumerate(parts)
        )  # fmt: skip
    found = [advantage for _, advantage in groups.advantages]
    assert found == pytest.approx([0.0, 0.0, None, -(2**0.5), 2**0.5])
    assert groups.flat == [0]


@given(
    st.integers(2, 12).flatmap(
        lambda size: st.lists(
            st.tuples(st.booleans(), REWARD, REWARD), min_size=size, max_size=size
        )
    )
)
def test_under_the_rule_of_gdpo_a_solved_task_has_the_higher_advantage(
    members: list[tuple[bool, float, float]],
) -> None:
    """Penalties that the rule just allows, in a group of this size."""
    rate = 0.999 * math.sqrt(2 / len(members)) / 2
    parts = [{"tests": float(solved), "a": a, "b": b} for solved, a, b in members]
    found = Gdpo({"tests": 1.0, "a": rate, "b": rate}).compare_parts(parts)
    solved = [value for value, each in zip(found, members, strict=True) if each[0]]
    others = [value for value, each in zip(found, members, strict=True) if not each[0]]
    assert min(solved, default=1.0) > max(others, default=-1.0) or not (solved and others)


NAMES = (*PAPERS, "max_rl", "gdpo")


@pytest.mark.parametrize("name", NAMES)
@given(rewards=GROUP, seed=st.integers(0, 99))
def test_the_order_of_rollouts_does_not_matter(name: str, rewards: list[float], seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(rewards))
    found = np.array(estimator(name)(rewards))
    assert np.allclose(estimator(name)([rewards[index] for index in order]), found[order])


@pytest.mark.parametrize("name", [name for name in NAMES if name not in UNCOMPARED])
@given(rewards=GROUP, shift=st.integers(-3, 3))
def test_advantages_sum_to_zero_and_a_constant_changes_none(
    name: str, rewards: list[float], shift: int
) -> None:
    found = estimator(name)(rewards)
    assert abs(math.fsum(found)) < 1e-6 * max(1.0, *map(abs, found))
    if name != "max_rl":  # its scale is that of the reward
        assert np.allclose(estimator(name)([each + shift for each in rewards]), found, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
@given(rewards=GROUP)
def test_a_rollout_without_a_grade_moves_nobody(name: str, rewards: list[float]) -> None:
    with_failure = compute_group_advantages([*rewards, None], estimator(name), min_group=2)
    assert with_failure == [
        *compute_group_advantages(rewards, estimator(name), min_group=2),
        None,
    ]
    assert compute_group_advantages([1.0, None], estimator(name), min_group=2) == [None, None]


@given(st.lists(st.one_of(st.none(), REWARD), max_size=12))
def test_a_step_is_normalised_over_what_has_an_advantage(values: list[float | None]) -> None:
    known = np.array([value for value in values if value is not None])
    found = normalize_step(values)
    assert [each is None for each in found] == [value is None for value in values]
    numbers = np.array([each for each in found if each is not None])
    if len(known) and known.std() > 1e-6:
        assert np.allclose(numbers, (known - known.mean()) / known.std())
    else:
        assert not numbers.any()


@pytest.mark.parametrize(
    ("name", "expected", "flat"),
    [
        # Over all four: mean 0.75, standard deviation sqrt(3)/4.
        ("reinforce_pp", [3**-0.5, 3**-0.5, 3**-0.5, -(3**0.5)], []),
        # The first group has no spread; over [0, 0, ½, −½] the mean is 0, the deviation sqrt(⅛).
        ("reinforce_pp_baseline", [0.0, 0.0, 2**0.5, -(2**0.5)], [0]),
    ],
)
def test_reinforce_pp_compares_over_the_groups_of_a_step(
    name: AdvantageName, expected: list[float], flat: list[int]
) -> None:
    groups = StepGroups(compose([f"trainer.advantage={name}"]))
    members: list[list[float | None]] = [[1.0, 1.0, None], [1.0, 0.0]]
    for group, rewards in enumerate(members):
        groups.add(
            a_rollout(f"train-000001-{group:02}-{member:02}", group=group, reward=reward)
            for member, reward in enumerate(rewards)
        )
    found = [advantage for _, advantage in groups.advantages]
    assert found[2] is None
    assert [each for each in found if each is not None] == pytest.approx(expected)
    assert groups.flat == flat


def test_accepted_rollouts_are_trained_where_all_of_a_group_are_and_none_elsewhere() -> None:
    settings = ["trainer.advantage=rejection", "trainer.accept_reward=0.9", "reward.turn_penalty=0"]
    members: list[list[float | None]] = [[1.0, 0.9, None], [0.94, 0.2], [0.5, 0.0]]
    for replace_flat, rest in ((False, 0.0), (True, None)):
        groups = StepGroups(compose([*settings, f"rollout.replace_flat={replace_flat}"]))
        for group, rewards in enumerate(members):
            groups.add(
                a_rollout(f"train-000001-{group:02}-{member:02}", group=group, reward=reward)
                for member, reward in enumerate(rewards)
            )
        found = [advantage for _, advantage in groups.advantages]
        assert found == [1.0, 1.0, None, 1.0, 0.0, rest, rest]
        assert groups.flat == [2]
        assert groups.untrainable == replace_flat


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


@given(GRADED_OR_NOT, st.booleans())
def test_advantages_of_a_group_sum_to_zero(rewards: list[float | None], normalize: bool) -> None:
    advantages = compute_group_advantages(rewards, GrpoEstimator(normalize), min_group=2)
    graded = [advantage for advantage in advantages if advantage is not None]
    assert abs(math.fsum(graded)) < 1e-6
    assert all(
        advantage is None
        for advantage, reward in zip(advantages, rewards, strict=True)
        if reward is None
    )
