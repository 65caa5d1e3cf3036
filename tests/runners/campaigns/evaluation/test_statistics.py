"""pass@k and intervals, against values computed by hand or by counting."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.observe.figures.statistics import (
    bootstrap_interval,
    mean_interval,
    pass_at_k,
    summarize_values,
    task_interval,
    wilson_interval,
)


@pytest.mark.parametrize(
    ("samples", "solved", "k", "wanted"),
    [
        (4, 1, 1, 1 / 4),
        (4, 1, 2, 1 / 2),  # 1 - C(3,2)/C(4,2) = 1 - 3/6
        (5, 2, 3, 9 / 10),  # 1 - C(3,3)/C(5,3) = 1 - 1/10
        (5, 3, 3, 1.0),  # any three of five hold one of the three
        (3, 0, 3, 0.0),
        (1, 1, 1, 1.0),
    ],
)
def test_pass_at_k_has_the_value_of_the_paper(
    samples: int, solved: int, k: int, wanted: float
) -> None:
    assert pass_at_k(samples, solved, k) == pytest.approx(wanted)


@given(
    st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n)))
)
def test_pass_at_k_is_the_share_of_choices_with_a_solved_one(case: tuple[int, int, int]) -> None:
    samples, solved, k = case
    choices = list(combinations(range(samples), k))
    good = sum(any(index < solved for index in choice) for choice in choices)
    assert pass_at_k(samples, solved, k) == pytest.approx(good / len(choices))


@pytest.mark.parametrize(("samples", "solved", "k"), [(2, 1, 3), (2, 3, 1), (2, -1, 1), (2, 1, 0)])
def test_pass_at_k_refuses_what_has_no_unbiased_estimate(samples: int, solved: int, k: int) -> None:
    with pytest.raises(ValueError, match="pass@"):
        pass_at_k(samples, solved, k)


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        (7, 10, 0.3968, 0.8922),
        (0, 10, 0.0, 0.2775),  # z² / (n + z²) = 3.8415 / 13.8415
        (10, 10, 0.7225, 1.0),
        (50, 100, 0.4038, 0.5962),
    ],
)
def test_wilsons_interval_has_its_known_values(
    successes: int, trials: int, low: float, high: float
) -> None:
    assert wilson_interval(successes, trials) == pytest.approx((low, high), abs=5e-5)


def test_no_values_have_no_interval_and_no_spread() -> None:
    assert wilson_interval(0, 0) is None
    assert bootstrap_interval([]) is None
    assert summarize_values([]) is None


def test_the_bootstrap_interval_of_many_tasks_is_that_of_the_normal_distribution() -> None:
    values = [1.0] * 120 + [0.0] * 280
    error = math.sqrt(0.3 * 0.7 / 400)
    low, high = bootstrap_interval(values) or (0, 0)
    assert (low, high) == pytest.approx((0.3 - 1.96 * error, 0.3 + 1.96 * error), abs=0.004)


def test_the_bootstrap_interval_of_two_tasks_holds_every_mean_of_two() -> None:
    assert bootstrap_interval([0.0, 1.0]) == (0.0, 1.0)
    assert bootstrap_interval([0.25, 0.25, 0.25]) == (0.25, 0.25)


def test_the_same_values_give_the_same_interval_however_many_there_are() -> None:
    values = [float(index % 3 == 0) for index in range(3000)]
    assert bootstrap_interval(values) == bootstrap_interval(values)


def test_a_spread_is_mean_median_95_percent_and_maximum() -> None:
    assert summarize_values(range(101)) == {"mean": 50.0, "p50": 50.0, "p95": 95.0, "max": 100.0}


@pytest.mark.parametrize(
    ("number", "quantile"), [(2, 12.706), (3, 4.303), (10, 2.262), (11, 2.228), (31, 2.042)]
)
def test_the_interval_of_a_mean_is_student_s(number: int, quantile: float) -> None:
    """Quantiles of the published tables, for one degree of freedom fewer than values."""
    values = [float(index % 5) for index in range(number)]
    found = mean_interval(values)
    assert found is not None
    error = np.std(values, ddof=1) / number**0.5
    assert np.mean(found) == pytest.approx(np.mean(values))
    assert (found[1] - found[0]) / 2 / error == pytest.approx(quantile, abs=0.004)
    assert mean_interval(values[:1]) is None


def test_tasks_that_are_all_alike_prove_no_certain_rate() -> None:
    """The bootstrap of 0 of 4 is [0, 0]; so is that of 4 tasks with 0 of 16 rollouts each."""
    assert task_interval([0.0] * 4) == pytest.approx((0.0, 0.48989), abs=5e-5)
    assert task_interval([1.0] * 4) == pytest.approx((0.51011, 1.0), abs=5e-5)
    low, high = task_interval([0.25] * 8) or (0.0, 0.0)
    assert low < 0.25 < high
    assert task_interval([1.0, 0.0]) == wilson_interval(1, 2)
    mixed = [0.0, 0.5, 1.0, 0.25]
    assert task_interval(mixed) == bootstrap_interval(mixed)
    assert task_interval([]) is None
