"""Weights of lower precision: which are rounded, by how much, and after an update too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import Qwen3MoeForCausalLM

from runners.engines.contract import SamplingParams
from runners.engines.embedded.core import EngineCore
from runners.engines.embedded.rounding import EXACT, Precision, load_rounded, quantize_int8
from runners.engines.embedded.weights import ModelWeights, MoeMlp, load_weights
from tests.fakes.tiny_model import write_tiny_model


def tensors(weights: ModelWeights) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor by name."""
    for name in ("embeddings", "norm", "head"):
        yield name, getattr(weights, name)
    for layer in weights.layers:
        assert isinstance(layer.mlp, MoeMlp)
        for name in ("input_norm", "qkv", "qk_norm", "out", "post_norm"):
            yield name, getattr(layer, name)
        if layer.qkv_bias is not None and layer.out_bias is not None:
            yield "qkv_bias", layer.qkv_bias
            yield "out_bias", layer.out_bias
        for name in ("router", "gate_up", "down"):
            yield name, getattr(layer.mlp, name)


def changed(directory: Path, precision: Precision) -> set[str]:
    """Return the names of tensors that a precision changes."""
    exact, rounded = load_weights(directory), load_rounded(directory, precision)
    pairs = zip(tensors(exact), tensors(rounded), strict=True)
    return {name for (name, before), (_, after) in pairs if not torch.equal(before, after)}


def test_each_precision_rounds_the_tensors_that_servers_round(model_dir: Path) -> None:
    weights = load_weights(model_dir)
    assert changed(model_dir, EXACT) == set()
    assert changed(model_dir, Precision("int8")) == {"qkv", "out", "gate_up", "down"}
    assert changed(model_dir, Precision("bfloat16")) == {name for name, _ in tensors(weights)}
    assert changed(model_dir, Precision(router_noise=0.01)) == {"router"}


@pytest.mark.parametrize("in_file", [torch.float32, torch.float16, torch.bfloat16])
def test_bfloat16_weights_are_those_that_transformers_loads(
    in_file: torch.dtype, tmp_path: Path
) -> None:
    """Bit for bit, whatever the file's type: rounded before anything is computed of them. The
    attention scale of head size 24 is no power of two.
    """
    given, loaded = tmp_path / "given", tmp_path / "loaded"
    write_tiny_model(given, vocab_size=60, head_dim=24, attention_bias=True)
    policy: Any = Qwen3MoeForCausalLM.from_pretrained(given)
    with torch.no_grad():
        for weight in policy.parameters():
            weight.add_(torch.linspace(-0.1, 0.1, weight.numel()).view_as(weight))  # biases are 0
    policy.to(in_file).save_pretrained(given)
    rounded: Any = Qwen3MoeForCausalLM.from_pretrained(given, dtype=torch.bfloat16)
    rounded.float().save_pretrained(loaded)
    ours = load_rounded(given, Precision("bfloat16"))
    for (name, mine), (_, theirs) in zip(tensors(ours), tensors(load_weights(loaded)), strict=True):
        assert mine.dtype == torch.float32
        assert torch.equal(mine, theirs), name
    query_norm = rounded.model.layers[0].self_attn.q_norm.weight * 24**-0.5
    assert torch.equal(ours.layers[0].qk_norm[0], query_norm)


def test_int8_has_one_scale_per_output_channel() -> None:
    # one row is a thousand times the other: a scale for both would lose the smaller
    matrix = torch.stack([torch.linspace(-1, 1, 9), torch.linspace(-1e-3, 1e-3, 9)])
    for given, inputs in ((matrix, 1), (matrix.t(), 0)):
        back = quantize_int8(given, inputs)
        scale = given.abs().amax(dim=inputs, keepdim=True) / 127
        assert ((back - given).abs() <= scale / 2 * 1.001).all()
        steps = back / scale
        assert torch.allclose(steps, steps.round(), atol=1e-3)
    assert torch.equal(quantize_int8(torch.zeros(2, 3), 1), torch.zeros(2, 3))


def test_int8_scales_of_experts_follow_their_output_channels(model_dir: Path) -> None:
    """``down`` is kept transposed: its inputs are dimension 1."""
    weights = load_weights(model_dir)
    mlp = weights.layers[0].mlp
    after = load_rounded(model_dir, Precision("int8")).layers[0].mlp
    assert isinstance(mlp, MoeMlp)
    assert isinstance(after, MoeMlp)
    for before, found, inputs in ((mlp.gate_up, after.gate_up, 2), (mlp.down, after.down, 1)):
        scale = before.abs().amax(dim=inputs, keepdim=True) / 127
        assert torch.equal(found, quantize_int8(before, inputs))
        assert ((found - before).abs() <= scale / 2 * 1.001).all()


def test_router_noise_is_relative_and_reproducible(model_dir: Path) -> None:
    weights = load_weights(model_dir)
    first, again = (load_rounded(model_dir, Precision(router_noise=0.05)) for _ in range(2))
    for before, after, second in zip(weights.layers, first.layers, again.layers, strict=True):
        assert isinstance(before.mlp, MoeMlp)
        assert isinstance(after.mlp, MoeMlp)
        assert isinstance(second.mlp, MoeMlp)
        assert torch.equal(after.mlp.router, second.mlp.router)
        noise = after.mlp.router - before.mlp.router
        assert 0.03 < float(noise.std() / before.mlp.router.std()) < 0.07


async def test_an_engine_rounds_new_weights_as_it_rounded_the_first(
    model_dir: Path, other_model_dir: Path
) -> None:
    async def logprobs(engine: EngineCore) -> np.ndarray:
        params = SamplingParams(max_new_tokens=8, sampling_seed=1)
        return (await engine.generate([1, 2, 3], params, rid="r")).logprobs

    exact = EngineCore(other_model_dir)
    there = EngineCore(other_model_dir, precision=Precision("int8"))
    updated = EngineCore(model_dir, precision=Precision("int8"))
    try:
        await updated.update_weights(other_model_dir, 1)
        assert np.array_equal(await logprobs(updated), await logprobs(there))
        assert not np.array_equal(await logprobs(exact), await logprobs(there))
    finally:
        for engine in (exact, there, updated):
            await engine.close()


async def test_the_core_used_directly_returns_routing_as_over_http(model_dir: Path) -> None:
    engine = EngineCore(model_dir)
    try:
        params = SamplingParams(max_new_tokens=5, sampling_seed=1, routing_start=2)
        answer = await engine.generate([1, 2, 3, 4], params, rid="r")
        assert answer.routing is not None
        assert answer.routing.dtype == np.int32
        assert answer.routing.shape == ((4 + 5 - 1 - 2) * 2 * 2,)
        bare = await engine.generate([1, 2], SamplingParams(max_new_tokens=1), rid="s")
        assert bare.routing is None
    finally:
        await engine.close()


@pytest.mark.parametrize("weights", ["int4", "float16"])
def test_an_unknown_precision_is_refused_by_the_process(weights: str) -> None:
    from runners.engines.embedded.__main__ import EngineSettings

    with pytest.raises(ValueError, match="weights"):
        EngineSettings.model_validate({"model_path": "x", "weights": weights})
