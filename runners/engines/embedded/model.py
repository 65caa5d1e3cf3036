"""The Qwen3(-MoE) forward pass in float32 over a packed batch of decoding and prefilling rows.

Rows ``0 … decoding-1`` of the KV store each contribute their last token; every span contributes the
tokens it lists. All linear layers run once over the N packed tokens; attention is one batched
product for a block of decoding rows and one small product per span.

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

import math
import os
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from runners.engines.embedded.weights import LayerWeights, ModelConfig, ModelWeights, MoeMlp

# MKL reads it at the process's first product. On some processors its usual kernels also let the
# number of rows and of threads decide the order of a sum (seen with 3 threads on two cores of an
# Emerald Rapids); in its strict mode they do not.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

ROWS = 8
"""Products over tokens have a multiple of this many rows: for 1, 2, 3, 5, 7 and 11 rows MKL takes
other kernels (measured with 1, 2, 3 and 8 threads; multiples of 4 are enough there).
"""
QUERY_ROWS = 4
"""Products of attention have a multiple of this many query rows,"""
KEYS = 16
"""and of this many keys."""
KEY_TILE = 128
"""Values are summed over this many positions at a time: libraries cut longer sums where their
length tells them (MKL from 129 on).
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

BLOCK_ROWS = 16
MAX_PADDED_SHARE = 0.8
"""Rows are cut into blocks when those read less than this share of what one padded block would
(measured on a CPU).
"""

RoutingArray = NDArray[np.int16]
Count = TypeVar("Count", int, Tensor)


class PrefillSpan(NamedTuple):
    """``size`` consecutive positions of one prefilling row, beginning at ``start``."""

    row: int
    start: int
    size: int


class DecodeBlock(NamedTuple):
    """Decoding rows ``begin … end-1``, whose attention runs together over ``longest`` positions."""

    begin: int
    end: int
    longest: int


@dataclass(frozen=True, slots=True)
class PackedStep:
    """The packed input of one forward pass: decoding rows first, then the spans in order."""

    tokens: Tensor
    """[N] int64"""
    positions: Tensor
    """[N] int64"""
    slots: Tensor
    """[N · kv_heads] int64: index of each token's keys and values in the flattened KV store."""
    decoding: int
    lengths: Tensor
    """[decoding] int64: number of positions that each decoding row attends to, its own included."""
    blocks: tuple[DecodeBlock, ...]
    """The decoding rows in order, in blocks of similar length."""
    spans: tuple[PrefillSpan, ...]
    wanted: Tensor | None
    """[M] int64: packed indices whose logits are wanted; None for all."""


class KvStore:
    """Keys and values of the running rows, float32.

    ``capacity`` is rounded up to a multiple of ``KEYS``.
    ``data[layer, 0 (keys) | 1 (values), row · kv_heads + head, position, head_dim]``. The operating
    system gives memory where a page is first written, so the store costs what is used, not what is
    allocated.
    """

    def __init__(self, config: ModelConfig, rows: int, capacity: int) -> None:
        self.heads = config.kv_heads
        self.capacity = capacity = round_up(capacity, KEYS)
        self.data = torch.zeros(
            config.layers, 2, rows * config.kv_heads, capacity, config.head_dim, dtype=torch.float32
        )
        self.flat = self.data.view(config.layers, 2, -1, config.head_dim)
        self._head_offsets = np.arange(self.heads, dtype=np.int64) * capacity

    def slots(self, rows: NDArray[np.int64], positions: NDArray[np.int64]) -> Tensor:
        """Return the flat indices, int64 [N · kv_heads], of N (row, position) pairs."""
        first = rows * (self.heads * self.capacity) + positions
        return torch.from_numpy((first[:, None] + self._head_offsets).reshape(-1))

    def span(self, row: int, start: int, end: int) -> Tensor:
        """Return a view of positions of a row, [layers, 2, kv_heads, end - start, head_dim]."""
        return self.data[:, :, row * self.heads : (row + 1) * self.heads, start:end]


class Qwen3Moe:
    """The model, dense without experts; it keeps nothing between calls except its rotary table."""

    def __init__(self, weights: ModelWeights, max_context: int) -> None:
        self.config = weights.config
        self.weights = weights
        self._cos, self._sin = _rotary_table(weights.config, max_context)

    def forward(self, step: PackedStep, kv: KvStore) -> tuple[Tensor, RoutingArray]:
        """Write the keys and values of the packed tokens into ``kv``; return logits and routing.

        Logits are float32 [M, V] of the wanted tokens, routing int16 [N, layers, top_k]: the chosen
        experts, best first; all zero in dense layers.
        """
        config, count = self.config, len(step.tokens)
        hidden = _pad_rows(self.weights.embeddings[step.tokens])
        cos = self._cos[step.positions]
        sin = self._sin[step.positions]
        mask = _decode_mask(step)
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
            hidden = _pad_rows(hidden[step.wanted])
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
        # RoPE: x·cos + rotate_half(x)·sin. rotate_half is a roll by half the head, whose minus sign
        # for the first half is folded into the sine table
        # (no addcmul: it rounds once or twice, depending on where a thread's part ends)
        turned = (turned * cos).add_(turned.roll(dim // 2, -1).mul_(sin))
        query = turned[:, :heads]
        kv.flat[index, 0].index_copy_(0, step.slots, turned[:, heads:].reshape(-1, dim))
        kv.flat[index, 1].index_copy_(0, step.slots, qkv[:, heads + groups :].reshape(-1, dim))
        keys, values = kv.data[index]
        parts = []
        for block in step.blocks:
            assert mask is not None
            parts.append(_attend_rows(query, keys, values, mask, block, groups))
        offset = step.decoding
        for span in step.spans:
            part = query[offset : offset + span.size]
            parts.append(_attend_span(part, keys, values, span, groups))
            offset += span.size
        mixed = parts[0] if len(parts) == 1 else torch.cat(parts)
        hidden = torch.addmm(hidden, _pad_rows(mixed), layer.out.t())
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


def _attend_rows(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, block: DecodeBlock, groups: int
) -> Tensor:
    """Return the attention of one query per row over its whole row, [rows, heads · head_dim].

    The heads of a group share keys, so a group is one product [heads / groups, longest].
    """
    begin, end, longest = block
    rows, heads, dim = end - begin, query.shape[1], query.shape[2]
    stored = slice(begin * groups, end * groups)
    grouped = query[begin:end].reshape(rows * groups, heads // groups, dim)
    length = round_up(longest, KEYS)
    keys, values = keys[stored, :length], values[stored, :length]
    scores = torch.bmm(_pad_queries(grouped), keys.transpose(1, 2))
    by_row = scores.view(rows, -1, length)
    by_row.add_(mask[begin:end, :, :length])
    return _mix(scores, values)[:, : heads // groups].reshape(rows, heads * dim)


def _attend_span(
    query: Tensor, keys: Tensor, values: Tensor, span: PrefillSpan, groups: int
) -> Tensor:
    """Return the causal attention of a span over its row, [count, heads · head_dim]."""
    count, heads, dim = query.shape
    length = round_up(span.start + count, KEYS)
    row = slice(span.row * groups, (span.row + 1) * groups)
    query = query.view(count, groups, heads // groups, dim).permute(1, 2, 0, 3)
    grouped = query.reshape(groups, -1, dim)
    scores = torch.bmm(_pad_queries(grouped), keys[row, :length].transpose(1, 2))
    own = scores[:, : grouped.shape[1]].view(groups, -1, count, length)
    own[..., span.start :].add_(torch.full((count, length - span.start), -math.inf).triu_(1))
    mixed = _mix(scores, values[row, :length])[:, : grouped.shape[1]]
    return mixed.reshape(heads, count, dim).transpose(0, 1).reshape(count, heads * dim)


def _mix(scores: Tensor, values: Tensor) -> Tensor:
    """Return ``softmax(scores) · values``, [B, M, head_dim], of ``scores`` [B, M, positions]."""
    shares, positions = scores.softmax(-1), values.shape[1]
    mixed = torch.bmm(shares[:, :, :KEY_TILE], values[:, :KEY_TILE])
    for start in range(KEY_TILE, positions, KEY_TILE):
        tile = slice(start, start + KEY_TILE)
        mixed += torch.bmm(shares[:, :, tile], values[:, tile])
    return mixed


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


def round_up(count: Count, step: int) -> Count:
    """Return the next multiple of ``step``, of a number or of each in a tensor."""
    return -(-count // step) * step


def _pad_rows(rows: Tensor) -> Tensor:
    """Add rows of zeros up to a multiple of ``ROWS``."""
    missing = -len(rows) % ROWS
    return F.pad(rows, (0, 0, 0, missing)) if missing else rows


def _pad_queries(grouped: Tensor) -> Tensor:
    """Add query rows of zeros to each matrix up to a multiple of ``QUERY_ROWS``."""
    missing = -grouped.shape[1] % QUERY_ROWS
    return F.pad(grouped, (0, 0, 0, missing)) if missing else grouped


def decode_blocks(lengths: NDArray[np.int64]) -> tuple[DecodeBlock, ...]:
    """Cut decoding rows, of ``lengths`` int64 [rows], into blocks of ``BLOCK_ROWS``, if it pays.

    In one block all rows are padded to the longest, so one long row slows down all the others; each
    further block costs a few calls.
    """
    count = len(lengths)
    if not count:
        return ()
    whole = DecodeBlock(0, count, int(lengths.max()))
    ends = [min(begin + BLOCK_ROWS, count) for begin in range(0, count, BLOCK_ROWS)]
    blocks = tuple(
        DecodeBlock(begin, end, int(lengths[begin:end].max()))
        for begin, end in zip(range(0, count, BLOCK_ROWS), ends, strict=True)
    )
    padded = sum((end - begin) * longest for begin, end, longest in blocks)
    return blocks if padded < MAX_PADDED_SHARE * count * whole.longest else (whole,)


def _decode_mask(step: PackedStep) -> Tensor | None:
    """Return [decoding, 1, longest]: 0 where a row may attend, -inf beyond its length.

    ``longest`` is rounded up as the keys are.
    """
    if not step.decoding:
        return None
    longest = round_up(max(block.longest for block in step.blocks), KEYS)
    beyond = torch.arange(longest) >= step.lengths[:, None]
    return torch.zeros(beyond.shape).masked_fill_(beyond, -math.inf).unsqueeze(1)


def _rotary_table(config: ModelConfig, max_context: int) -> tuple[Tensor, Tensor]:
    """Return cosine and signed sine of every position, each [max_context, 1, head_dim].

    The angle of pair i at position p is p · theta^(-2i / head_dim) (RoFormer, arXiv 2104.09864).
    The first half of the sine is negated, for the minus in rotate_half.
    """
    dim = config.head_dim
    exponents = torch.arange(0, dim, 2, dtype=torch.int64).float() / dim
    angles = torch.arange(max_context).float()[:, None] * (1.0 / config.rope_theta**exponents)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([cos, cos], -1).unsqueeze(1), torch.cat([-sin, sin], -1).unsqueeze(1)
