"""Weights as an engine of lower precision has them: rounded on loading, computed with in float32.

An engine that serves bf16 or int8 weights is another policy than the one that is trained, by a
little; this is that engine, on a CPU. Training's own weights are not touched.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from runners.engines.embedded.weights import DenseMlp, LayerWeights, MoeMlp, Weights

Kept = Literal["float32", "bfloat16", "int8"]

INT8_MOST = 127
NOISE_SEED = 20_251_013
"""The noise is the same after each update: it is the engine's, not the weights'."""


@dataclass(frozen=True, slots=True)
class Precision:
    """How an engine keeps its weights."""

    weights: Kept = "float32"
    """``bfloat16``: every tensor rounded; ``int8``: every matrix of attention and experts, one
    scale per output channel; embeddings, norms, routers and the head stay, as servers keep them.
    """
    router_noise: float = 0.0
    """Gaussian noise on routers, relative to the standard deviation of their weights."""


EXACT = Precision()


def rounded(weights: Weights, precision: Precision) -> Weights:
    """Return weights as such an engine keeps them."""
    generator = torch.Generator().manual_seed(NOISE_SEED)
    layers = [_layer(layer, precision.weights) for layer in weights.layers]
    if precision.router_noise:
        layers = [_noisy(layer, precision.router_noise, generator) for layer in layers]
    changed = replace(weights, layers=tuple(layers))
    if precision.weights != "bfloat16":
        return changed
    return replace(
        changed,
        embeddings=_bfloat16(weights.embeddings),
        norm=_bfloat16(weights.norm),
        head=_bfloat16(weights.head),
    )


def int8(matrix: Tensor, inputs: int) -> Tensor:
    """Quantise a float32 matrix symmetrically to int8 and back, one scale per output channel;
    ``inputs``: the dimension that is summed over.
    """
    scale = matrix.abs().amax(dim=inputs, keepdim=True) / INT8_MOST
    steps = (matrix / scale.clamp(min=torch.finfo(torch.float32).tiny)).round()
    return steps.clamp(-INT8_MOST, INT8_MOST) * scale


def _layer(layer: LayerWeights, kept: Kept) -> LayerWeights:
    if kept == "float32":
        return layer
    if kept == "int8":
        return replace(layer, qkv=int8(layer.qkv, 1), out=int8(layer.out, 1), mlp=_int8(layer.mlp))
    bias, out_bias = layer.qkv_bias, layer.out_bias
    mlp = layer.mlp
    both = {"gate_up": _bfloat16(mlp.gate_up), "down": _bfloat16(mlp.down)}
    return replace(
        layer,
        input_norm=_bfloat16(layer.input_norm),
        qkv=_bfloat16(layer.qkv),
        qkv_bias=None if bias is None else _bfloat16(bias),
        qk_norm=_bfloat16(layer.qk_norm),
        out=_bfloat16(layer.out),
        out_bias=None if out_bias is None else _bfloat16(out_bias),
        post_norm=_bfloat16(layer.post_norm),
        mlp=MoeMlp(_bfloat16(mlp.router), **both) if isinstance(mlp, MoeMlp) else DenseMlp(**both),
    )


def _int8(mlp: DenseMlp | MoeMlp) -> DenseMlp | MoeMlp:
    """Both keep ``gate_up`` as […, out, in] and ``down`` as […, in, out]."""
    return replace(mlp, gate_up=int8(mlp.gate_up, -1), down=int8(mlp.down, -2))


def _noisy(layer: LayerWeights, share: float, generator: torch.Generator) -> LayerWeights:
    if not isinstance(layer.mlp, MoeMlp):
        return layer
    router = layer.mlp.router
    noise = torch.randn(router.shape, generator=generator) * (share * router.std())
    return replace(layer, mlp=replace(layer.mlp, router=router + noise))


def _bfloat16(tensor: Tensor) -> Tensor:
    return tensor.bfloat16().float()
