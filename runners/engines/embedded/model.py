"""The Qwen3(-MoE) forward pass in float32 over a packed batch of decoding and prefilling rows.

Rows ``0 … decoding-1`` of the KV store each contribute their last token; every span contributes the
tokens it lists. All linear layers run once over the N packed tokens.

Invariant: what is computed for a token has the same bits whatever else is packed, however its row
was cut into spans, and whether it was decoded or prefilled. A matrix product keeps the order in
which it adds up one element only among shapes that its library computes with the same kernel, so
every product is padded to such a shape (see the constants below), and MKL is asked for its strict
reproducible mode.

Architecture: Qwen3 technical report (arXiv 2505.09388): RMSNorm on queries and keys, grouped-query
attention, rotary positions, SwiGLU experts. Names of shapes: N packed tokens, H hidden size, V
vocabulary, E experts, I inner size of an expert.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from runners.engines.embedded.attention import (
    DecodeAttention,
    DecodeBlock,
    KvSlots,
    KvStore,
    PrefillSpan,
    attend_span,
    round_up,
)
from runners.engines.embedded.weights import LayerWeights, ModelConfig, ModelWeights, MoeMlp

# MKL reads it at the process's first product. On some processors its usual kernels also let the
# number of rows and of threads decide the order of a sum (seen with 3 threads on two cores of an
# Emerald Rapids); in its strict mode they do not.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

ROWS = 8
"""Products over tokens have a multiple of this many rows: for 1, 2, 3, 5, 7 and 11 rows MKL takes
other kernels (measured with 1, 2, 3 and 8 threads; multiples of 4 are enough there).
"""
SERIAL_ELEMENTS = 2**15
"""Torch divides elementwise functions of this many elements and more between threads. Where a part
ends, the last few are computed by another implementation of exp.
"""

MAX_DENSE_RATIO = 4
"""Models with up to this many experts for each that a token uses run every expert on every token:
up to some hundred tokens that is faster than sorting them by expert (measured on a CPU). It does
not depend on the number of tokens, since the two ways differ in rounding.
"""

RoutingArray = NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class PackedStep:
    """The packed input of one forward pass: decoding rows first, then the spans in order."""

    tokens: Tensor
    """[N] int64"""
    positions: Tensor
    """[N] int64"""
    slots: KvSlots
    """Each token's place in the KV store."""
    decoding: int
    lengths: Tensor
    """[decoding] int64: number of positions that each decoding row attends to, its own included."""
    blocks: tuple[DecodeBlock, ...]
    """The decoding rows in order, in blocks of similar length."""
    spans: tuple[PrefillSpan, ...]
    wanted: Tensor | None
    """[M] int64: packed indices whose logits are wanted; None for all."""


class Qwen3Moe:
    """The model, dense without experts; it keeps nothing between calls except its rotary table."""

    def __init__(self, weights: ModelWeights, max_context: int) -> None:
        self.config = weights.config
        self.weights = weights
        self._turns = _rotary_table(weights.config, max_context)
        self._decode = DecodeAttention(weights.config, max_context)

    def forward(self, step: PackedStep, kv: KvStore) -> tuple[Tensor, RoutingArray]:
        """Write the keys and values of the packed tokens into ``kv``; return logits and routing.

        Logits are float32 [M, V] of the wanted tokens, routing int16 [N, layers, top_k]: the chosen
        experts, best first; all zero in dense layers.
        """
        config, count = self.config, len(step.tokens)
        hidden = _pad_rows(self.weights.embeddings.index_select(0, step.tokens))
        cos, sin = self._turns.index_select(1, step.positions)
        mask = self._decode.mask(step.lengths, step.blocks)
        routing = np.zeros((count, config.layers, config.experts_per_token), dtype=np.int16)
        for index, layer in enumerate(self.weights.layers):
            hidden = self._attend(index, layer, hidden, cos, sin, mask, step, kv)
            normed = F.rms_norm(hidden, (config.hidden_size,), layer.post_norm, config.rms_norm_eps)
            if isinstance(layer.mlp, MoeMlp):
                scores, chosen = self._route(layer.mlp, normed)
                hidden += _experts(layer.mlp, normed, scores, chosen)
                routing[:, index] = chosen[:count].numpy()
            else:
                inner = _activate(F.linear(normed, layer.mlp.gate_up))
                hidden = torch.addmm(hidden, inner, layer.mlp.down)
        if step.wanted is not None:
            count = len(step.wanted)
            hidden = _pad_rows(hidden.index_select(0, step.wanted))
        hidden = F.rms_norm(hidden, (config.hidden_size,), self.weights.norm, config.rms_norm_eps)
        return F.linear(hidden, self.weights.head)[:count], routing

    def _attend(
        self,
        index: int,
        layer: LayerWeights,
        hidden: Tensor,
        cos: Tensor,
        sin: Tensor,
        mask: Tensor | None,
        step: PackedStep,
        kv: KvStore,
    ) -> Tensor:
        """Return ``hidden + attention(norm(hidden))``, [N, H]; rows beyond the tokens are padding.

        softmax(q · kᵀ / √head_dim) · v; the scale 1/√head_dim is folded into the query norm on
        loading.
        """
        config = self.config
        dim, heads, groups = config.head_dim, config.heads, config.kv_heads
        normed = F.rms_norm(hidden, (config.hidden_size,), layer.input_norm, config.rms_norm_eps)
        qkv = F.linear(normed, layer.qkv, layer.qkv_bias).view(-1, heads + 2 * groups, dim)
        qkv = qkv[: len(step.tokens)]
        turned = F.rms_norm(qkv[:, : heads + groups], (dim,), None, config.rms_norm_eps)
        turned = turned.mul_(layer.qk_norm)
        # RoPE: x·cos + rotate_half(x)·sin. rotate_half swaps the halves of the head; the minus
        # sign of the first one is folded into the sine table
        # (no addcmul: it rounds once or twice, depending on where a thread's part ends)
        halves = turned.view(*turned.shape[:2], 2, dim // 2)
        turned = (turned * cos).add_(halves.flip(-2).flatten(-2).mul_(sin))
        query = turned[:, :heads]
        kv.write(index, step.slots, turned[:, heads:], qkv[:, heads + groups :])
        keys, values = kv.keys[index], kv.values[index]
        parts = []
        for block in step.blocks:
            assert mask is not None
            parts.append(self._decode(query, keys, values, mask, block))
        offset = step.decoding
        for span in step.spans:
            part = query[offset : offset + span.size]
            parts.append(attend_span(part, keys, values, span, groups))
            offset += span.size
        if len(hidden) > offset:
            parts.append(hidden.new_zeros(len(hidden) - offset, heads * dim))
        mixed = parts[0] if len(parts) == 1 else torch.cat(parts)
        hidden = torch.addmm(hidden, mixed, layer.out.t())
        return hidden if layer.out_bias is None else hidden.add_(layer.out_bias)

    def _route(self, mlp: MoeMlp, normed: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights, float32, and ids, int64, of each token's experts, both [N, top_k].

        p = softmax(x · Wᵀ) over all experts; the top_k of p, renormalised to sum 1 if the model
        asks for it (``norm_topk_prob``).
        """
        probabilities = F.linear(normed, mlp.router).softmax(-1)
        scores, chosen = probabilities.topk(self.config.experts_per_token, dim=-1)
        if self.config.norm_topk_prob:
            scores = scores / scores.sum(-1, keepdim=True)
        return scores, chosen


def _experts(mlp: MoeMlp, normed: Tensor, scores: Tensor, chosen: Tensor) -> Tensor:
    """Return Σ score · down(silu(gate(x)) · up(x)) over each token's chosen experts, [N, H]."""
    tokens, top = chosen.shape
    experts, double, width = mlp.gate_up.shape
    if experts <= MAX_DENSE_RATIO * top:
        # every expert runs; those that were not chosen have weight 0
        weights = torch.zeros(tokens, experts).scatter_(1, chosen, scores)
        both = F.linear(normed, mlp.gate_up.view(-1, width)).view(tokens, experts, double)
        inner = _activate(both).mul_(weights.unsqueeze(-1))
        return inner.view(tokens, -1) @ mlp.down.view(-1, width)
    # tokens sorted by expert, so that each expert multiplies one contiguous slice (grouped_mm);
    # each slice is padded, with token 0, whose products nobody reads
    flat = chosen.reshape(-1)
    order = flat.argsort(stable=True)
    counts = torch.bincount(flat, minlength=experts)
    padded = round_up(counts, ROWS)
    ends = padded.cumsum(0)
    shift = (ends - padded) - (counts.cumsum(0) - counts)
    places = torch.empty_like(flat)
    places[order] = torch.arange(len(flat)) + shift[flat[order]]
    sources = torch.zeros(int(ends[-1]), dtype=torch.int64)
    sources[places] = torch.arange(len(flat)) // top
    offsets = ends.to(torch.int32)
    both = F.grouped_mm(normed[sources], mlp.gate_up.transpose(1, 2), offs=offsets)
    out = F.grouped_mm(_activate(both), mlp.down, offs=offsets)
    parts = out[places].view(tokens, top, width).mul_(scores.unsqueeze(-1))
    mixed = parts[:, 0]
    for rank in range(1, top):
        mixed += parts[:, rank]
    return mixed


def _activate(both: Tensor) -> Tensor:
    """Return ``silu(gate) · up`` of ``both`` [N, …, 2I], which holds gate, then up: [N, …, I]."""
    gate, up = both.chunk(2, dim=-1)
    rows = max(1, (SERIAL_ELEMENTS - 1) // gate[:1].numel())
    if len(gate) <= rows:
        return F.silu(gate).mul_(up)
    return torch.cat([F.silu(part) for part in torch.split(gate, rows)]).mul_(up)


def _pad_rows(rows: Tensor) -> Tensor:
    """Add rows of zeros up to a multiple of ``ROWS``."""
    missing = -len(rows) % ROWS
    return F.pad(rows, (0, 0, 0, missing)) if missing else rows


def _rotary_table(config: ModelConfig, max_context: int) -> Tensor:
    """Return cosine and signed sine of every position, [2, max_context, 1, head_dim].

    The angle of pair i at position p is p · theta^(-2i / head_dim) (RoFormer, arXiv 2104.09864).
    The first half of the sine is negated, for the minus in rotate_half.
    """
    dim = config.head_dim
    exponents = torch.arange(0, dim, 2, dtype=torch.int64).float() / dim
    angles = torch.arange(max_context).float()[:, None] * (1.0 / config.rope_theta**exponents)
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)]).unsqueeze(2)
