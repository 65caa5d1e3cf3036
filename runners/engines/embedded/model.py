"""The Qwen3-MoE forward pass over a mixed batch: one token of every decoding row, many of every
prefilling row.

Rows ``0 … decoding-1`` of the KV store each contribute their last token; every span contributes the
tokens it lists. All linear work is done once over the packed tokens; attention is one batched
product for the decoding rows and one small product per span.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from runners.engines.embedded.weights import LayerWeights, ModelConfig, MoeMlp, Weights

DENSE_EXPERT_WORK = 512
"""Up to this many tokens x experts, running every expert on every token beats sorting tokens by
expert (measured).
"""

BLOCK_ROWS = 16
WORTH_CUTTING = 0.8
"""Blocks are used when they read less than this share of what one padded block would (measured)."""

RoutingArray = NDArray[np.int16]


class Span(NamedTuple):
    """``size`` consecutive positions of one prefilling row, beginning at ``start``."""

    row: int
    start: int
    size: int


class Block(NamedTuple):
    """Decoding rows ``begin … end-1``, attended to together over ``longest`` positions."""

    begin: int
    end: int
    longest: int


@dataclass(frozen=True, slots=True)
class Step:
    """The packed input of one forward pass: decoding rows first, then the spans in order."""

    tokens: Tensor
    """[N] int64"""
    positions: Tensor
    """[N] int64"""
    slots: Tensor
    """[N * kv_heads] int64: where each token's keys and values go in the flattened KV store."""
    decoding: int
    lengths: Tensor
    """[decoding] int64: positions each decoding row attends to, its own included."""
    blocks: tuple[Block, ...]
    """The decoding rows in order, cut where rows of like length end."""
    spans: tuple[Span, ...]
    wanted: Tensor | None
    """Packed indices whose logits are wanted; None for all."""


class KvStore:
    """Keys and values of the running rows: ``data[layer, k|v, row * kv_heads + head, position]``,
    float32.

    Pages are touched only where tokens are written, so the store costs memory by use, not by
    capacity.
    """

    def __init__(self, config: ModelConfig, rows: int, capacity: int) -> None:
        self.heads = config.kv_heads
        self.capacity = capacity
        self.data = torch.zeros(
            config.layers, 2, rows * config.kv_heads, capacity, config.head_dim, dtype=torch.float32
        )
        self.flat = self.data.view(config.layers, 2, -1, config.head_dim)
        self._head_offsets = np.arange(self.heads, dtype=np.int64) * capacity

    def slots(self, rows: NDArray[np.int64], positions: NDArray[np.int64]) -> Tensor:
        """Flat indices [N * kv_heads] of (row, position) pairs."""
        first = rows * (self.heads * self.capacity) + positions
        return torch.from_numpy((first[:, None] + self._head_offsets).reshape(-1))

    def span(self, row: int, start: int, end: int) -> Tensor:
        """Return a view [layers, 2, kv_heads, end - start, head_dim]."""
        return self.data[:, :, row * self.heads : (row + 1) * self.heads, start:end]


class Qwen3Moe:
    """The model; stateless between calls except for its rotary table."""

    def __init__(self, weights: Weights, max_context: int) -> None:
        self.config = weights.config
        self.weights = weights
        self._cos, self._sin = _rotary_table(weights.config, max_context)

    def forward(self, step: Step, kv: KvStore) -> tuple[Tensor, RoutingArray]:
        """Write keys and values of the packed tokens, return logits [M, V] and routing [N, layers,
        top-k].

        Routing of dense layers is all zero.
        """
        config = self.config
        hidden = self.weights.embeddings[step.tokens]
        cos = self._cos[step.positions]
        sin = self._sin[step.positions]
        mask = _decode_mask(step)
        routing = np.zeros((len(hidden), config.layers, config.experts_per_token), dtype=np.int16)
        for index, layer in enumerate(self.weights.layers):
            hidden = self._attend(index, layer, hidden, cos, sin, mask, step, kv)
            normed = F.rms_norm(hidden, (config.hidden_size,), layer.post_norm, config.rms_norm_eps)
            if isinstance(layer.mlp, MoeMlp):
                scores, chosen = self._route(layer.mlp, normed)
                hidden += _experts(layer.mlp, normed, scores, chosen)
                routing[:, index] = chosen.numpy()
            else:
                gate, up = F.linear(normed, layer.mlp.gate_up).chunk(2, dim=-1)
                hidden = torch.addmm(hidden, F.silu(gate).mul_(up), layer.mlp.down)
        if step.wanted is not None:
            hidden = hidden[step.wanted]
        hidden = F.rms_norm(hidden, (config.hidden_size,), self.weights.norm, config.rms_norm_eps)
        return F.linear(hidden, self.weights.head), routing

    def _attend(
        self,
        index: int,
        layer: LayerWeights,
        hidden: Tensor,
        cos: Tensor,
        sin: Tensor,
        mask: Tensor | None,
        step: Step,
        kv: KvStore,
    ) -> Tensor:
        config = self.config
        dim, heads, groups = config.head_dim, config.heads, config.kv_heads
        normed = F.rms_norm(hidden, (config.hidden_size,), layer.input_norm, config.rms_norm_eps)
        qkv = F.linear(normed, layer.qkv, layer.qkv_bias).view(-1, heads + 2 * groups, dim)
        turned = F.rms_norm(qkv[:, : heads + groups], (dim,), None, config.rms_norm_eps)
        turned = turned.mul_(layer.qk_norm)
        # rotate_half with its sign folded into the sine table
        turned = torch.addcmul(turned * cos, turned.roll(dim // 2, -1), sin)
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
        hidden = torch.addmm(hidden, mixed, layer.out.t())
        return hidden if layer.out_bias is None else hidden.add_(layer.out_bias)

    def _route(self, mlp: MoeMlp, normed: Tensor) -> tuple[Tensor, Tensor]:
        probabilities = F.linear(normed, mlp.router).softmax(-1)
        scores, chosen = probabilities.topk(self.config.experts_per_token, dim=-1)
        if self.config.norm_topk_prob:
            scores = scores / scores.sum(-1, keepdim=True)
        return scores, chosen


def _attend_rows(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, block: Block, groups: int
) -> Tensor:
    """One query per row of the block against its whole row, [rows, heads * head_dim]."""
    begin, end, longest = block
    rows, heads, dim = end - begin, query.shape[1], query.shape[2]
    stored = slice(begin * groups, end * groups)
    grouped = query[begin:end].reshape(rows * groups, heads // groups, dim)
    scores = torch.bmm(grouped, keys[stored, :longest].transpose(1, 2))
    scores.view(rows, heads, longest).add_(mask[begin:end, :, :longest])
    return torch.bmm(scores.softmax(-1), values[stored, :longest]).view(rows, heads * dim)


def _attend_span(query: Tensor, keys: Tensor, values: Tensor, span: Span, groups: int) -> Tensor:
    """Causal attention of a span over its row, [count, heads * head_dim]."""
    count, heads, dim = query.shape
    end = span.start + count
    row = slice(span.row * groups, (span.row + 1) * groups)
    query = query.view(count, groups, heads // groups, dim).permute(1, 2, 0, 3)
    scores = torch.bmm(query.reshape(groups, -1, dim), keys[row, :end].transpose(1, 2))
    if count > 1:
        future = torch.full((count, count), -math.inf).triu_(1)
        scores.view(heads, count, end)[:, :, span.start :].add_(future)
    mixed = torch.bmm(scores.softmax(-1), values[row, :end])
    return mixed.view(heads, count, dim).transpose(0, 1).reshape(count, heads * dim)


def _experts(mlp: MoeMlp, normed: Tensor, scores: Tensor, chosen: Tensor) -> Tensor:
    """Sum of the chosen experts' outputs weighted by their scores, [N, H]."""
    tokens, top = chosen.shape
    experts, double, width = mlp.gate_up.shape
    if tokens * experts <= DENSE_EXPERT_WORK:
        weights = torch.zeros(tokens, experts).scatter_(1, chosen, scores)
        both = F.linear(normed, mlp.gate_up.view(-1, width)).view(tokens, experts, double)
        gate, up = both.chunk(2, dim=-1)
        inner = F.silu(gate).mul_(up).mul_(weights.unsqueeze(-1))
        return inner.view(tokens, -1) @ mlp.down.view(-1, width)
    flat = chosen.reshape(-1)
    order = flat.argsort(stable=True)
    ends = torch.bincount(flat, minlength=experts).cumsum(0).to(torch.int32)
    sources = order // top
    both = F.grouped_mm(normed[sources], mlp.gate_up.transpose(1, 2), offs=ends)
    gate, up = both.chunk(2, dim=-1)
    inner = F.silu(gate).mul_(up).mul_(scores.reshape(-1)[order].unsqueeze(-1))
    out = F.grouped_mm(inner, mlp.down, offs=ends)
    return torch.zeros(tokens, width).index_add_(0, sources, out)


def decode_blocks(lengths: NDArray[np.int64]) -> tuple[Block, ...]:
    """Cut decoding rows into blocks where that saves a good part of the padding, else keep them in
    one.

    A block costs some calls; a row that is much longer than the others would cost them all their
    time.
    """
    count = len(lengths)
    if not count:
        return ()
    whole = Block(0, count, int(lengths.max()))
    ends = [min(begin + BLOCK_ROWS, count) for begin in range(0, count, BLOCK_ROWS)]
    blocks = tuple(
        Block(begin, end, int(lengths[begin:end].max()))
        for begin, end in zip(range(0, count, BLOCK_ROWS), ends, strict=True)
    )
    padded = sum((end - begin) * longest for begin, end, longest in blocks)
    return blocks if padded < WORTH_CUTTING * count * whole.longest else (whole,)


def _decode_mask(step: Step) -> Tensor | None:
    """Build [decoding, 1, longest]: 0 where a row may look, -inf beyond its length."""
    if not step.decoding:
        return None
    longest = max(block.longest for block in step.blocks)
    beyond = torch.arange(longest) >= step.lengths[:, None]
    return torch.zeros(beyond.shape).masked_fill_(beyond, -math.inf).unsqueeze(1)


def _rotary_table(config: ModelConfig, max_context: int) -> tuple[Tensor, Tensor]:
    """Cosine and signed sine, each [max_context, 1, head_dim]."""
    dim = config.head_dim
    exponents = torch.arange(0, dim, 2, dtype=torch.int64).float() / dim
    angles = torch.arange(max_context).float()[:, None] * (1.0 / config.rope_theta**exponents)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([cos, cos], -1).unsqueeze(1), torch.cat([-sin, sin], -1).unsqueeze(1)
