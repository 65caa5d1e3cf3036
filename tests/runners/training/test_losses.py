"""The clipped policy loss."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from conf.sections.training import CorrectionConfig
from runners.training.contract import PolicyLoss, TrainedTokens
from runners.training.losses import (
    ClippedSurrogate,
    SequenceSurrogate,
    WeightedReinforce,
    compute_importance_weights,
    reinforce,
)
from tests.fakes.local_trainer import NO_CORRECTION


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
    correction = CorrectionConfig.model_validate({**NO_CORRECTION, **changes})
    flat = torch.tensor([value for row in log_ratios for value in row])
    rows = torch.tensor([index for index, row in enumerate(log_ratios) for _ in row])
    zeros = torch.zeros_like(flat)
    part = compute_importance_weights(flat, zeros, zeros - 1 + 2 * (rows % 2), rows, correction)
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
    correction = CorrectionConfig.model_validate({**NO_CORRECTION, "truncate": "token"})
    zeros = torch.zeros(1)
    part = compute_importance_weights(old, zeros, zeros, zeros.long(), correction)
    assert not part.weights.requires_grad


# Each loss against the formula of its paper, written out for one sequence at a time in numpy, with
# gradients by central differences.

Array = NDArray[np.float64]


def ppo(now: Array, old: Array, advantage: float) -> list[float]:
    losses = []
    for ratio in np.exp(now - old):
        clipped = min(max(ratio, 0.8), 1.28)
        losses.append(-min(ratio * advantage, clipped * advantage))
    return losses


def dual_ppo(now: Array, old: Array, advantage: float) -> list[float]:
    single = ppo(now, old, advantage)
    return [min(loss, -1.5 * advantage) for loss in single] if advantage < 0 else single


def gspo(now: Array, old: Array, advantage: float) -> list[float]:
    ratio = np.exp((now - old).sum() / len(now))
    clipped = min(max(ratio, 0.8), 1.28)
    return [-min(ratio * advantage, clipped * advantage)] * len(now)


def plain(now: Array, old: Array, advantage: float) -> list[float]:
    return [-advantage * each for each in now]


def a_batch(seed: int) -> tuple[list[tuple[Array, Array, float]], TrainedTokens]:
    """Return sequences of 1 to 6 tokens, and the same as the trainer has them."""
    random = np.random.default_rng(seed)
    sequences = []
    for _ in range(5):
        length = random.integers(1, 7)
        old = -random.exponential(1.0, length)
        now = old + random.normal(0, 0.3, length)
        sequences.append((now, old, random.choice([-1.0, 1.0]) * random.uniform(0.1, 2)))
    now, old = (np.concatenate([each[part] for each in sequences]) for part in (0, 1))
    lengths = [len(each[0]) for each in sequences]
    return sequences, TrainedTokens(
        torch.tensor(now, requires_grad=True), torch.tensor(old), torch.tensor(old),
        torch.tensor(np.repeat([each[2] for each in sequences], lengths)),
        torch.tensor(np.repeat(range(len(sequences)), lengths)),
    )  # fmt: skip


def slopes(
    loss: Callable[[Array, Array, float], list[float]], now: Array, old: Array, advantage: float
) -> list[float]:
    """Return the gradient of the summed loss for each logprob."""
    found = []
    for index in range(len(now)):
        step = np.zeros(len(now))
        step[index] = 1e-6
        above, below = (sum(loss(now + sign * step, old, advantage)) for sign in (1, -1))
        found.append((above - below) / 2e-6)
    return found


@pytest.mark.parametrize(
    ("loss", "paper"),
    [
        (ClippedSurrogate(0.2, 0.28), ppo),
        (ClippedSurrogate(0.2, 0.28, dual=1.5), dual_ppo),
        (SequenceSurrogate(0.2, 0.28), gspo),
        (reinforce, plain),
    ],
)
@pytest.mark.parametrize("seed", range(6))
def test_losses_and_gradients_are_those_of_the_paper(
    loss: PolicyLoss, paper: Callable[[Array, Array, float], list[float]], seed: int
) -> None:
    sequences, tokens = a_batch(seed)
    found = loss(tokens).losses
    assert found.tolist() == pytest.approx([x for each in sequences for x in paper(*each)])
    found.sum().backward()  # type: ignore[no-untyped-call]
    assert tokens.logprobs.grad is not None
    expected = [slope for each in sequences for slope in slopes(paper, *each)]
    assert tokens.logprobs.grad.tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_cispo_weighs_every_token_by_its_bounded_ratio(seed: int) -> None:
    sequences, tokens = a_batch(seed)
    found = WeightedReinforce(0.28)(tokens)
    found.losses.sum().backward()  # type: ignore[no-untyped-call]
    expected = [
        -min(math.exp(now - old), 1.28) * advantage
        for nows, olds, advantage in sequences
        for now, old in zip(nows, olds, strict=True)
    ]
    assert tokens.logprobs.grad is not None
    assert tokens.logprobs.grad.tolist() == pytest.approx(expected)
    assert found.clipped_low is None
    assert found.clipped_high is not None
    assert found.clipped_high.sum() == sum(abs(each) > 1.2799 * a for each, a in zip(
        expected, tokens.advantages.abs().tolist(), strict=True
    ))  # fmt: skip


@pytest.mark.parametrize(
    "loss",
    [ClippedSurrogate(0.2, 0.28), SequenceSurrogate(0.2, 0.28), WeightedReinforce(0.3), reinforce],
)
def test_a_sequences_loss_is_the_same_whatever_is_batched_with_it(loss: PolicyLoss) -> None:
    _, tokens = a_batch(1)
    whole = loss(tokens).losses
    for row in range(5):
        own = tokens.rows == row
        part = TrainedTokens(
            tokens.logprobs[own], tokens.old_logprobs[own], tokens.rollout_logprobs[own],
            tokens.advantages[own], tokens.rows[own] - row,
        )  # fmt: skip
        assert torch.equal(loss(part).losses, whole[own])


def test_a_floor_bounds_the_weights_from_below() -> None:
    weights, counts = corrected([[0.0, -3.0, 3.0]], truncate="token", floor=0.5)
    assert weights == pytest.approx([1.0, 0.5, 2.0])
    assert counts == (2, 0)


def test_tokens_outside_their_band_are_left_out_and_no_others() -> None:
    weights, counts = corrected([[0.0, -LOG2, LOG2]], mask_outside=(0.6, 3.0))
    assert weights == [1.0, 0.0, 1.0]
    assert counts == (0, 1)


def test_sequences_with_a_negative_advantage_are_left_out_beyond_their_distance() -> None:
    """The advantages of ``corrected`` are −1 in even rows and 1 in odd ones."""
    ratios = [[-0.3, -0.3], [-0.3, -0.3], [0.3, 0.3], [-0.1, -0.1], [-0.1, -0.1]]
    weights, counts = corrected(ratios, reject_negative_above=0.2)
    assert weights == [0.0, 0.0, *[1.0] * 8]
    assert counts == (0, 2)
