"""What the local trainer computes on a GPU: the CPU's gradients, at what speed, in what memory.

``pytest -m gpu -s tests/runners/training/test_gpu.py`` prints the figures of docs/one_gpu.md.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen3Config

from launch.gpu import GIB, activation_bytes, read_shape
from runners.training.local import LocalTrainer
from runners.training.sample import Sample
from tests.fakes.local_trainer import make_trainer
from tests.fakes.policies import FAMILIES, load_plain, write_policy
from tests.runners.training.test_families import make_rollouts

pytestmark = pytest.mark.gpu

TOKENS = 8192
"""Of the longest sample of the large policy."""
SMALL: dict[str, Any] = {
    "vocab_size": 151_936, "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072,
    "max_position_embeddings": 40_960, "tie_word_embeddings": True,
}  # fmt: skip
"""Qwen3-0.6B's config.json."""


@pytest.fixture(scope="module", params=FAMILIES)
def weights(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_policy(request.param, tmp_path_factory.mktemp("policy"))


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-3), ("bfloat16", 0.1)])
def test_a_gpu_s_gradient_is_the_cpu_s(
    weights: Path, precision: str, tolerance: float, recompute: bool
) -> None:
    found = train_once(weights, "cuda", precision, recompute=recompute)
    expected = train_once(weights, "cpu", precision, recompute=False)
    assert found.keys() == expected.keys()
    off = torch.stack([(found[name] - expected[name]).norm() for name in expected]).norm()
    whole = torch.stack([each.norm() for each in expected.values()]).norm()
    print(f"{weights.name} {precision}: off by {off / whole:.1e}")
    assert whole > 0.1
    assert off < tolerance * whole


def train_once(
    weights: Path, device: str, precision: str, *, recompute: bool
) -> dict[str, torch.Tensor]:
    trainer = make_trainer(
        weights, device=device, precision=precision, recompute=recompute,
        loss="reinforce", grad_clip=1e9,
    )  # fmt: skip
    trainer.step(make_rollouts())
    return {name: each.cpu() for name, each in named_gradients(trainer).items()}


def named_gradients(trainer: LocalTrainer) -> dict[str, torch.Tensor]:
    """Those of the masters, where a policy has copies."""
    trained = trainer.weights.trained
    return {name: each.grad for name, each in trained.items() if each.grad is not None}


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("large")
    torch.manual_seed(0)
    policy: Any = load_plain(Qwen3Config(**SMALL))
    policy.save_pretrained(directory)
    return directory


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("recompute", [True, False])
def test_a_step_takes_the_memory_that_the_plan_says(
    large: Path, precision: str, recompute: bool
) -> None:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    trainer = make_trainer(
        large, device="cuda", precision=precision, recompute=recompute,
        learning_rate=1e-6, tokens_per_microbatch=TOKENS,
    )  # fmt: skip
    rollouts = [[make_sample(number)] for number in range(4)]
    trainer.step(rollouts)  # the first one allocates the optimizer's state
    began = time.perf_counter()
    trainer.step(rollouts)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    peak = torch.cuda.max_memory_allocated() / GIB
    shape = read_shape(large / "config.json")
    assert shape is not None
    parameters = sum(each.numel() for each in trainer.model.parameters())
    planned = parameters * 16 / GIB + activation_bytes(shape, TOKENS, recompute=recompute) / GIB
    print(
        json.dumps(
            {
                "gpu": torch.cuda.get_device_name(),
                "parameters": parameters,
                "precision": precision,
                "recompute": recompute,
                "tokens_per_s": round(4 * TOKENS / seconds),
                "peak_gib": round(peak, 1),
                "states_and_activations_planned_gib": round(planned, 1),
            }
        )
    )
    del trainer
    torch.cuda.empty_cache()
    # Logits and workspaces come on top; bfloat16 keeps fewer bytes than float32.
    assert peak < 1.3 * planned + 8


def make_sample(number: int) -> Sample:
    rng = np.random.default_rng(number)
    tokens = rng.integers(0, SMALL["vocab_size"], TOKENS).astype(np.int32)
    mask = np.arange(TOKENS) >= TOKENS // 2
    logprobs = np.where(mask, -12.0, 0.0).astype(np.float32)
    return Sample(f"r{number}", tokens, mask, logprobs, (-1.0) ** number)
