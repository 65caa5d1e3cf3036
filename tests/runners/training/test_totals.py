"""Figures of a step's updates: each by its formula."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runners.training.contract import TokenLosses, TrainedTokens
from runners.training.losses import ClippedSurrogate
from runners.training.totals import StepTotals

LOGPROBS = st.floats(-20, 0, width=32)


def tokens(now: list[float], old: list[float], advantages: list[float]) -> TrainedTokens:
    """Return tokens of one sample each."""
    first, second, third = (
        torch.tensor(values, dtype=torch.float32) for values in (now, old, advantages)
    )
    return TrainedTokens(first, second, second, third, torch.arange(len(now)))


def clipped(ratio: float, advantage: float, dual: float | None = None) -> tuple[float, float]:
    """Return the shares of one token whose gradient a low and a high bound takes."""
    one = tokens([math.log(ratio)], [0.0], [advantage])
    totals = StepTotals()
    totals.add_tokens(one, ClippedSurrogate(0.2, 0.28, dual)(one), torch.zeros(1))
    metrics = totals.metrics(0.0)
    return metrics["policy/clipped_low"], metrics["policy/clipped_high"]


def test_a_bound_counts_where_it_takes_the_gradient_only() -> None:
    assert clipped(0.5, -1.0) == (1.0, 0.0)
    assert clipped(2.0, 1.0) == (0.0, 1.0)
    assert clipped(0.5, 1.0) == clipped(2.0, -1.0) == clipped(1.1, 1.0) == (0.0, 0.0)
    assert clipped(4.0, -1.0, dual=3.0) == (0.0, 1.0)


@given(st.lists(st.tuples(LOGPROBS, LOGPROBS), min_size=1, max_size=20))
def test_the_effective_sample_size_is_that_of_the_ratios(pairs: list[tuple[float, float]]) -> None:
    own, rollout = (torch.tensor(values) for values in zip(*pairs, strict=True))
    totals = StepTotals()
    half = len(pairs) // 2
    for part in (slice(half), slice(half, None)):
        totals.add_ratios(own[part], rollout[part])
    totals.tokens = len(pairs)
    ratios = np.exp((own - rollout).double().numpy())
    expected = ratios.sum() ** 2 / (ratios**2).sum() / len(pairs)
    found = totals.metrics(0.0)["policy/ess"]
    assert found == pytest.approx(expected, rel=1e-6)
    assert 0.0 < found <= 1.0 + 1e-9


def test_a_ratio_beyond_all_measure_leaves_the_figure_finite() -> None:
    totals = StepTotals(tokens=2)
    totals.add_ratios(torch.tensor([0.0, -1.0]), torch.tensor([-2000.0, -1.0]))
    assert totals.metrics(0.0)["policy/ess"] == pytest.approx(0.5)


def test_entropy_and_divergences_are_means_over_tokens() -> None:
    batch = tokens([-1.0, -2.0, -0.5], [-1.2, -2.0, -0.4], [1.0, 1.0, 1.0])
    reference = torch.tensor([-1.5, -1.0, -0.5])
    totals = StepTotals()
    assert totals.metrics(0.0)["policy/kl"] is None
    totals.add_tokens(batch, TokenLosses(batch.logprobs), torch.tensor([0.5, 1.0, 3.0]))
    totals.add_distance(batch.logprobs, reference)
    metrics = totals.metrics(0.0)

    def k3(sampled: list[float], other: list[float]) -> float:
        distances = np.array(other) - np.array(sampled)
        return float(np.mean(np.exp(distances) - 1 - distances))

    assert metrics["policy/entropy"] == pytest.approx(1.5)
    assert metrics["policy/kl"] == pytest.approx(k3([-1, -2, -0.5], [-1.5, -1, -0.5]))
    assert metrics["policy/kl_step"] == pytest.approx(k3([-1.2, -2, -0.4], [-1, -2, -0.5]))


def test_a_step_without_an_update_has_the_same_keys() -> None:
    totals = StepTotals()
    empty = totals.metrics(0.0)
    batch = tokens([-1.0], [-1.0], [1.0])
    totals.add_tokens(batch, TokenLosses(batch.logprobs), torch.ones(1))
    totals.count_update(1.0, 2.0)
    assert totals.metrics(0.0).keys() == empty.keys()
    assert [empty[name] for name in ("loss/policy", "policy/entropy", "policy/grad_norm")] == [
        None
    ] * 3
