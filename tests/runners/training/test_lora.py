"""Adapters in the local trainer: against plain peft, their merged weights, and their base."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from runners.records.checkpoints import ADAPTER, CheckpointError
from runners.training import checkpoint
from runners.training.contract import TrainingError
from runners.training.local import LocalTrainer
from runners.training.policy import load_policy
from tests.fakes.local_trainer import VOCAB, logprobs, make_rollouts, make_trainer
from tests.fakes.policies import write_policy
from tests.fakes.tiny_model import write_tiny_model
from tests.fakes.variants import variants

peft = pytest.importorskip("peft", reason="pip install 'agentrl-campaigns[lora]'")
LORA = {"rank": 4, "alpha": 8}
TOKENS = np.random.default_rng(5).integers(0, VOCAB, 20).astype(np.int32)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random tiny policy."""
    return write_tiny_model(tmp_path_factory.mktemp("policy"), vocab_size=VOCAB)


def adapters_of(trainer: LocalTrainer) -> dict[str, Tensor]:
    return {
        name: parameter.detach().clone()
        for name, parameter in trainer.model.named_parameters()
        if parameter.requires_grad
    }


def trained(weights: Path, steps: int = 2, **changes: Any) -> LocalTrainer:
    trainer = make_trainer(weights, lora=LORA, learning_rate=1e-2, **changes)
    for _ in range(steps):
        trainer.step(make_rollouts(trainer, 6))
    return trainer


def test_a_policy_begins_as_its_base(weights: Path) -> None:
    assert np.array_equal(
        logprobs(make_trainer(weights, lora=LORA), TOKENS), logprobs(make_trainer(weights), TOKENS)
    )


def test_gradients_are_those_of_plain_peft_code(weights: Path) -> None:
    """The loss of the first update on one on-policy rollout is −A · mean(logp)."""
    trainer = trained(weights)
    rollouts = make_rollouts(trainer, 1)
    (sample,) = rollouts[0]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        plain = peft.get_peft_model(
            load_policy(weights),
            peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "o_proj"]),
        )
    named = dict(plain.get_base_model().named_parameters())
    for name, value in adapters_of(trainer).items():
        named[name].data.copy_(value)
    tokens = torch.from_numpy(sample.tokens.astype(np.int64))[None]
    logits = plain(input_ids=tokens).logits[0, :-1] / trainer.temperature
    chosen = logits.log_softmax(-1).gather(1, tokens[0, 1:, None])[:, 0]
    loss = -sample.advantage * chosen[torch.from_numpy(sample.loss_mask[1:])].mean()
    loss.backward()
    trainer.config = trainer.config.model_copy(update={"grad_clip": 1e9})
    trainer.step(rollouts)
    for name, parameter in trainer.model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None
            assert torch.allclose(parameter.grad, named[name].grad, atol=1e-6), name


def test_adapters_alone_are_trained_and_have_state_in_the_optimizer(weights: Path) -> None:
    trainer = trained(weights)
    base = load_policy(weights).state_dict()
    for name, value in trainer.model.state_dict().items():
        if ".lora_" not in name:
            assert torch.equal(value, base[name.replace(".base_layer.", ".")]), name
    moments = list(trainer.optimizer.state)
    assert len(moments) == len(adapters_of(trainer)) == 2 * 2 * 3
    assert all(float(value.abs().sum()) > 0 for value in adapters_of(trainer).values())


def test_merged_weights_compute_what_the_adapters_compute(weights: Path, tmp_path: Path) -> None:
    trainer = trained(weights)
    saved = checkpoint.save(trainer, tmp_path, step=2, state={})
    merged = make_trainer(saved.path)
    found = np.abs(logprobs(merged, TOKENS) - logprobs(trainer, TOKENS)).max()
    moved = np.abs(logprobs(make_trainer(weights), TOKENS) - logprobs(trainer, TOKENS)).max()
    assert found < 2e-5
    assert moved > 1e-2


@pytest.mark.parametrize(
    ("family", "target"),
    variants(
        [
            *(("qwen3", "gate_proj"), ("glm4_moe", "o_proj"), ("qwen3_next", "q_proj")),
            *(("qwen3_5, multi-modal", "v_proj"), ("qwen3_5_moe", "o_proj")),
        ],
        [("glm4_moe", "o_proj"), ("qwen3_5_moe", "o_proj")],
    ),
)
def test_adapters_of_every_family_are_trained_and_merged(
    family: str, target: str, tmp_path: Path
) -> None:
    base = write_policy(family, tmp_path / "base")
    lora = {**LORA, "targets": ("k_proj", target)}
    trainer = make_trainer(base, lora=lora, learning_rate=1e-2)
    for _ in range(2):
        assert trainer.step(make_rollouts(trainer, 4))["policy/grad_norm"] > 0
    adapters = adapters_of(trainer)
    assert all(".layers." in name and ".visual." not in name for name in adapters)
    assert {name.split(".lora_")[0].rpartition(".")[2] for name in adapters} == {"k_proj", target}
    saved = checkpoint.save(trainer, tmp_path, step=2, state={})
    found = logprobs(make_trainer(saved.path), TOKENS) - logprobs(trainer, TOKENS)
    assert np.abs(found).max() < 1e-4
    resumed = make_trainer(base, lora=lora, seed=1)
    checkpoint.restore(resumed, saved)
    for name, value in adapters.items():
        assert torch.equal(adapters_of(resumed)[name], value)


def test_a_step_after_a_checkpoint_is_the_same_as_without_one(
    weights: Path, tmp_path: Path
) -> None:
    """Merging for a checkpoint leaves no rounding in the policy."""
    one, other = trained(weights), trained(weights)
    checkpoint.save(one, tmp_path, step=2, state={})
    for name, value in one.model.state_dict().items():
        assert torch.equal(value, other.model.state_dict()[name]), name


def test_peft_loads_the_adapters_of_a_checkpoint_onto_their_base(
    weights: Path, tmp_path: Path
) -> None:
    trainer = trained(weights, merges=False)
    saved = checkpoint.save(trainer, tmp_path, step=2, state={})
    files = sorted(str(file.relative_to(saved.path)) for file in saved.path.rglob("*"))
    assert files == [
        *(ADAPTER, f"{ADAPTER}/adapter_config.json", f"{ADAPTER}/adapter_model.safetensors"),
        *("optimizer.safetensors", "trainer_state.json"),
    ]
    loaded = peft.AutoPeftModelForCausalLM.from_pretrained(
        saved.path / ADAPTER, dtype=torch.float32
    )
    tokens = torch.from_numpy(TOKENS.astype(np.int64))[None]
    with torch.no_grad():
        found, expected = loaded(tokens).logits, trainer.model(tokens).logits
    assert torch.allclose(found, expected, atol=1e-4)


def test_the_reference_is_the_base_without_a_second_policy(weights: Path) -> None:
    penalty = {"weight": 0.5, "estimator": "k3", "place": "loss"}
    trainer = make_trainer(weights, lora=LORA, learning_rate=1e-2, kl=penalty)
    assert trainer.reference is None
    for _ in range(3):
        metrics = trainer.step(make_rollouts(trainer, 6))
    assert metrics["policy/kl"] > 1e-4
    rollouts = make_rollouts(trainer, 2)
    samples = [sample for rollout in rollouts for sample in rollout]
    base = make_trainer(weights)
    for sample in trainer._compare(samples):
        expected = logprobs(base, sample.tokens) * sample.loss_mask
        assert sample.reference_logprobs is not None
        assert np.allclose(sample.reference_logprobs, expected, atol=1e-5)
    assert all(parameter.requires_grad for parameter in trainer.optimizer.state)


@pytest.mark.parametrize("merges", [True, False])
def test_a_restored_trainer_continues_bit_for_bit(
    weights: Path, tmp_path: Path, merges: bool
) -> None:
    trainer = trained(weights, merges=merges, minibatches=2)
    saved = checkpoint.save(trainer, tmp_path, step=2, state={"metrics": {}})
    resumed = make_trainer(weights, seed=99, lora=LORA, learning_rate=1e-2, minibatches=2)
    checkpoint.restore(resumed, saved)
    rollouts = make_rollouts(trainer, 8)
    assert trainer.step(rollouts)["loss/policy"] == resumed.step(rollouts)["loss/policy"]
    for name, value in trainer.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name


def test_adapters_stay_float32_beside_a_base_in_bfloat16(weights: Path, tmp_path: Path) -> None:
    trainer = make_trainer(weights, lora=LORA, learning_rate=1e-2, precision="bfloat16")
    rollouts = make_rollouts(make_trainer(weights), 6)
    trainer.step(rollouts)
    assert {each.dtype for each in adapters_of(trainer).values()} == {torch.float32}
    projection = trainer.model.get_submodule("model.layers.0.self_attn.q_proj.base_layer")
    assert projection.weight.dtype == torch.bfloat16
    saved = checkpoint.save(trainer, tmp_path, step=2, state={})
    resumed = make_trainer(weights, seed=9, lora=LORA, learning_rate=1e-2, precision="bfloat16")
    checkpoint.restore(resumed, saved)
    assert trainer.step(rollouts)["loss/policy"] == resumed.step(rollouts)["loss/policy"]
    for name, value in adapters_of(trainer).items():
        assert torch.equal(value, adapters_of(resumed)[name]), name
    merged = make_trainer(saved.path)
    base = load_policy(weights).state_dict()
    change = (
        merged.model.state_dict()["model.layers.0.self_attn.q_proj.weight"]
        - base["model.layers.0.self_attn.q_proj.weight"].bfloat16()
    )
    assert 0 < change.abs().max() < 1, "the change is not rounded away"


def test_a_checkpoint_of_other_adapters_is_refused(weights: Path, tmp_path: Path) -> None:
    saved = checkpoint.save(trained(weights), tmp_path, step=2, state={})
    more = make_trainer(weights, lora={**LORA, "targets": ("q_proj", "k_proj")})
    with pytest.raises(CheckpointError, match="other adapters"):
        checkpoint.restore(more, saved)
    larger = make_trainer(weights, lora={**LORA, "rank": 8})
    with pytest.raises(CheckpointError, match="size mismatch"):
        checkpoint.restore(larger, saved)


def test_new_adapters_follow_from_the_seed_and_leave_torchs_own_generator(weights: Path) -> None:
    before = torch.random.get_rng_state()
    one, same, other = (make_trainer(weights, lora=LORA, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    name = next(name for name in adapters_of(one) if "lora_A" in name)
    assert torch.equal(adapters_of(one)[name], adapters_of(same)[name])
    assert not torch.equal(adapters_of(one)[name], adapters_of(other)[name])


def test_a_target_that_the_policy_does_not_have_is_refused_by_name(weights: Path) -> None:
    with pytest.raises(
        TrainingError,
        match=r"trainer\.lora\.targets: gate_proj, lm_head is no linear layer.*are k_proj, o_proj",
    ):
        make_trainer(weights, lora={**LORA, "targets": ("q_proj", "gate_proj", "lm_head")})


def test_a_dense_layer_of_a_mixture_is_refused_too(tmp_path: Path) -> None:
    """Peft would put adapters on the stacked experts instead, which no engine here takes."""
    base = write_policy("glm4_moe", tmp_path)
    with pytest.raises(TrainingError, match=r"targets: down_proj is no linear.*those are k_proj"):
        make_trainer(base, lora={**LORA, "targets": ("q_proj", "down_proj")})


def test_activations_are_recomputed_with_the_same_gradients(weights: Path) -> None:
    kept, again = trained(weights), trained(weights, recompute=True)
    for name, value in adapters_of(kept).items():
        assert torch.allclose(value, adapters_of(again)[name], atol=1e-6), name
