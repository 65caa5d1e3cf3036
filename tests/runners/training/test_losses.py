"""The clipped policy loss."""

from __future__ import annotations

import math

import pytest
import torch

from conf.sections.training import CorrectionConfig
from runners.training.loss_contract import TrainedTokens
from runners.training.losses import ClippedSurrogate, compute_importance_weights


def _loss(ratio: float, advantage: float) -> tuple[float, float]:
    """Loss and gradient with respect to the logprob, for one token of weight 1."""
    logprob = torch.tensor([math.log(ratio)], requires_grad=True)
    old, advantages = torch.zeros(1), torch.tensor([advantage])
    tokens = TrainedTokens(logprob, old, old, advantages, torch.zeros(1, dtype=torch.int64))
    loss = ClippedSurrogate(0.2, 0.28)(tokens).losses.sum()
    loss.backward()  # type: ignore[no-untyped-call]
    assert logprob.grad is not None
    return loss.item(), logprob.grad.item()


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


def corrected(
    log_ratios: list[list[float]], **changes: object
) -> tuple[list[float], tuple[int, int]]:
    """Weights of the tokens of some sequences, and how many were truncated and rejected."""
    correction = CorrectionConfig.model_validate(
        {"truncate": "none", "cap": 2.0, "reject_outside": None, **changes}
    )
    flat = torch.tensor([value for row in log_ratios for value in row])
    rows = torch.tensor([index for index, row in enumerate(log_ratios) for _ in row])
    part = compute_importance_weights(flat, torch.zeros_like(flat), rows, correction)
    return part.weights.tolist(), (part.truncated, part.rejected)


LOG2 = math.log(2)


def test_without_a_correction_every_token_weighs_one() -> None:
    assert corrected([[1.0, -1.0]]) == ([1.0, 1.0], (0, 0))


def test_token_weights_are_the_ratios_up_to_the_cap() -> None:
    weights, counts = corrected([[0.0, LOG2 / 2, 3.0], [-LOG2]], truncate="token")
    assert weights == pytest.approx([1.0, 2**0.5, 2.0, 0.5])
    assert counts == (1, 0)


def test_sequence_weights_are_the_product_of_their_tokens_ratios() -> None:
    weights, counts = corrected([[LOG2, -2 * LOG2], [LOG2, LOG2]], truncate="sequence")
    assert weights == pytest.approx([0.5, 0.5, 2.0, 2.0])
    assert counts == (2, 0)


def test_a_sequence_whose_geometric_mean_lies_outside_the_band_is_rejected() -> None:
    ratios = [[0.2, -0.2], [0.3, 0.3], [-0.3, -0.3]]
    band = (math.exp(-0.25), math.exp(0.25))
    weights, counts = corrected(ratios, reject_outside=band)
    assert weights == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    assert counts == (0, 4)


def test_the_weights_carry_no_gradient() -> None:
    old = torch.tensor([0.1], requires_grad=True)
    correction = CorrectionConfig(truncate="token", cap=2.0, reject_outside=None)
    part = compute_importance_weights(
        old, torch.zeros(1), torch.zeros(1, dtype=torch.int64), correction
    )
    assert not part.weights.requires_grad
