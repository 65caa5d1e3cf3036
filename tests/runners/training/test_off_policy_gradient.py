"""The gradient of rollouts of older weights, against the exact one of a policy that is a table.

The policy chooses three tokens of four, each given the one before. Two older versions sampled: one
the first token, another the rest, as when weights change under a running rollout.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from conf.compose import compose
from conf.sections.training import LocalTrainerConfig
from runners.training.micro_batches import MicroBatch, make_micro_batches
from runners.training.objective import Objective
from runners.training.sample import Sample, compute_token_weights
from runners.training.totals import StepTotals

VOCABULARY, LENGTH, SAMPLES = 4, 3, 4000
SEQUENCES = torch.tensor(list(itertools.product(range(VOCABULARY), repeat=LENGTH)))
"""int64 [64, 3]: all of them."""
BEFORE = torch.cat([torch.zeros(len(SEQUENCES), 1, dtype=torch.int64), SEQUENCES[:, :-1]], dim=1)
Truncation = Literal["none", "token", "sequence"]


@dataclass(frozen=True, slots=True)
class World:
    """A policy, what sampled, and the advantages of all sequences; float64."""

    policy: Tensor
    """[4, 4]: logits of a token given the one before."""
    sampled_by: Tensor
    """[64, 3]: log-probability of each token when it was sampled."""
    advantages: Tensor
    """[64]."""

    def logprobs(self) -> Tensor:
        """Return the policy's own, [64, 3], with a gradient."""
        return self.policy.log_softmax(1)[BEFORE, SEQUENCES]

    def gradient(self, loss: Tensor) -> Tensor:
        """Return the gradient of a loss for the policy, [16]."""
        (found,) = torch.autograd.grad(loss, self.policy)
        return found.flatten()

    def moments(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of −Σ_t w_t·A·∇log π_t over sampled sequences, [16]
        each; ``weights``: [64, 3].
        """
        losses = -(weights * self.advantages[:, None] * self.logprobs()).sum(1)
        found = torch.stack(
            [torch.autograd.grad(each, self.policy, retain_graph=True)[0] for each in losses]
        ).flatten(1)
        chances = self.sampled_by.sum(1).exp()[:, None]
        mean = (chances * found).sum(0)
        return mean, (chances * (found - mean) ** 2).sum(0).sqrt()


def make_world() -> World:
    generator = torch.Generator().manual_seed(5)
    tables = torch.randn(3, VOCABULARY, VOCABULARY, generator=generator, dtype=torch.float64)
    now = tables[0]
    first, rest = (now + 0.6 * change for change in tables[1:])
    sampled_by = torch.stack(
        [
            table.log_softmax(1)[BEFORE[:, place], SEQUENCES[:, place]]
            for place, table in enumerate((first, rest, rest))
        ],
        dim=1,
    )
    advantages = torch.randn(len(SEQUENCES), generator=generator, dtype=torch.float64)
    return World(now.requires_grad_(), sampled_by, advantages)


def make_config(truncate: Truncation, cap: float) -> LocalTrainerConfig:
    correction = (f"trainer.correction.truncate={truncate}", f"trainer.correction.cap={cap}")
    config = compose([*correction, "trainer.kl.weight=0"]).trainer
    assert isinstance(config, LocalTrainerConfig)
    return config


def sample(world: World) -> list[Sample]:
    """Return rollouts of what sampled: a prompt of token 0, then three tokens."""
    chances = world.sampled_by.sum(1).exp().numpy()
    drawn = np.random.default_rng(0).choice(len(chances), SAMPLES, p=chances / chances.sum())
    return [
        Sample(
            f"rollout-{number}",
            np.concatenate([[0], SEQUENCES[index].numpy()]).astype(np.int32),
            np.array([False, True, True, True]),
            np.concatenate([[0.0], world.sampled_by[index].numpy()]).astype(np.float32),
            float(world.advantages[index]),
        )
        for number, index in enumerate(drawn)
    ]


def choose(world: World, batch: MicroBatch) -> Tensor:
    """Return the policy's logprobs of a micro-batch and entropies that nobody reads, [n, 2]."""
    before = batch.input_ids.flatten()[batch.predictors][batch.predicted_by]
    found = world.policy.log_softmax(1)[before, batch.targets].float()
    return torch.stack([found, torch.zeros_like(found)], dim=1)


def train(world: World, config: LocalTrainerConfig) -> tuple[Tensor, StepTotals]:
    """Return the trainer's gradient of sampled rollouts, [16], and what it counted."""
    samples, totals, objective = sample(world), StepTotals(), Objective(config)
    weights = compute_token_weights([[each] for each in samples], "constant", 1)
    loss = torch.zeros(())
    for batch in make_micro_batches(
        samples, weights, tokens_per_microbatch=2000, device=torch.device("cpu"), tree=False
    ):
        loss = loss + objective.compute(batch, choose(world, batch), totals)
    return world.gradient(loss.double()), totals


def errors(found: Tensor, mean: Tensor, spread: Tensor) -> float:
    """Return the largest distance of a coordinate from its mean, in standard errors."""
    return float(((found - mean).abs() / (spread / SAMPLES**0.5)).max())


def ratios(world: World) -> Tensor:
    """Return π / μ of each token, [64, 3]."""
    found: Tensor = (world.logprobs() - world.sampled_by).exp().detach()
    return found


def test_with_whole_sequence_weights_the_gradient_is_that_of_the_policy_itself() -> None:
    world = make_world()
    weights = ratios(world).prod(1, keepdim=True).expand(-1, LENGTH)
    cap = float(weights.max()) * 2
    mean, spread = world.moments(weights)
    value = (world.logprobs().sum(1).exp() * world.advantages).sum()
    assert torch.allclose(mean, world.gradient(-value))
    found, totals = train(world, make_config("sequence", cap))
    assert errors(found, mean, spread) < 4
    assert totals.truncated == 0


@pytest.mark.parametrize("cap", [1.2, 2.0])
def test_with_token_weights_it_is_the_truncated_one_and_capped_tokens_are_counted(
    cap: float,
) -> None:
    world = make_world()
    raw = ratios(world)
    mean, spread = world.moments(raw.clamp(max=cap))
    found, totals = train(world, make_config("token", cap))
    assert errors(found, mean, spread) < 4
    chances = world.sampled_by.sum(1).exp()
    capped = (raw > cap).double().mean(1)
    share = float((chances * capped).sum())
    error = float(((chances * (capped - share) ** 2).sum() / SAMPLES) ** 0.5)
    assert share > 0.01
    assert totals.metrics(0.0)["policy/truncated"] == pytest.approx(share, abs=4 * error)


def test_without_a_correction_the_gradient_is_another_one() -> None:
    """So the samples suffice to tell a right correction from none."""
    world = make_world()
    weights = ratios(world).prod(1, keepdim=True).expand(-1, LENGTH)
    found, _ = train(world, make_config("none", 2.0))
    assert errors(found, *world.moments(weights)) > 8
    found, _ = train(world, make_config("token", 2.0))
    assert errors(found, *world.moments(torch.ones_like(weights))) > 8
