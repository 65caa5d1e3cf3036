"""Every family of policies: loads, trains as plain transformers code would, and is saved whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import (
    CohereConfig,
    Gemma2Config,
    GraniteConfig,
    PretrainedConfig,
    ViTConfig,
    ViTModel,
)

from runners.engines.contract import EngineError, SamplingParams
from runners.engines.embedded.core import EngineCore
from runners.training import checkpoint
from runners.training.contract import TrainingError
from runners.training.local import LocalTrainer
from runners.training.policy import find_decoder, load_policy
from runners.training.policy_check import check_policy
from tests.fakes.local_trainer import logprobs as compute_logprobs
from tests.fakes.local_trainer import make_trainer
from tests.fakes.plain_gradients import TEMPERATURE, compute_plainly, make_rollouts
from tests.fakes.policies import FAMILIES, SHARING, TYPICAL, VOCAB, load_plain, write_policy
from tests.fakes.variants import variants


@pytest.fixture(scope="module", params=variants(FAMILIES, TYPICAL))
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def weights(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_policy(family, tmp_path_factory.mktemp("policy"))


def gradients(trainer: LocalTrainer) -> dict[str, torch.Tensor]:
    named = trainer.model.named_parameters()
    return {name: each.grad for name, each in named if each.grad is not None}


def require_equal(
    found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float = 1e-5
) -> None:
    assert found.keys() == expected.keys()
    norm = torch.stack([each.norm() for each in expected.values()]).norm().item()
    for name, gradient in expected.items():
        difference = (found[name] - gradient).norm().item()
        assert difference <= tolerance * max(norm, gradient.norm().item()), name
    assert norm > 0.1


@pytest.mark.parametrize("recompute", [False, True])
def test_a_step_s_gradient_is_that_of_plain_transformers_code(
    family: str, weights: Path, recompute: bool
) -> None:
    rollouts = make_rollouts()
    trainer = make_trainer(weights, loss="reinforce", grad_clip=1e9, recompute=recompute)
    trainer.step(rollouts)
    require_equal(gradients(trainer), compute_plainly(weights, rollouts))
    assert (trainer.no_tree is None) == (family in SHARING)
    batches = trainer._batches([sample for (sample,) in rollouts])
    assert all((batch.tree is not None) == (family in SHARING) for batch in batches)


def test_a_restored_policy_continues_bit_for_bit_and_transformers_loads_it(
    weights: Path, tmp_path: Path
) -> None:
    rollouts = make_rollouts()
    trainer = make_trainer(weights)
    trainer.step(rollouts)
    saved = checkpoint.save(trainer, tmp_path, step=1, state={"metrics": {}})
    resumed = make_trainer(weights)
    checkpoint.restore(resumed, saved)
    plain = load_plain(saved.path)
    for other in (resumed.model, plain):
        theirs = other.state_dict()
        assert theirs.keys() == trainer.model.state_dict().keys()
        for name, weight in trainer.model.state_dict().items():
            assert torch.equal(weight, theirs[name]), name
    trainer.step(rollouts)
    resumed.step(rollouts)
    mine, theirs = trainer.model.state_dict(), resumed.model.state_dict()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_a_checkpoint_has_the_names_and_the_model_type_of_the_policy_it_came_from(
    weights: Path, tmp_path: Path
) -> None:
    def names(directory: Path) -> set[str]:
        with safe_open(directory / "model.safetensors", framework="pt") as file:
            return set(file.keys())

    saved = checkpoint.save(make_trainer(weights), tmp_path, step=1, state={})
    assert names(saved.path) == names(weights)
    types = [
        PretrainedConfig.from_pretrained(str(each)).model_type for each in (saved.path, weights)
    ]
    assert types[0] == types[1]


async def test_the_embedded_engine_serves_a_checkpoint_or_refuses_its_model_type_by_name(
    family: str, weights: Path, tmp_path: Path
) -> None:
    """What it serves has the trainer's logprobs."""
    trainer = make_trainer(weights)
    trainer.step(make_rollouts())
    saved = checkpoint.save(trainer, tmp_path, step=1, state={})
    if family not in ("qwen3", "qwen3_moe"):
        named = "use_sliding_window" if "sliding" in family else "model_type is"
        with pytest.raises(EngineError, match=named):
            EngineCore(saved.path, max_context_tokens=64)
        return
    engine = EngineCore(saved.path, max_context_tokens=64)
    try:
        prompt = np.arange(10, dtype=np.int32)
        params = SamplingParams(temperature=TEMPERATURE, max_new_tokens=12)
        answer = await engine.generate(prompt.tolist(), params, rid="r")
    finally:
        engine.shut_down()
    tokens = np.concatenate([prompt, answer.output_ids])
    expected = compute_logprobs(trainer, tokens)[len(prompt) :]
    np.testing.assert_allclose(answer.logprobs, expected, atol=1e-4)


def test_tokens_on_the_right_do_not_change_those_before_them(weights: Path) -> None:
    decoder = find_decoder(load_policy(weights))
    tokens = torch.arange(150).reshape(1, 150) * 7 % VOCAB
    with torch.no_grad():
        padded = torch.cat([tokens[:, :70], torch.zeros_like(tokens[:, :50])], dim=1)
        both = torch.cat([padded, tokens[:, 30:]])
        alone = decoder(input_ids=tokens[:, :70], use_cache=False).last_hidden_state
        beside = decoder(input_ids=both, use_cache=False).last_hidden_state[:1, :70]
    torch.testing.assert_close(beside, alone, rtol=1e-4, atol=1e-5)


def test_the_vision_part_of_a_policy_is_saved_as_it_was(tmp_path: Path) -> None:
    weights = write_policy("qwen3_5, multi-modal", tmp_path / "policy")
    before = load_plain(weights).state_dict()
    trainer = make_trainer(weights, weight_decay=0.1)
    trainer.step(make_rollouts())
    after = trainer.model.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert not any("visual" in name for name in changed)


SMALL: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "initializer_range": 0.3,
    "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip


@pytest.mark.parametrize(
    "config",
    [
        Gemma2Config(**SMALL, final_logit_softcapping=1.0),
        CohereConfig(**SMALL, logit_scale=0.25),
        GraniteConfig(**SMALL, logits_scaling=4.0),
    ],
    ids=lambda config: config.model_type,
)
def test_a_policy_whose_logits_are_capped_or_scaled_is_refused_by_name(
    config: PretrainedConfig, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    load_plain(config).save_pretrained(tmp_path)  # type: ignore[operator]
    with pytest.raises(TrainingError, match=rf"{config.model_type}\).*its logits are not"):
        make_trainer(tmp_path)


class CappedHead(nn.Linear):
    """Its gradient is computed from its output, which training overwrites."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).tanh()


def test_an_output_layer_that_may_need_its_output_is_refused(tmp_path: Path) -> None:
    policy: Any = load_policy(write_policy("qwen3", tmp_path))
    weight = policy.get_output_embeddings().weight
    policy.set_output_embeddings(CappedHead(weight.shape[1], weight.shape[0], bias=False))
    with pytest.raises(TrainingError, match=r"qwen3\).*output layer is a CappedHead"):
        check_policy(policy)


def test_a_policy_that_attends_to_both_sides_is_refused(tmp_path: Path) -> None:
    weights = write_policy("qwen3", tmp_path)
    config = json.loads((weights / "config.json").read_text())
    (weights / "config.json").write_text(json.dumps({**config, "is_causal": False}))
    with pytest.raises(TrainingError, match="tokens on the right change those before them"):
        make_trainer(weights)


def test_a_model_that_generates_no_text_is_refused_by_name(tmp_path: Path) -> None:
    model: Any = ViTModel(
        ViTConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    )
    model.save_pretrained(tmp_path)
    with pytest.raises(TrainingError, match="cannot load the policy"):
        make_trainer(tmp_path)
