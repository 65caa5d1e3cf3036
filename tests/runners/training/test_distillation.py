"""On-policy distillation: its advantage, its gradient, and that it goes down the divergence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conf.compose import compose
from conf.errors import ConfigError
from conf.sections.training import DistillConfig
from runners.training.distillation import distill
from runners.training.local import LocalTrainer
from runners.training.micro_batches import MicroBatch, make_micro_batches, select_tokens
from runners.training.policy import load_policy
from runners.training.sample import Sample, has_gradient
from tests.fakes.local_trainer import VOCAB, make_rollouts, make_trainer
from tests.fakes.tiny_model import write_tiny_model

URL = "http://127.0.0.1:1"


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("policy"), vocab_size=VOCAB)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("teacher"), vocab_size=VOCAB, seed=5)


def settings(weight: float = 0.5, *, alone: bool = False) -> dict[str, Any]:
    return {"url": URL, "weight": weight, "alone": alone, "deadline_s": 5.0}


def test_a_token_that_the_teacher_finds_likelier_gains() -> None:
    advantages, rollout = torch.tensor([1.0, 1.0, 0.0]), torch.tensor([-2.0, -1.0, -3.0])
    found = torch.tensor([-1.0, -4.0, -3.0])
    mixed = distill(advantages, rollout, found, DistillConfig(**settings()))
    assert mixed.tolist() == [1.5, -0.5, 0.0]
    alone = distill(advantages, rollout, found, DistillConfig(**settings(2.0, alone=True)))
    assert alone.tolist() == [2.0, -6.0, 0.0]


def test_the_policy_gradient_of_the_advantage_is_that_of_the_reverse_divergence() -> None:
    """Over all tokens of a vocabulary, weighted by the policy that samples them."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(16, generator=generator, dtype=torch.float64).requires_grad_()
    other = torch.randn(16, generator=generator, dtype=torch.float64).log_softmax(0)
    policy = logits.log_softmax(0)
    (exact,) = torch.autograd.grad(
        (policy.exp() * (policy - other)).sum(), logits, retain_graph=True
    )
    config = DistillConfig(**settings(1.0, alone=True))
    gains = distill(torch.zeros(16), policy.detach(), other, config)
    loss = -(policy.detach().exp() * gains * policy).sum()
    assert torch.allclose(torch.autograd.grad(loss, logits)[0], exact)


def teach(rollouts: list[list[Sample]], policy: Any, temperature: float) -> list[list[Sample]]:
    """Return rollouts with the logprobs of a teacher, by plain transformers."""
    taught = []
    for (sample,) in rollouts:
        ids = torch.from_numpy(sample.tokens.astype(np.int64))
        with torch.no_grad():
            logits = policy(ids[None]).logits[0, :-1] / temperature
        chosen = logits.log_softmax(-1).gather(1, ids[1:, None])[:, 0].numpy()
        found = np.concatenate([[0.0], chosen]) * sample.loss_mask
        taught.append([replace(sample, teacher_logprobs=found.astype(np.float32))])
    return taught


def plain_loss(trainer: LocalTrainer, rollouts: list[list[Sample]], weight: float) -> Tensor:
    """−(A + w (log π_T − log π)) · log π, the mean over rollouts of their tokens' means."""
    losses = []
    for (sample,) in rollouts:
        assert sample.teacher_logprobs is not None
        ids = torch.from_numpy(sample.tokens.astype(np.int64))
        logits = trainer.model(ids[None]).logits[0, :-1] / trainer.temperature
        chosen = logits.log_softmax(-1).gather(1, ids[1:, None])[:, 0]
        opinion = torch.from_numpy(sample.teacher_logprobs - sample.logprobs)[1:]
        gains = (sample.advantage + weight * opinion) * chosen
        losses.append(-gains[torch.from_numpy(sample.loss_mask[1:])].mean())
    return torch.stack(losses).mean()


@pytest.mark.parametrize("loss", ["ppo", "reinforce", "cispo"])
@pytest.mark.parametrize("advantage", [0.0, 1.5])
def test_the_gradient_of_a_step_is_that_of_the_formula(
    loss: str, advantage: float, weights: Path, teacher: Path
) -> None:
    frozen: dict[str, Any] = {"learning_rate": 1e-12, "grad_clip": 1e9}
    trainer = make_trainer(weights, loss=loss, distill=settings(0.3), **frozen)
    rollouts = make_rollouts(trainer, 4, advantage=advantage)
    rollouts = teach(rollouts, load_policy(teacher), trainer.temperature)
    metrics = trainer.step(rollouts)
    found = [p.grad.clone() for p in trainer.model.parameters() if p.grad is not None]
    trainer.model.zero_grad(set_to_none=True)
    plain_loss(trainer, rollouts, 0.3).backward()  # type: ignore[no-untyped-call]
    wanted = [p.grad for p in trainer.model.parameters() if p.grad is not None]
    assert len(found) == len(wanted) > 0
    for one, other in zip(found, wanted, strict=True):
        assert torch.allclose(one, other, atol=1e-5, rtol=1e-4)
    gaps = [
        (sample.logprobs - sample.teacher_logprobs)[sample.loss_mask]
        for (sample,) in rollouts
        if sample.teacher_logprobs is not None
    ]
    assert metrics["policy/kl_teacher"] == pytest.approx(np.concatenate(gaps).mean(), rel=1e-5)


PROMPTS = torch.tensor([[3, 40], [7, 11], [90, 2], [55, 56]])


def predict(policy: Any, temperature: float) -> Tensor:
    """Logprobs of the token after each prompt, [prompts, vocabulary]."""
    with torch.no_grad():
        found: Tensor = (policy(PROMPTS).logits[:, -1] / temperature).log_softmax(-1)
    return found


def test_a_policy_comes_nearer_to_its_teacher_without_any_reward(
    weights: Path, teacher: Path
) -> None:
    trainer = make_trainer(
        weights, distill=settings(1.0, alone=True), loss="reinforce", learning_rate=2e-3
    )
    other = predict(load_policy(teacher), trainer.temperature)
    generator, divergences = torch.Generator().manual_seed(0), []
    for _ in range(16):
        own = predict(trainer.model, trainer.temperature)
        divergences.append((own.exp() * (own - other)).sum(-1).mean().item())
        sampled = torch.multinomial(own.exp(), 16, replacement=True, generator=generator)
        rollouts = []
        for row, column in np.ndindex(*sampled.shape):
            token = int(sampled[row, column])
            ids = np.array([*PROMPTS[row].tolist(), token], np.int32)
            found = [np.array([0, 0, each[row, token]], np.float32) for each in (own, other)]
            one = Sample(f"r{row}-{column}", ids, np.arange(3) == 2, found[0], 0.0)
            rollouts.append([replace(one, teacher_logprobs=found[1])])
        trainer.step(rollouts)
    assert divergences[-1] < 0.6 * divergences[0], divergences


def test_a_flat_group_has_a_gradient_where_there_is_a_teacher() -> None:
    one = Sample("r", np.arange(3, dtype=np.int32), np.arange(3) > 0, np.zeros(3, np.float32), 0.0)
    assert not has_gradient(one, compose(["run.steps=1"]).trainer)
    assert has_gradient(
        one, compose([f"trainer.distill.url={URL}", "sampling.temperature=1"]).trainer
    )


def test_a_sample_whose_routing_is_refused_hears_nothing_of_its_teacher_either() -> None:
    """Beside others in its micro-batch, whose tokens are trained."""
    ids, mask = np.arange(4, dtype=np.int32), np.arange(4) > 1
    own = np.array([0, 0, -1, -2], np.float32)
    one = Sample("r", ids, mask, own, 1.0, teacher_logprobs=2 * own)
    both = [one.without_routing(), replace(one, rollout_id="s")]
    (batch,) = make_micro_batches(
        both, [1.0, 1.0], tokens_per_microbatch=64, device=torch.device("cpu")
    )
    config = DistillConfig(**settings(1.0))

    def gains(part: MicroBatch) -> list[float]:
        assert part.teacher_logprobs is not None
        found = distill(part.advantages, part.rollout_logprobs, part.teacher_logprobs, config)
        return [float(each) for each in found]

    by_row = dict(zip(batch.rollout_ids, [gains(batch)[:2], gains(batch)[2:]], strict=True))
    assert by_row == {"r": [0.0, 0.0], "s": [0.0, -1.0]}
    last = select_tokens(batch, torch.tensor([False, False, False, True]))
    assert gains(last) == [gains(batch)[3]]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("sampling.temperature=0.7", "sampling.temperature=0.7 and trainer.distill.url"),
        ("rollout.replace_flat=true", "rollout.replace_flat=true replaces groups"),
        ("trainer.distill.weight=0", "trainer.distill.weight"),
    ],
)
def test_what_a_teacher_cannot_go_with_is_refused(line: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        compose([f"trainer.distill.url={URL}", "sampling.temperature=1", line])


def test_slime_has_no_teacher() -> None:
    slime = ["trainer=slime", "model=qwen3_30b_a3b", "model.path=weights", "launch=ssh"]
    with pytest.raises(ConfigError, match=r"trainer\.distill"):
        compose([*slime, f"trainer.distill.url={URL}"])
