"""Read a directory of a Qwen3 or Qwen3-MoE (config.json + safetensors) into float32 tensors.

Invariant: every tensor is a copy, because safetensors maps files into memory: a file that is
replaced after loading cannot change the weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from runners.engines.contract import EngineError

MODEL_TYPES = ("qwen3", "qwen3_moe")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The part of config.json that decides the computation."""

    model_type: str
    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    experts: int
    """0 for a dense model."""
    experts_per_token: int
    moe_intermediate_size: int
    norm_topk_prob: bool
    moe_layers: tuple[bool, ...]
    """[layers]; False where the layer has a dense MLP."""
    rms_norm_eps: float
    rope_theta: float
    attention_bias: bool
    tied_embeddings: bool
    max_position: int
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DenseMlp:
    """SwiGLU, float32: gate_up [2I, H], gate first; down [I, H], transposed from the file."""

    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class MoeMlp:
    """Routed SwiGLU experts, float32: router [E, H], gate_up [E, 2I, H], down [E, I, H]."""

    router: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer: qkv [(heads + 2 · kv_heads) · head_dim, H], out [H, heads · head_dim]."""

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    qk_norm: Tensor
    """[heads + kv_heads, head_dim]; query rows include the attention scale head_dim^-0.5."""
    out: Tensor
    out_bias: Tensor | None
    post_norm: Tensor
    mlp: DenseMlp | MoeMlp


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """All tensors of the model: embeddings and head [V, H], norm [H]."""

    config: ModelConfig
    embeddings: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Tensor


def read_config(directory: Path) -> ModelConfig:
    """Read ``config.json``, and the eos ids of ``generation_config.json``.

    Raises EngineError 400 with the reason, also for a feature that the engine does not have.
    """
    raw = _read_json(directory / "config.json")
    for reason in _unsupported(raw):
        raise _refuse(directory, f"config.json: {reason}")
    try:
        config = _parse_config(raw, _generation_eos(directory))
    except (KeyError, TypeError, ValueError) as error:
        raise _refuse(directory, f"config.json: {type(error).__name__} {error}") from error
    return config


def load_weights(directory: Path, stored: torch.dtype = torch.float32) -> ModelWeights:
    """Load a model directory as ``from_pretrained(dtype=stored)`` of transformers does: every
    parameter is rounded to ``stored``, each by itself; what is computed of them is not.

    Raises EngineError 400 if a file or tensor is missing or has the wrong shape.
    """
    config = read_config(directory)
    tensors = _read_tensors(directory)
    try:
        return _assemble(config, tensors, stored)
    except KeyError as error:
        raise _refuse(directory, f"no tensor named {error}") from error
    except (ValueError, RuntimeError) as error:
        raise _refuse(directory, str(error)) from error


def _parse_config(raw: Mapping[str, Any], eos: tuple[int, ...]) -> ModelConfig:
    heads = int(raw["num_attention_heads"])
    layers = int(raw["num_hidden_layers"])
    # transformers 5 writes num_local_experts and rope_parameters, earlier versions num_experts and
    # rope_theta
    experts = 0
    if raw["model_type"] == "qwen3_moe":
        experts = int(raw["num_local_experts" if "num_local_experts" in raw else "num_experts"])
    rope = raw.get("rope_parameters") or {}
    dense_layers = set(raw.get("mlp_only_layers") or ())
    step = int(raw.get("decoder_sparse_step", 1))
    return ModelConfig(
        model_type=raw["model_type"],
        vocab_size=int(raw["vocab_size"]),
        hidden_size=int(raw["hidden_size"]),
        layers=layers,
        heads=heads,
        kv_heads=int(raw["num_key_value_heads"]),
        head_dim=int(raw.get("head_dim") or int(raw["hidden_size"]) // heads),
        intermediate_size=int(raw["intermediate_size"]),
        experts=experts,
        experts_per_token=int(raw["num_experts_per_tok"]) if experts else 0,
        moe_intermediate_size=int(raw["moe_intermediate_size"]) if experts else 0,
        norm_topk_prob=bool(raw["norm_topk_prob"]) if experts else False,
        moe_layers=tuple(
            layer not in dense_layers and experts > 0 and (layer + 1) % step == 0
            for layer in range(layers)
        ),
        rms_norm_eps=float(raw["rms_norm_eps"]),
        rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta") or 10_000.0),
        attention_bias=bool(raw.get("attention_bias", False)),
        tied_embeddings=bool(raw["tie_word_embeddings"]),
        max_position=int(raw["max_position_embeddings"]),
        eos_token_ids=tuple(sorted({*_as_ids(raw.get("eos_token_id")), *eos})),
    )


def _unsupported(raw: Mapping[str, Any]) -> list[str]:
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    reasons = []
    if raw.get("model_type") not in MODEL_TYPES:
        reasons.append(
            f"model_type is {raw.get('model_type')!r}, and engine=embedded runs "
            f"{' and '.join(MODEL_TYPES)} alone: choose engine=sglang_launch"
        )
    if rope_type != "default":
        reasons.append(f"rope_type {rope_type!r} is not supported, only 'default'")
    if raw.get("use_sliding_window"):
        reasons.append("use_sliding_window is not supported")
    if raw.get("hidden_act", "silu") != "silu":
        reasons.append(f"hidden_act {raw['hidden_act']!r} is not supported, only 'silu'")
    return reasons


def _assemble(
    config: ModelConfig, tensors: Mapping[str, Tensor], stored: torch.dtype
) -> ModelWeights:
    width, vocab = config.hidden_size, config.vocab_size

    def take(name: str, *shape: int) -> Tensor:
        tensor = tensors[name]
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, config.json implies {shape}")
        return tensor.to(stored).to(torch.float32, copy=True).contiguous()

    embeddings = take("model.embed_tokens.weight", vocab, width)
    return ModelWeights(
        config=config,
        embeddings=embeddings,
        layers=tuple(_layer(config, index, tensors, take) for index in range(config.layers)),
        norm=take("model.norm.weight", width),
        head=embeddings if config.tied_embeddings else take("lm_head.weight", vocab, width),
    )


def _layer(
    config: ModelConfig, index: int, tensors: Mapping[str, Tensor], take: Any
) -> LayerWeights:
    prefix = f"model.layers.{index}."
    width, dim = config.hidden_size, config.head_dim
    sizes = {"q": config.heads * dim, "k": config.kv_heads * dim, "v": config.kv_heads * dim}
    attention = prefix + "self_attn."
    scaled_q = take(attention + "q_norm.weight", dim) * dim**-0.5
    k_norm = take(attention + "k_norm.weight", dim)
    bias = config.attention_bias
    return LayerWeights(
        input_norm=take(prefix + "input_layernorm.weight", width),
        qkv=torch.cat([take(f"{attention}{n}_proj.weight", s, width) for n, s in sizes.items()]),
        qkv_bias=torch.cat([take(f"{attention}{n}_proj.bias", s) for n, s in sizes.items()])
        if bias
        else None,
        qk_norm=torch.cat(
            [scaled_q.expand(config.heads, dim), k_norm.expand(config.kv_heads, dim)]
        ),
        out=take(attention + "o_proj.weight", width, config.heads * dim),
        out_bias=take(attention + "o_proj.bias", width) if bias else None,
        post_norm=take(prefix + "post_attention_layernorm.weight", width),
        mlp=_moe(config, prefix + "mlp.", tensors, take)
        if config.moe_layers[index]
        else _dense(config, prefix + "mlp.", take),
    )


def _dense(config: ModelConfig, prefix: str, take: Any) -> DenseMlp:
    width, inner = config.hidden_size, config.intermediate_size
    gate = take(prefix + "gate_proj.weight", inner, width)
    up = take(prefix + "up_proj.weight", inner, width)
    down = take(prefix + "down_proj.weight", width, inner)
    return DenseMlp(torch.cat([gate, up]), down.t().contiguous())


def _moe(config: ModelConfig, prefix: str, tensors: Mapping[str, Tensor], take: Any) -> MoeMlp:
    """Read experts, fused (``experts.gate_up_proj``) or single (as save_pretrained writes)."""
    count, width, inner = config.experts, config.hidden_size, config.moe_intermediate_size
    if prefix + "experts.gate_up_proj" in tensors:
        gate_up = take(prefix + "experts.gate_up_proj", count, 2 * inner, width)
        down = take(prefix + "experts.down_proj", count, width, inner)
    else:
        names = [f"{prefix}experts.{expert}." for expert in range(count)]
        gate = torch.stack([take(name + "gate_proj.weight", inner, width) for name in names])
        up = torch.stack([take(name + "up_proj.weight", inner, width) for name in names])
        gate_up = torch.cat([gate, up], dim=1)
        down = torch.stack([take(name + "down_proj.weight", width, inner) for name in names])
    router = take(prefix + "gate.weight", count, width)
    return MoeMlp(router, gate_up, down.transpose(1, 2).contiguous())


def _read_tensors(directory: Path) -> dict[str, Tensor]:
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        files = sorted(set(_read_json(index).get("weight_map", {}).values()))
    else:
        files = ["model.safetensors"]
    tensors: dict[str, Tensor] = {}
    for name in files:
        try:
            tensors.update(load_file(directory / name))
        except (OSError, SafetensorError) as error:
            raise _refuse(directory, f"{name}: {error}") from error
    return tensors


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise _refuse(path.parent, f"{path.name}: {error}") from error
    if not isinstance(value, dict):
        raise _refuse(path.parent, f"{path.name}: not a JSON object")
    return value


def _generation_eos(directory: Path) -> tuple[int, ...]:
    path = directory / "generation_config.json"
    return _as_ids(_read_json(path).get("eos_token_id")) if path.is_file() else ()


def _as_ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)


def _refuse(directory: Path, reason: str) -> EngineError:
    return EngineError(f"cannot load model {directory}: {reason}", status=400)
