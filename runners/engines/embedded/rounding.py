"""Round weights to those of an engine of lower precision; the computation stays in float32.

An engine that serves bf16 or int8 weights is a slightly different policy from the trained one; this
makes the embedded engine such an engine, on a CPU. The trainer's own weights are not touched.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from runners.engines.embedded.weights import DenseMlp, LayerWeights, ModelWeights, MoeMlp

WeightFormat = Literal["float32", "bfloat16", "int8"]

INT8_MAX = 127
NOISE_SEED = 20_251_013
"""The noise is the same after each update: it belongs to the engine, not to the weights."""


@dataclass(frozen=True, slots=True)
class Precision:
    """The precision of an engine's weights."""

    weights: WeightFormat = "float32"
    """``bfloat16`` rounds every tensor; ``int8`` every matrix of attention and experts, with one
    scale per output channel, and leaves embeddings, norms, routers and the head, as servers do.
    """
    router_noise: float = 0.0
    """Standard deviation of Gaussian noise on router weights, relative to that of the weights."""


EXACT = Precision()


def round_weights(weights: ModelWeights, precision: Precision) -> ModelWeights:
    """Return the weights of an engine of this precision, float32, of the same shapes."""
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


def quantize_int8(matrix: Tensor, inputs: int) -> Tensor:
    """Quantise a float32 matrix symmetrically to int8 and back; ``inputs`` is its summed dimension.

    scale = max|w| / 127 per output channel, w' = clamp(round(w / scale), -127, 127) · scale.
    -128 is not used, so that the range is symmetric; ties are rounded to even.
    """
    # an all-zero channel has scale 0: tiny avoids 0/0, and 0 · scale is 0 again
    scale = matrix.abs().amax(dim=inputs, keepdim=True) / INT8_MAX
    steps = (matrix / scale.clamp(min=torch.finfo(torch.float32).tiny)).round()
    return steps.clamp(-INT8_MAX, INT8_MAX) * scale


def _layer(layer: LayerWeights, kept: WeightFormat) -> LayerWeights:
    if kept == "float32":
        return layer
    if kept == "int8":
        return replace(
            layer,
            qkv=quantize_int8(layer.qkv, 1),
            out=quantize_int8(layer.out, 1),
            mlp=_int8(layer.mlp),
        )
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
    """Quantise an MLP; dense and experts alike: ``gate_up`` […, out, in], ``down`` […, in, out]."""
    return replace(mlp, gate_up=quantize_int8(mlp.gate_up, -1), down=quantize_int8(mlp.down, -2))


def _noisy(layer: LayerWeights, share: float, generator: torch.Generator) -> LayerWeights:
    if not isinstance(layer.mlp, MoeMlp):
        return layer
    router = layer.mlp.router
    noise = torch.randn(router.shape, generator=generator) * (share * router.std())
    return replace(layer, mlp=replace(layer.mlp, router=router + noise))


def _bfloat16(tensor: Tensor) -> Tensor:
    return tensor.bfloat16().float()
