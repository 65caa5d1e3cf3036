"""The clipped policy loss."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runners.training.losses import clipped_policy_loss


def _loss(ratio: float, advantage: float) -> tuple[float, float]:
    """Loss and gradient with respect to the logprob, for one token of weight 1."""
    logprob = torch.tensor([math.log(ratio)], requires_grad=True)
    part = clipped_policy_loss(
        logprob, torch.zeros(1), torch.tensor([advantage]), torch.ones(1), low=0.2, high=0.28
    )
    part.loss.backward()  # type: ignore[no-untyped-call]
    assert logprob.grad is not None
    return part.loss.item(), logprob.grad.item()


def test_on_policy_the_gradient_is_minus_the_advantage() -> None:
    assert _loss(1.0, 0.7) == pytest.approx((-0.7, -0.7))


@pytest.mark.parametrize(
    ("ratio", "advantage", "flows"),
    [
        (1.27, 1.0, True),
        (1.29, 1.0, False),
        (0.81, -1.0, True),
        (0.79, -1.0, False),
        (0.1, 1.0, True),
        (3.0, -1.0, True),
    ],
)
def test_the_clip_is_asymmetric_and_only_stops_moves_that_go_further(
    ratio: float, advantage: float, flows: bool
) -> None:
    assert (_loss(ratio, advantage)[1] != 0.0) is flows


@given(st.floats(-3, 3), st.floats(-3, 3))
def test_k3_is_never_negative_and_zero_on_policy(now: float, then: float) -> None:
    part = clipped_policy_loss(
        torch.tensor([now]), torch.tensor([then]), torch.zeros(1), torch.ones(1), low=0.2, high=0.28
    )
    assert part.k3_sum >= -1e-6
    if now == then:
        assert part.k3_sum == 0.0
