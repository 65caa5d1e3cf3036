"""A supervised step, and rejection sampling: the gradient of the likelihood, nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conf.sections.training import RoutingRolloutConfig
from runners.training.local import LocalTrainer
from runners.training.sample import Sample
from runners.training.supervised.step import train_on_examples
from tests.fakes.local_trainer import VOCAB, make_examples, make_rollouts, make_trainer
from tests.fakes.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("policy"), vocab_size=VOCAB)


def mean_nll(trainer: LocalTrainer, examples: list[Sample], temperature: float = 1.0) -> Tensor:
    """The mean over all trained tokens of −log p, in plain transformers."""
    parts = []
    for example in examples:
        ids = torch.from_numpy(example.tokens.astype(np.int64))[None]
        logits = trainer.model(ids).logits[0, :-1] / temperature
        chosen = logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        parts.append(-chosen[torch.from_numpy(example.loss_mask[1:])])
    return torch.cat(parts).mean()


def gradients(trainer: LocalTrainer) -> list[Tensor]:
    return [p.grad.clone() for p in trainer.model.parameters() if p.grad is not None]


def expect_gradients(trainer: LocalTrainer, loss: Tensor) -> None:
    """Compare the gradients that a step has left behind with those of ``loss``."""
    found = gradients(trainer)
    trainer.model.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    for one, other in zip(found, gradients(trainer), strict=True):
        assert torch.allclose(one, other, atol=1e-5, rtol=1e-4)


UNUSED = {
    "loss": "gspo", "minibatches": 3, "epochs": 2, "entropy_bonus": 0.5, "aggregation": "rollout",
    "kl": {"weight": 0.5, "estimator": "k3", "place": "loss"},
    "correction": {"truncate": "token", "mask_outside": (0.9, 1.1)},
}  # fmt: skip


@pytest.mark.parametrize("settings", [{}, UNUSED])
def test_the_gradient_is_that_of_the_mean_likelihood_per_token(
    settings: dict[str, Any], weights: Path
) -> None:
    frozen: dict[str, Any] = {"learning_rate": 1e-12, "grad_clip": 1e9}
    trainer = make_trainer(weights, **settings, **frozen)
    examples = make_examples()
    metrics = train_on_examples(trainer, examples)
    loss = mean_nll(trainer, examples)
    assert metrics["sft/nll"] == pytest.approx(loss.item(), rel=1e-5)
    assert metrics["sft/tokens"] == sum(int(each.loss_mask.sum()) for each in examples)
    assert (metrics["sft/examples"], metrics["train/updates"], trainer.steps) == (6, 1.0, 1)
    expect_gradients(trainer, loss)


def test_steps_on_examples_make_them_likelier_and_rollouts_follow(weights: Path) -> None:
    trainer, examples = make_trainer(weights), make_examples()
    found = [train_on_examples(trainer, examples)["sft/nll"] for _ in range(8)]
    assert found == sorted(found, reverse=True)
    assert found[-1] < found[0] - 0.05
    trainer.step(make_rollouts(trainer, 4))
    assert trainer.steps == 9
    assert trainer.temperature == 0.7


def test_a_policy_whose_routing_is_replayed_chooses_its_own_experts_for_examples(
    weights: Path,
) -> None:
    replay = RoutingRolloutConfig.model_construct(
        kind="rollout", on_fault="stop", shadow_every=0, alarm_disagreement=1.0
    )
    plain, replaying = make_trainer(weights), make_trainer(weights, routing=replay)
    one, other = (train_on_examples(each, make_examples()) for each in (plain, replaying))
    assert one["sft/nll"] == other["sft/nll"]
    assert replaying.replay is not None


def test_accepted_rollouts_are_trained_by_their_likelihood(weights: Path) -> None:
    """Rejection sampling with loss=reinforce; a rejected rollout counts in the mean alone."""
    settings: dict[str, Any] = {"advantage": "rejection", "accept_reward": 1.0, "loss": "reinforce"}
    trainer = make_trainer(weights, learning_rate=1e-12, grad_clip=1e9, **settings)
    examples = make_examples(4)
    rollouts = [[replace(each, advantage=float(n != 1))] for n, each in enumerate(examples)]
    trainer.step(rollouts)
    accepted = [mean_nll(trainer, [each], 0.7) for n, each in enumerate(examples) if n != 1]
    expect_gradients(trainer, torch.stack(accepted).sum() / 4)
