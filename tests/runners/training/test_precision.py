"""bfloat16 with float32 master weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from runners.training import checkpoint
from runners.training.local import LocalTrainer
from runners.training.precision import MasterWeights
from tests.fakes.local_trainer import make_trainer
from tests.fakes.plain_gradients import compute_plainly, find_difference, make_rollouts
from tests.fakes.policies import FAMILIES, ROUTING, TYPICAL, VOCAB, load_plain, write_policy
from tests.fakes.variants import variants

BF16: dict[str, Any] = {"precision": "bfloat16"}


@pytest.fixture(scope="module", params=variants(FAMILIES, TYPICAL))
def weights(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_policy(request.param, tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_policy("qwen3", tmp_path_factory.mktemp("policy"))


def masters(trainer: LocalTrainer) -> dict[str, nn.Parameter]:
    return trainer.weights.trained


def gradients(trainer: LocalTrainer) -> dict[str, torch.Tensor]:
    return {name: each.grad for name, each in masters(trainer).items() if each.grad is not None}


def test_a_step_is_no_further_from_float32_than_transformers_in_bfloat16(weights: Path) -> None:
    """How far that is depends on the policy: a rounded weight alone moves a hybrid's logprobs by
    0.05 nats with random weights.
    """
    rollouts = make_rollouts()
    trainer = make_trainer(weights, loss="reinforce", grad_clip=1e9, **BF16)
    trainer.step(rollouts)
    exact = compute_plainly(weights, rollouts)
    plain = compute_plainly(weights, rollouts, torch.bfloat16)
    found = gradients(trainer)
    assert found.keys() == exact.keys()
    assert all(each.dtype == torch.float32 for each in found.values())
    allowed, error = find_difference(plain, exact), find_difference(found, exact)
    assert 1e-4 < error < max(1.5 * allowed, 0.02)


def test_what_the_policy_computes_with_is_its_masters_rounded(weights: Path) -> None:
    trainer = make_trainer(weights, learning_rate=1e-2, **BF16)
    trainer.step(make_rollouts())
    kept = set()
    for name, each in trainer.model.named_parameters():
        if each.requires_grad:
            master = masters(trainer)[name]
            assert torch.equal(each, master.to(each.dtype)), name
        if each.dtype == torch.float32:
            kept.add(name.rpartition(".")[2] if "gate" not in name else "router")
    assert kept <= {"router", "A_log", "dt_bias"}


def test_a_restored_trainer_continues_bit_for_bit_and_its_weights_are_the_masters(
    weights: Path, tmp_path: Path
) -> None:
    trainer = make_trainer(weights, **BF16)
    rollouts = make_rollouts()
    trainer.step(rollouts)
    saved = checkpoint.save(trainer, tmp_path, step=1, state={"metrics": {}})
    plain = dict(load_plain(saved.path).named_parameters())
    for name, master in masters(trainer).items():
        assert torch.equal(plain[name], master), name
        assert plain[name].dtype == torch.float32
    resumed = make_trainer(weights, seed=9, **BF16)
    checkpoint.restore(resumed, saved)
    trainer.step(rollouts)
    resumed.step(rollouts)
    for name, master in masters(trainer).items():
        assert torch.equal(master, masters(resumed)[name]), name
    for mine, theirs in zip(trainer.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_small_updates_add_up_that_would_be_lost_in_bfloat16(dense: Path) -> None:
    trainer = make_trainer(dense, learning_rate=1e-6, **BF16)
    before = {name: each.detach().clone() for name, each in masters(trainer).items()}
    rollouts = make_rollouts()
    for _ in range(2):
        trainer.step(rollouts)
    name = "model.layers.0.mlp.up_proj.weight"
    moved = (masters(trainer)[name] - before[name]).abs()
    assert moved.mean() > 1e-6
    unchanged = before[name].bfloat16() == masters(trainer)[name].bfloat16()
    assert unchanged.float().mean() > 0.9


def test_gradients_of_many_micro_batches_are_added_in_float32(dense: Path) -> None:
    """A hundred parts, each a hundredth: in bfloat16 the later ones would vanish in the sum."""
    policy: Any = load_plain(dense)
    weights = MasterWeights(policy, "bfloat16")
    copy = policy.model.layers[0].mlp.up_proj.weight
    for _ in range(1000):
        torch.autograd.backward((copy * 0.01).sum())
    master = weights.trained["model.layers.0.mlp.up_proj.weight"]
    assert master.grad is not None
    expected = 1000 * torch.tensor(0.01).bfloat16().float()
    torch.testing.assert_close(master.grad, expected.expand_as(master), rtol=1e-5, atol=0)
    assert copy.grad is None


def test_logits_are_computed_in_float32_and_their_gradient_reaches_the_master_unrounded(
    dense: Path,
) -> None:
    policy: Any = load_plain(dense)
    weights = MasterWeights(policy, "bfloat16")
    hidden = torch.randn(7, 64).bfloat16().requires_grad_()
    logits = weights.make_head(policy)(hidden)
    assert logits.dtype == torch.float32
    rounded = policy.lm_head.weight.detach().double()
    torch.testing.assert_close(logits.double(), hidden.double() @ rounded.T, rtol=1e-5, atol=1e-5)
    upstream = torch.randn(7, VOCAB)
    torch.autograd.backward((logits * upstream).sum())
    master = weights.trained["model.embed_tokens.weight"]
    torch.testing.assert_close(master.grad, upstream.T @ hidden.detach().float())


@pytest.mark.parametrize("family", ROUTING)
def test_routers_choose_in_float32(family: str, tmp_path: Path) -> None:
    trainer = make_trainer(write_policy(family, tmp_path), **BF16)
    seen = []
    for module in trainer.model.modules():
        if type(module).__name__.endswith("Router"):
            module.register_forward_hook(lambda _, inputs, out: seen.append((inputs[0], out)))
    trainer.step(make_rollouts(2))
    assert seen
    for hidden, (logits, scores, _) in seen:
        assert hidden.dtype == torch.float32 or "glm" in family
        assert logits.dtype == scores.dtype == torch.float32


def test_recomputed_activations_give_the_same_gradients(weights: Path) -> None:
    found = []
    for recompute in (False, True):
        trainer = make_trainer(weights, recompute=recompute, **BF16)
        trainer.step(make_rollouts())
        found.append(gradients(trainer))
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-4, atol=1e-6)


def test_the_reference_policy_is_rounded_too_so_the_penalty_begins_at_zero(dense: Path) -> None:
    kl = {"weight": 0.1, "estimator": "k3", "place": "loss"}
    trainer = make_trainer(dense, kl=kl, **BF16)
    metrics = trainer.step(make_rollouts())
    assert metrics.get("policy/kl", 0.0) == pytest.approx(0.0, abs=1e-9)


def test_a_checkpoint_names_the_precision_in_which_its_policy_acts(
    dense: Path, tmp_path: Path
) -> None:
    trainer = make_trainer(dense, **BF16)
    saved = checkpoint.save(trainer, tmp_path, step=1, state={})
    config = (saved.path / "config.json").read_text()
    assert '"dtype": "bfloat16"' in config
    tensors = load_file(saved.path / "model.safetensors")
    assert {each.dtype for each in tensors.values()} == {torch.float32}
    assert np.isfinite(sum(float(each.sum()) for each in tensors.values()))
