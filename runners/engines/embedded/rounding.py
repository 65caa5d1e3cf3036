"""Load weights as those of an engine of lower precision; the computation stays in float32.

An engine that serves bf16 or int8 weights is a slightly different policy from the trained one; this
makes the embedded engine such an engine, on a CPU. The trainer's own weights are not touched.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from runners.engines.embedded.weights import LayerWeights, ModelWeights, MoeMlp, load_weights

WeightFormat = Literal["float32", "bfloat16", "int8"]

INT8_MAX = 127
NOISE_SEED = 20_251_013
"""The noise is the same after each update: it belongs to the engine, not to the weights."""


@dataclass(frozen=True, slots=True)
class Precision:
    """The precision of an engine's weights."""

    weights: WeightFormat = "float32"
    """``bfloat16`` rounds every parameter of the file, to nearest and ties to even, as transformers
    loads a Qwen3-MoE: routers and norms, too; rotary frequencies are no parameters. ``int8`` rounds
    every matrix of attention and experts, with one scale per output channel, and leaves embeddings,
    norms, routers and the head, as servers do.
    """
    router_noise: float = 0.0
    """Standard deviation of Gaussian noise on router weights, relative to that of the weights."""


EXACT = Precision()


def load_rounded(directory: Path, precision: Precision) -> ModelWeights:
    """Load a model directory as an engine of this precision does, float32; raises EngineError."""
    stored = torch.bfloat16 if precision.weights == "bfloat16" else torch.float32
    weights = load_weights(directory, stored)
    layers = weights.layers
    if precision.weights == "int8":
        layers = tuple(map(_int8, layers))
    if precision.router_noise:
        generator = torch.Generator().manual_seed(NOISE_SEED)
        layers = tuple(_noisy(layer, precision.router_noise, generator) for layer in layers)
    return replace(weights, layers=layers)


def quantize_int8(matrix: Tensor, inputs: int) -> Tensor:
    """Quantise a float32 matrix symmetrically to int8 and back; ``inputs`` is its summed dimension.

    scale = max|w| / 127 per output channel, w' = clamp(round(w / scale), -127, 127) · scale.
    -128 is not used, so that the range is symmetric; ties are rounded to even.
    """
    # an all-zero channel has scale 0: tiny avoids 0/0, and 0 · scale is 0 again
    scale = matrix.abs().amax(dim=inputs, keepdim=True) / INT8_MAX
    steps = (matrix / scale.clamp(min=torch.finfo(torch.float32).tiny)).round()
    return steps.clamp(-INT8_MAX, INT8_MAX) * scale


def _int8(layer: LayerWeights) -> LayerWeights:
    """Quantise a layer. MLP and experts alike: gate_up […, out, in], down […, in, out]."""
    gate_up, down = quantize_int8(layer.mlp.gate_up, -1), quantize_int8(layer.mlp.down, -2)
    return replace(
        layer,
        qkv=quantize_int8(layer.qkv, 1),
        out=quantize_int8(layer.out, 1),
        mlp=replace(layer.mlp, gate_up=gate_up, down=down),
    )


def _noisy(layer: LayerWeights, share: float, generator: torch.Generator) -> LayerWeights:
    if not isinstance(layer.mlp, MoeMlp):
        return layer
    router = layer.mlp.router
    noise = torch.randn(router.shape, generator=generator) * (share * router.std())
    return replace(layer, mlp=replace(layer.mlp, router=router + noise))
