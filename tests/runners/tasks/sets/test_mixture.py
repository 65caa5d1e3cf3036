"""Draws from several sets: by weight, from the beginning on, and nothing else."""

from __future__ import annotations

from fractions import Fraction
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from runners.tasks.sets.mixture import Draws, draw_sets

WEIGHTS = st.lists(
    st.sampled_from([0.001, 0.1, 0.25, 0.3, 1.0, 2.0, 3.0, 7.5]), min_size=1, max_size=5
)


@given(WEIGHTS)
def test_every_set_has_its_share_of_the_draws_so_far_within_one(weights: list[float]) -> None:
    exact = [Fraction(str(weight)) for weight in weights]
    drawn = [0] * len(weights)
    for number, chosen in enumerate(islice(draw_sets(weights), 200), 1):
        drawn[chosen] += 1
        for count, weight in zip(drawn, exact, strict=True):
            assert abs(count - number * weight / sum(exact)) < 1


@given(WEIGHTS, st.integers(0, 150), st.integers(1, 50))
def test_any_window_of_draws_has_the_shares_within_two(
    weights: list[float], start: int, length: int
) -> None:
    window = list(islice(draw_sets(weights), start, start + length))
    for index, weight in enumerate(weights):
        share = length * Fraction(str(weight)) / sum(Fraction(str(w)) for w in weights)
        assert abs(window.count(index) - share) < 2


def test_weights_are_relative() -> None:
    for same in ([3.0, 1.0], [0.75, 0.25], [300.0, 100.0]):
        assert list(islice(draw_sets(same), 8)) == [0, 0, 0, 1, 0, 0, 0, 1]


@given(WEIGHTS, st.lists(st.integers(0, 120), min_size=1, max_size=5))
def test_a_draw_is_the_same_in_whatever_order_they_are_asked(
    weights: list[float], numbers: list[int]
) -> None:
    draws, before = Draws(weights), list(islice(draw_sets(weights), 121))
    for number in numbers:
        chosen, place = draws[number]
        assert chosen == before[number]
        assert place == before[:number].count(chosen)
