"""KL penalty, entropy bonus and learning rate: by their formulas, and in training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import nn

from conf.sections.training import KlConfig
from runners.training.local import LocalTrainer
from runners.training.micro_batches import make_micro_batches
from runners.training.objective import Objective
from runners.training.policy import decay_groups
from runners.training.recompute import LOGITS_CHUNK, Entropy, compute_chosen_logprobs
from runners.training.reference import estimate_kl, penalize, sum_to_end
from runners.training.sample import Sample
from runners.training.schedule import find_learning_rate
from runners.training.totals import StepTotals
from tests.fakes.local_trainer import VOCAB, logprobs, make_rollouts, make_trainer
from tests.fakes.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random tiny policy."""
    return write_tiny_model(tmp_path_factory.mktemp("policy"), vocab_size=VOCAB)


def kl(weight: float, estimator: str = "k3", place: str = "loss") -> dict[str, Any]:
    return {"weight": weight, "estimator": estimator, "place": place}


def test_the_estimators_are_those_of_their_formulas() -> None:
    now, reference = torch.tensor([-1.0, -2.0, -0.5]), torch.tensor([-1.5, -1.0, -0.5])
    assert estimate_kl(now, reference, "k1").tolist() == pytest.approx([0.5, -1.0, 0.0])
    assert estimate_kl(now, reference, "k2").tolist() == pytest.approx([0.125, 0.5, 0.0])
    expected = [np.exp(-0.5) - 1 + 0.5, np.exp(1.0) - 1 - 1.0, 0.0]
    assert estimate_kl(now, reference, "k3").tolist() == pytest.approx(expected)


def test_k1_and_k3_estimate_the_divergence_and_k2_has_its_gradient() -> None:
    """Over all tokens of a vocabulary, weighted by the policy that samples them."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(16, generator=generator, dtype=torch.float64).requires_grad_()
    reference = torch.randn(16, generator=generator, dtype=torch.float64).log_softmax(0)
    policy = logits.log_softmax(0)
    exact = (policy.exp() * (policy - reference)).sum()
    (slope,) = torch.autograd.grad(exact, logits, retain_graph=True)
    sampled = policy.detach().exp()
    for estimator in ("k1", "k3"):
        found = (sampled * estimate_kl(policy, reference, estimator)).sum()
        assert found.item() == pytest.approx(exact.item())
    (found,) = torch.autograd.grad((sampled * estimate_kl(policy, reference, "k2")).sum(), logits)
    assert torch.allclose(found, slope)


def test_a_token_answers_for_what_follows_it_in_its_segment() -> None:
    values = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0])
    rows = torch.tensor([0, 0, 1, 1, 1])
    assert sum_to_end(values, rows).tolist() == [3.0, 2.0, 28.0, 24.0, 16.0]
    assert sum_to_end(values[:0], rows[:0]).tolist() == []
    config = KlConfig(weight=0.5, estimator="k1", place="reward")
    found = penalize(torch.ones(5), values, torch.zeros(5), rows, config)
    assert found.tolist() == [-0.5, 0.0, -13.0, -11.0, -7.0]


@pytest.mark.parametrize("chunked", [False, True])
def test_entropies_and_their_gradients_are_those_of_the_distribution(chunked: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    head = nn.Linear(8, 30, bias=False)
    hidden = torch.randn(5, 8, generator=generator)
    targets = torch.arange(5)
    both = compute_chosen_logprobs(
        head, hidden, torch.arange(len(hidden)), targets, 0.7, chunked=chunked, entropy="gradient"
    )
    distribution = torch.distributions.Categorical(logits=head(hidden) / 0.7)
    expected = distribution.entropy()  # type: ignore[no-untyped-call]
    assert torch.allclose(both[:, 1], expected, atol=1e-6)
    found, wanted = (
        torch.autograd.grad(each.sum(), head.weight, retain_graph=True)[0]
        for each in (both[:, 1], expected)
    )
    assert torch.allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize("chunked", [False, True])
def test_an_entropy_that_is_only_measured_leaves_logprobs_and_gradients_bit_for_bit(
    chunked: bool,
) -> None:
    generator = torch.Generator().manual_seed(2)
    head = nn.Linear(8, 30, bias=False)
    hidden = torch.randn(LOGITS_CHUNK + 5, 8, generator=generator)
    targets = torch.arange(len(hidden)) % 30
    alone, measured, trained = (
        compute_chosen_logprobs(
            head, hidden, torch.arange(len(hidden)), targets, 0.7, chunked=chunked, entropy=entropy
        )
        for entropy in get_args(Entropy)
    )
    assert torch.equal(alone[:, 0], measured[:, 0])
    assert torch.allclose(measured[:, 1], trained[:, 1], atol=1e-6)
    without, beside = (
        torch.autograd.grad(each.sum(), head.weight)[0] for each in (alone, measured)
    )
    assert torch.equal(without, beside)


def a_sample(number: int, length: int) -> Sample:
    random = np.random.default_rng(number)
    mask = np.arange(length) > 1
    found = [np.where(mask, -random.exponential(1, length), 0).astype(np.float32) for _ in "ab"]
    return Sample(
        f"r{number}", np.arange(length, dtype=np.int32), mask, found[0],
        float(random.normal()), reference_logprobs=found[1],
    )  # fmt: skip


@pytest.mark.parametrize("place", ["loss", "reward"])
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_objective_is_the_sum_of_its_weighted_parts(
    weights: Path, place: str, estimator: str
) -> None:
    samples = [a_sample(number, length) for number, length in enumerate((5, 9, 4))]
    config = make_trainer(
        weights, loss="reinforce", kl=kl(0.3, estimator, place), entropy_bonus=0.2
    ).config
    device = torch.device("cpu")
    batches = make_micro_batches(
        samples, [0.5, 0.25, 0.125], tokens_per_microbatch=99, device=device
    )
    objective, entropies = 0.0, {}
    for batch in batches:
        now = batch.rollout_logprobs + 0.1
        found = torch.stack([now, torch.linspace(0.5, 2, len(now))], dim=1)
        objective += Objective(config).compute(batch, found, StepTotals()).item()
        for row, name in enumerate(batch.rollout_ids):
            entropies[name] = found[batch.rows == row, 1].tolist()
    expected = 0.0
    for sample, weight in zip(samples, [0.5, 0.25, 0.125], strict=True):
        places = np.flatnonzero(sample.loss_mask)
        assert sample.reference_logprobs is not None
        sampled, reference = sample.logprobs[places], sample.reference_logprobs[places]
        logp = sampled + 0.1
        for token in range(len(places)):
            at = (logp if place == "loss" else sampled) - reference
            distances = {"k1": at, "k2": at**2 / 2, "k3": np.exp(-at) - 1 + at}[estimator]
            advantage = sample.advantage
            if place == "reward":
                advantage -= 0.3 * sum(distances[token:])
            part = -advantage * logp[token] - 0.2 * entropies[sample.rollout_id][token]
            expected += weight * (part + (0.3 * distances[token] if place == "loss" else 0.0))
    assert objective == pytest.approx(expected, rel=1e-5)


def distance(trainer: LocalTrainer, rollouts: list[list[Sample]]) -> float:
    """Return how far the policy is from what sampled the rollouts, in nats per token."""
    return float(
        np.mean([
            np.abs(logprobs(trainer, item.tokens) - item.logprobs)[item.loss_mask].mean()
            for (item,) in rollouts
        ])
    )  # fmt: skip


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_the_penalty_alone_leads_back_to_the_policy_of_the_beginning(
    weights: Path, estimator: str
) -> None:
    trainer = make_trainer(weights, kl=kl(1.0, estimator))
    rollouts = make_rollouts(trainer, 6)
    still = [[replace(item, advantage=0.0)] for (item,) in rollouts]
    assert trainer.step(still)["loss/policy"] == pytest.approx(0.0, abs=1e-9)
    assert distance(trainer, rollouts) < 1e-4, "there it has no gradient"
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    away = distance(trainer, rollouts)
    metrics = [trainer.step(still) for _ in range(8)]
    assert distance(trainer, rollouts) < 0.8 * away
    assert metrics[0]["policy/kl"] > metrics[-1]["policy/kl"] > 0


def test_with_a_penalty_the_policy_stays_nearer_while_it_learns(weights: Path) -> None:
    free, bound = make_trainer(weights), make_trainer(weights, kl=kl(0.5))
    rollouts = make_rollouts(free, 6)
    for trainer in (free, bound):
        for _ in range(4):
            trainer.step(rollouts)
    assert distance(bound, rollouts) < distance(free, rollouts)


def test_a_bonus_raises_the_entropy_of_samples_without_an_advantage(weights: Path) -> None:
    trainer = make_trainer(weights, entropy_bonus=1.0)
    rollouts = make_rollouts(trainer, 4, advantage=0.0)
    found = [trainer.step(rollouts)["policy/entropy"] for _ in range(4)]
    assert found == sorted(found)
    assert found[-1] > found[0]


def test_micro_batching_does_not_change_the_update(weights: Path) -> None:
    one, many = (
        make_trainer(weights, kl=kl(0.3), entropy_bonus=0.1, tokens_per_microbatch=tokens)
        for tokens in (512, 30)
    )
    rollouts = make_rollouts(one, 8)
    for trainer in (one, many):
        for _ in range(2):
            trainer.step(rollouts)
    for a, b in zip(one.model.parameters(), many.model.parameters(), strict=True):
        assert a.grad is not None
        assert b.grad is not None
        assert (a.grad - b.grad).norm() < 1e-4 * a.grad.norm()


@pytest.mark.parametrize(
    ("changes", "rates"),
    [
        ({}, [1.0] * 6),
        ({"warmup_steps": 4}, [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]),
        ({"decay": "linear", "decay_steps": 5}, [1.0, 0.8, 0.6, 0.4, 0.2, 0.0]),
        (
            {"decay": "linear", "decay_steps": 5, "warmup_steps": 2, "min_learning_rate": 0.2},
            [0.5, 1.0, 0.8, 0.6, 0.4, 0.2],
        ),
        ({"decay": "cosine", "decay_steps": 4}, [1.0, 0.85355, 0.5, 0.14645, 0.0, 0.0]),
    ],
)
def test_the_learning_rate_follows_from_the_step(
    weights: Path, changes: dict[str, Any], rates: list[float]
) -> None:
    config = make_trainer(weights, learning_rate=1.0, **changes).config
    assert [find_learning_rate(config, step) for step in range(1, 7)] == pytest.approx(
        rates, abs=1e-5
    )


def test_an_update_is_made_with_the_rate_of_its_step(weights: Path) -> None:
    trainer = make_trainer(weights, warmup_steps=2, learning_rate=1e-3)
    rollouts = make_rollouts(trainer, 4)
    found = [trainer.step(rollouts)["train/learning_rate"] for _ in range(3)]
    assert found == pytest.approx([5e-4, 1e-3, 1e-3])
    assert {group["lr"] for group in trainer.optimizer.param_groups} == {1e-3}


def test_norms_and_biases_do_not_decay() -> None:
    policy = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))
    matrices, vectors = decay_groups(policy.parameters(), 0.1)
    assert ([p.dim() for p in matrices["params"]], matrices["weight_decay"]) == ([2], 0.1)
    assert ([p.dim() for p in vectors["params"]], vectors["weight_decay"]) == ([1, 1, 1], 0.0)
