"""The metrics of the difference between trainer and engine."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runners.training.mismatch import Mismatch


def test_figures_match_hand_values() -> None:
    mismatch = Mismatch()
    mismatch.add(torch.tensor([math.log(3.0), 0.0]), torch.tensor([0.0, 0.0]))
    mismatch.add(torch.tensor([0.0, -math.log(1.2)]), torch.tensor([0.0, 0.0]))
    figures = mismatch.metrics()
    deltas = [math.log(3.0), 0.0, 0.0, -math.log(1.2)]
    assert figures["k1"] == pytest.approx(-sum(deltas) / 4, rel=1e-5)
    assert figures["k3"] == pytest.approx(sum(math.exp(d) - 1 - d for d in deltas) / 4, rel=1e-5)
    assert figures["F_1.1"] == 0.5
    assert figures["F_2"] == 0.25
    assert figures["p999_abs"] == pytest.approx(math.log(3.0), rel=0.01)


@given(st.lists(st.floats(-5, 5), min_size=1))
def test_k3_is_never_negative_and_zero_without_a_difference(values: list[float]) -> None:
    there = torch.tensor(values)
    differing, same = Mismatch(), Mismatch()
    differing.add(there, torch.zeros(len(values)))
    same.add(there, there)
    k3 = differing.metrics()["k3"]
    assert k3 is not None
    assert k3 >= 0.0
    assert same.metrics() == dict.fromkeys(same.metrics(), 0.0)


def test_without_tokens_no_figure_is_known() -> None:
    assert set(Mismatch().metrics().values()) == {None}
