"""GPU memory of the local trainer: counted in transformers' layers, and in the plan of a run."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    PretrainedConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from conf.compose import compose
from conf.schema import Config
from conf.sections.training import LocalTrainerConfig, LoraConfig, TrainingPrecision
from launch import gpu
from launch.gpu import (
    activation_bytes,
    count_adapter_parameters,
    count_logits_bytes,
    count_parameters,
    count_state_bytes,
    find_gpu_problems,
    plan_gpu,
    read_shape,
)
from launch.local import plan_local_run
from runners.training.chosen_logprobs import GPU_ROWS
from runners.training.precision import MasterWeights
from runners.training.recompute import LOGITS_CHUNK
from tests.fakes.one_gpu import write_qwen3_0_6b

TOKENS = 256
SIZES: dict[str, Any] = {"vocab_size": 64, "num_key_value_heads": 4, "head_dim": 16}


def count_kept(config: PretrainedConfig, layers: int, precision: TrainingPrecision) -> int:
    """Count the bytes that the layers keep for the backward pass, weights left out."""
    config.num_hidden_layers = layers
    config.layer_types = ["full_attention"] * layers
    more = {"experts_implementation": "grouped_mm"} if "Moe" in type(config).__name__ else {}
    make: Any = AutoModelForCausalLM.from_config
    model = make(config, **more).train()
    MasterWeights(model, precision)
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in weights:
            kept[place] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.model(input_ids=torch.zeros((1, TOKENS), dtype=torch.int64), use_cache=False)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.parametrize("hidden", [64, 160])
@pytest.mark.parametrize("heads", [8, 12])
@pytest.mark.parametrize("experts", [0, 8])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_counts_are_those_of_transformers_layers(
    hidden: int, heads: int, experts: int, precision: TrainingPrecision, tmp_path: Path
) -> None:
    same: dict[str, Any] = {**SIZES, "hidden_size": hidden, "num_attention_heads": heads}
    if experts:
        config: PretrainedConfig = Qwen3MoeConfig(
            **same, moe_intermediate_size=96, num_experts=experts, num_experts_per_tok=3,
            decoder_sparse_step=1, mlp_only_layers=[],
        )  # fmt: skip
    else:
        config = Qwen3Config(**same, intermediate_size=96)
    kept = count_kept(config, 3, precision) - count_kept(config, 2, precision)
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    shape = read_shape(tmp_path / "config.json")
    assert shape is not None
    assert shape.bytes_kept(precision) * TOKENS == pytest.approx(kept, rel=2e-3)


@pytest.mark.parametrize(
    ("precision", "kept", "recomputed"), [("float32", 105.1, 7.3), ("bfloat16", 61.4, 3.9)]
)
def test_the_activations_of_32k_tokens_of_a_0_6b_policy_are_those_of_the_page(
    precision: TrainingPrecision, kept: float, recomputed: float, tmp_path: Path
) -> None:
    shape = read_shape(write_qwen3_0_6b(tmp_path) / "config.json")
    assert shape is not None
    for recompute, expected in ((False, kept), (True, recomputed)):
        found = activation_bytes(shape, 32768, precision, recompute=recompute) / gpu.GIB
        assert found == pytest.approx(expected, abs=0.1)


def test_the_chunk_of_logits_is_the_trainer_s() -> None:
    assert gpu._LOGITS_CHUNK == LOGITS_CHUNK == GPU_ROWS


def test_logits_are_kept_once_and_worked_on_in_chunks() -> None:
    """At their peak, as measured on a CPU with a GPU's chunks: 2.02 copies of 2,048 tokens, 5.02
    where the entropy has a gradient.
    """
    copy = 2048 * 151_936 * 4
    assert count_logits_bytes(151_936, 2048, 0.0) == 2 * copy
    assert count_logits_bytes(151_936, 2048, 0.01) == 5 * copy
    assert count_logits_bytes(151_936, 100, 0.0) == 3 * 100 * 151_936 * 4


def test_parameters_are_counted_in_headers_whatever_their_type(tmp_path: Path) -> None:
    directory = write_qwen3_0_6b(tmp_path)
    assert count_parameters(directory, tied=True) == 596_049_920
    assert count_parameters(directory, tied=False) == 596_049_920 + 151_936 * 1024
    (directory / "damaged.safetensors").write_bytes(struct.pack("<Q", 90) + b"{")
    assert count_parameters(directory, tied=True) == 596_049_920


def a_config(directory: Path, *overrides: str) -> Config:
    return compose(
        [
            *("engine=sglang_launch", "model=local", "model.renderer=qwen3"),
            *(f"model.path={directory}", f"model.tokenizer={directory}"),
            *("model.max_context_tokens=32768", *overrides),
        ]
    )


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return write_qwen3_0_6b(tmp_path)


def have_gpu(directory: Path, gib: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put an nvidia-smi on the path that prints what the real one does for this query."""
    program = directory / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho {round(gib * 1024)}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")


def test_a_checkpoint_in_bf16_is_planned_as_the_float32_that_is_trained(policy: Path) -> None:
    plan = plan_local_run(a_config(policy), policy)
    trainer = next(process for process in plan.processes if process.name.startswith("driver"))
    assert trainer.memory_mb == pytest.approx(4 * 596_049_920 * 4 / (1 << 20), rel=0.15)


def test_adapters_leave_of_the_policy_its_weights_alone(
    policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lora = LoraConfig(rank=16, alpha=32, targets=("q_proj", "k_proj", "v_proj", "o_proj"))
    # Qwen3-0.6B: 28 layers, width 1024, 16 heads of 128 and 8 of keys and values
    per_layer = 2 * (1024 + 2048) + 2 * (1024 + 1024)
    assert count_adapter_parameters(policy, lora) == 16 * 28 * per_layer
    monkeypatch.setenv("PATH", "/nowhere")
    whole = plan_gpu(a_config(policy, "trainer.device=cuda"))
    adapters = a_config(policy, "trainer.device=cuda", "trainer.lora.rank=16")
    small = plan_gpu(adapters)
    assert whole is not None
    assert small is not None
    expected = (596_049_920 * 4 + 16 * 28 * per_layer * 16) / gpu.GIB
    assert small.states_gib == pytest.approx(expected, abs=0.06)
    assert whole.states_gib == pytest.approx(596_049_920 * 16 / gpu.GIB, abs=0.06)
    disk = plan_local_run(adapters, policy).disk_mb
    merged = plan_local_run(a_config(policy, "engine=embedded", "trainer.lora.rank=16"), policy)
    assert merged.disk_mb - disk > 2 * 596_049_920 * 4 >> 20, (
        "an engine that takes adapters needs no merged weights"
    )


@pytest.mark.parametrize(
    ("shard", "precision", "whole", "divided"),
    [
        ("optimizer", "float32", 4, 16),
        ("optimizer", "bfloat16", 2, 16),
        ("model", "float32", 0, 16),
        ("model", "bfloat16", 0, 16),
    ],
)
def test_each_gpu_has_its_part_of_what_is_divided(
    policy: Path,
    monkeypatch: pytest.MonkeyPatch,
    shard: str,
    precision: TrainingPrecision,
    whole: int,
    divided: int,
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    keys = ("trainer.device=cuda", f"trainer.shard={shard}", f"trainer.precision={precision}")
    for devices in (2, 8):
        config = a_config(policy, *keys, f"trainer.devices={devices}")
        assert isinstance(config.trainer, LocalTrainerConfig)
        found = count_state_bytes(policy, 1000, config.trainer)
        assert found == 1000 * (whole + divided / devices)


def test_a_14b_policy_fits_into_several_gpus_if_all_of_it_is_divided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    policy = write_shape(
        tmp_path, Qwen3Config(
            vocab_size=151_936, hidden_size=5120, intermediate_size=17_408, num_hidden_layers=40,
            num_attention_heads=40, num_key_value_heads=8, head_dim=128,
        ), 14_768_307_200,
    )  # fmt: skip

    def find_peak(shard: str, devices: int, window: int = 32_768) -> float:
        keys = ("trainer.device=cuda", "trainer.precision=bfloat16", f"trainer.shard={shard}")
        window_key = f"model.max_context_tokens={window}"
        plan = plan_gpu(a_config(policy, *keys, f"trainer.devices={devices}", window_key))
        assert plan is not None
        return plan.trainer_gib

    assert find_peak("optimizer", 8) > 80
    assert find_peak("model", 8) == pytest.approx(65.8, abs=0.1)
    assert find_peak("model", 4) > 80
    assert find_peak("model", 4, 8192) == pytest.approx(77.5, abs=0.1)
    assert find_peak("model", 64, 8192) == pytest.approx(56.0, abs=0.1), "while it is loaded"


def write_shape(directory: Path, config: PretrainedConfig, parameters: int) -> Path:
    """Write a ``config.json`` and the header of a tensor of so many numbers."""
    (directory / "config.json").write_text(json.dumps(config.to_dict()))
    header = json.dumps({"weight": {"dtype": "BF16", "shape": [parameters]}}).encode()
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    return directory


def test_a_run_without_a_gpu_has_no_plan_for_one(
    policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert plan_gpu(a_config(policy)) is None
    assert plan_gpu(a_config(policy, "trainer.device=cpu")) is None
    asked = plan_gpu(a_config(policy, "trainer.device=cuda"))
    assert asked is not None
    assert asked.recompute
    assert (asked.gpu_gib, asked.engine_gib) == (None, None)


@pytest.mark.integration
def test_a_trainer_and_an_engine_that_do_not_fit_one_gpu_are_warned_of(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    have_gpu(tmp_path, 79.6, monkeypatch)

    def warnings(*overrides: str) -> list[str]:
        config = a_config(policy, *overrides)
        return [problem.message for problem in find_gpu_problems(config, plan_gpu(config))]

    assert warnings("engine.memory_fraction=0.6") == []
    (warning,) = warnings("engine.memory_fraction=0.9")
    assert "do not fit into the GPU's 79.6 GiB: engine.memory_fraction=0." in warning
    several = ("engine.memory_fraction=0.9", "trainer.devices=2")
    (warning,) = warnings(*several)
    assert "trainer.shard=optimizer" in warning
    (warning,) = warnings(*several, "trainer.shard=optimizer")
    assert "trainer.shard=optimizer" not in warning
    assert "trainer.shard=model" in warning
    (warning,) = warnings(*several, "trainer.shard=model")
    assert "trainer.shard" not in warning
    (warning,) = warnings("engine.memory_fraction=0.6", "trainer.recompute=false")
    assert "trainer.recompute=true" in warning
    fraction = warnings("engine.memory_fraction=0.9")[0].partition("fraction=")[2].split(",")[0]
    assert warnings(f"engine.memory_fraction={fraction}") == []
