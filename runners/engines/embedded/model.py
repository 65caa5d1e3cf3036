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

from collections.abc import Sequence
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
from runners.engines.embedded.buffers import BufferPool, Buffers, FloatArray, Shared
from runners.engines.embedded.mkl_mode import set_mkl_mode
from runners.engines.embedded.weights import LayerWeights, ModelConfig, ModelWeights, MoeMlp
from runners.records.record import IdArray

set_mkl_mode()

ROWS = 8
"""Products over tokens have a multiple of this many rows: for 1, 2, 3, 5, 7 and 11 rows MKL takes
other kernels (measured with 1, 2, 3 and 8 threads), on an EPYC for 1 to 3, 5 to 7 and 9 to 11.
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

    tokens: IdArray
    """[N] int32"""
    positions: NDArray[np.int64]
    """[N]"""
    slots: KvSlots
    """Each token's place in the KV store."""
    decoding: int
    lengths: Sequence[int]
    """[decoding]: number of positions that each decoding row attends to, its own included."""
    blocks: tuple[DecodeBlock, ...]
    """The decoding rows in order, in blocks of similar length."""
    spans: tuple[PrefillSpan, ...]
    wanted: NDArray[np.int64] | None
    """[M]: packed indices whose logits are wanted; None for all."""


class Qwen3Moe:
    """The model, dense without experts; between calls it keeps only its rotary table and memory
    that a step writes anew.
    """

    def __init__(self, weights: ModelWeights, max_context: int) -> None:
        self.config = weights.config
        self.weights = weights
        self._turns = _rotary_table(weights.config, max_context)
        self._decode = DecodeAttention(weights.config, max_context)
        self._buffers = BufferPool(weights.config)

    @torch.inference_mode()
    def forward(self, step: PackedStep, kv: KvStore) -> tuple[Tensor, RoutingArray]:
        """Write the keys and values of the packed tokens into ``kv``; return logits and routing.

        Logits are float32 [M, V] of the wanted tokens, routing int16 [N, layers, top_k]: the chosen
        experts, best first; all zero in dense layers.
        """
        config, count = self.config, len(step.tokens)
        embeddings = self.weights.embeddings.numpy()
        work = self._fill(embeddings[step.tokens])
        turns = self._turns[:, step.positions]
        routing = np.zeros((count, config.layers, config.experts_per_token), dtype=np.int16)
        for index, layer in enumerate(self.weights.layers):
            self._attend(index, layer, work, turns, step, kv)
            self._normalize(work, layer.post_norm)
            hidden, normed = work.hidden.tensor, work.normed.tensor
            if isinstance(layer.mlp, MoeMlp):
                scores, chosen = self._route(layer.mlp, work)
                routing[:, index] = chosen[:count]
                mixed = _experts(layer.mlp, normed, scores, chosen)
                np.add(work.hidden.array, mixed.numpy(), out=work.hidden.array)
            else:
                inner = _activate(F.linear(normed, layer.mlp.gate_up))
                hidden.addmm_(inner, layer.mlp.down)
        if step.wanted is not None:
            count = len(step.wanted)
            work = self._fill(work.hidden.array[step.wanted])
        self._normalize(work, self.weights.norm)
        return F.linear(work.normed.tensor, self.weights.head)[:count], routing

    def _fill(self, hidden: FloatArray) -> Buffers:
        """Return buffers with ``hidden`` [N, H] and rows of zeros up to a multiple of ``ROWS``."""
        count = len(hidden)
        work = self._buffers(round_up(count, ROWS))
        work.hidden.array[:count] = hidden
        work.hidden.array[count:] = 0.0
        return work

    def _normalize(self, work: Buffers, weight: Tensor) -> None:
        eps = self.config.rms_norm_eps
        normalize(work.hidden.array, work.normed, work.sums, weight.numpy(), eps)

    def _attend(
        self,
        index: int,
        layer: LayerWeights,
        work: Buffers,
        turns: FloatArray,
        step: PackedStep,
        kv: KvStore,
    ) -> None:
        """Add attention(norm(hidden)) to the hidden values; rows beyond the tokens are padding.

        softmax(q · kᵀ / √head_dim) · v; the scale 1/√head_dim is folded into the query norm on
        loading.
        """
        config, count = self.config, len(step.tokens)
        heads, groups = config.heads, config.kv_heads
        self._normalize(work, layer.input_norm)
        _project(work, layer)
        turned, qkv = work.turned.array, work.qkv_heads
        normalize(
            qkv[:, : heads + groups], work.turned, work.head_sums, layer.qk_norm.numpy(),
            config.rms_norm_eps,
        )  # fmt: skip
        rotate(turned[:count], turns, work.partner[:count])
        kv.write(index, step.slots, turned[:count, heads:], qkv[:count, heads + groups :])
        for block in step.blocks:
            self._decode(turned[:, :heads], kv, index, step.lengths, block, work.mixed.array)
        keys, values = kv.keys.tensor[index], kv.values.tensor[index]
        offset = step.decoding
        for span in step.spans:
            part = slice(offset, offset + span.size)
            query = work.turned.tensor[part, :heads]
            work.mixed.tensor[part] = attend_span(query, keys, values, span, groups)
            offset = part.stop
        work.mixed.array[offset:] = 0.0
        hidden = work.hidden.tensor.addmm_(work.mixed.tensor, layer.out.t())
        if layer.out_bias is not None:
            hidden.add_(layer.out_bias)

    def _route(self, mlp: MoeMlp, work: Buffers) -> tuple[FloatArray, NDArray[np.int64]]:
        """Return the weights and ids of each token's experts, both [N, top_k].

        p = softmax(x · Wᵀ) over all experts; the top_k of p, renormalised to sum 1 if the model
        asks for it (``norm_topk_prob``).
        """
        logits = torch.mm(work.normed.tensor, mlp.router.t(), out=work.router.tensor)
        scores, chosen = logits.softmax(-1).topk(self.config.experts_per_token, dim=-1)
        weights: FloatArray = scores.numpy()
        if self.config.norm_topk_prob:
            weights /= scores.sum(-1, keepdim=True).numpy()
        return weights, chosen.numpy()


def normalize(rows: FloatArray, out: Shared, sums: Shared, weight: FloatArray, eps: float) -> None:
    """Write ``x / √(mean(x²) + eps) · weight`` of the last dimension of ``rows`` into ``out``
    (RMSNorm, arXiv 1910.07467); ``sums`` are its sums. It has the bits of ``F.rms_norm``.
    """
    scale = sums.array
    np.multiply(rows, rows, out=out.array)
    torch.sum(out.tensor, -1, keepdim=True, out=sums.tensor)
    scale /= rows.shape[-1]
    scale += eps
    np.sqrt(scale, out=scale)
    np.divide(1.0, scale, out=scale)
    np.multiply(rows, scale, out=out.array)
    np.multiply(out.array, weight, out=out.array)


def rotate(rows: FloatArray, turns: FloatArray, partner: FloatArray) -> None:
    """Rotate heads [N, n, head_dim] in place: x · cos + rotate_half(x) · sin (RoPE).

    ``turns`` are cosine and sine, [2, N, 1, head_dim]. rotate_half swaps the halves of the head;
    the minus sign of the first one is folded into the sine. ``partner`` is memory of the same shape
    as ``rows``.
    """
    cos, sin = turns
    half = rows.shape[-1] // 2
    np.multiply(rows[..., half:], sin[..., :half], out=partner[..., :half])
    np.multiply(rows[..., :half], sin[..., half:], out=partner[..., half:])
    np.multiply(rows, cos, out=rows)
    np.add(rows, partner, out=rows)


def _project(work: Buffers, layer: LayerWeights) -> None:
    """Write the queries, keys and values of the normed values."""
    normed, qkv = work.normed.tensor, work.qkv.tensor
    if layer.qkv_bias is None:
        torch.mm(normed, layer.qkv.t(), out=qkv)
    else:
        torch.addmm(layer.qkv_bias, normed, layer.qkv.t(), out=qkv)


def _experts(mlp: MoeMlp, normed: Tensor, scores: FloatArray, chosen: NDArray[np.int64]) -> Tensor:
    """Return Σ score · down(silu(gate(x)) · up(x)) over each token's chosen experts, [N, H]."""
    tokens, top = chosen.shape
    experts, double, width = mlp.gate_up.shape
    if experts <= MAX_DENSE_RATIO * top:
        # every expert runs; those that were not chosen have weight 0
        weights = np.zeros((tokens, experts), np.float32)
        np.put_along_axis(weights, chosen, scores, axis=1)
        both = F.linear(normed, mlp.gate_up.view(-1, width)).view(tokens, experts, double)
        inner = _activate(both)
        shared = inner.numpy()
        shared *= weights[:, :, None]
        return inner.view(tokens, -1) @ mlp.down.view(-1, width)
    return _sorted_experts(mlp, normed, torch.from_numpy(scores), torch.from_numpy(chosen))


def _sorted_experts(mlp: MoeMlp, normed: Tensor, scores: Tensor, chosen: Tensor) -> Tensor:
    """Return the same; each expert multiplies one contiguous slice of tokens (grouped_mm)."""
    tokens, top = chosen.shape
    experts, _, width = mlp.gate_up.shape
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


def _rotary_table(config: ModelConfig, max_context: int) -> FloatArray:
    """Return cosine and signed sine of every position, float32 [2, max_context, 1, head_dim].

    The angle of pair i at position p is p · theta^(-2i / head_dim) (RoFormer, arXiv 2104.09864).
    The first half of the sine is negated, for the minus in rotate_half.
    """
    dim = config.head_dim
    exponents = torch.arange(0, dim, 2, dtype=torch.int64).float() / dim
    angles = torch.arange(max_context).float()[:, None] * (1.0 / config.rope_theta**exponents)
    cos, sin = angles.cos(), angles.sin()
    turns = torch.stack([torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)]).unsqueeze(2)
    table: FloatArray = turns.numpy()
    return table
