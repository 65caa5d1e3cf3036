"""Keys and values of the running rows, and the attention of packed tokens over them, in float32.

A block of decoding rows is one batched product, a span of prefill one product per group of heads.
Keys are stored transposed: a product of few queries then reads them as they lie.

Invariant: a token's attention has the same bits whatever else is packed, however its row was cut
into spans, and whether it was decoded or prefilled. A library keeps the order in which it adds up
one element only among shapes that it computes with the same kernel, so products are padded to such
shapes, and values are summed tile by tile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from runners.engines.embedded.buffers import FloatArray, Shared
from runners.engines.embedded.weights import ModelConfig

QUERY_ROWS = 4
"""Products of attention have a multiple of this many query rows,"""
KEYS = 16
"""and of this many keys."""
KEY_TILE = 128
"""Values are summed over this many positions at a time: libraries cut longer sums where their
length tells them (MKL from 129 on).
"""

MOST_KEYS_TRIED = 1024
"""All lengths up to this many keys are tried when the libraries are compared, beyond it doubled
ones: 10 ms of processor time for 2 queries of 32 dimensions, 60 ms for 8 of 128, once a process.
"""

BLOCK_ROWS = 16
MAX_PADDED_SHARE = 0.8
"""Rows are cut into blocks when those read less than this share of what one padded block would
(measured on a CPU).
"""

Count = TypeVar("Count", int, Tensor)
Matrices = TypeVar("Matrices", Tensor, FloatArray)


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


class KvSpan(NamedTuple):
    """Keys and values of n consecutive positions, float32."""

    keys: Tensor
    """[layers, kv_heads, head_dim, n]"""
    values: Tensor
    """[layers, kv_heads, n, head_dim]"""

    def part(self, start: int, end: int | None = None) -> KvSpan:
        """Return a view of some of the positions."""
        return KvSpan(self.keys[..., start:end], self.values[:, :, start:end])

    def clone(self) -> KvSpan:
        """Return a copy."""
        return KvSpan(self.keys.clone(), self.values.clone())

    def copy_(self, source: KvSpan) -> None:
        """Overwrite the positions with those of ``source``."""
        self.keys.copy_(source.keys)
        self.values.copy_(source.values)


class KvSlots(NamedTuple):
    """Places of N tokens in the store."""

    matrices: NDArray[np.int64]
    """[N, kv_heads]: row · kv_heads + head"""
    positions: NDArray[np.int64]
    """[N, 1]"""


class KvStore:
    """Keys and values of the running rows, float32.

    ``capacity`` is rounded up to a multiple of ``KEYS``.
    ``keys[layer, row · kv_heads + head, head_dim, position]``; values have the last two dimensions
    the other way round. The operating system gives memory where a page is first written, so the
    store costs what is used, not what is allocated.
    """

    def __init__(self, config: ModelConfig, rows: int, capacity: int) -> None:
        self.heads = config.kv_heads
        self.capacity = capacity = round_up(capacity, KEYS)
        dim, matrices = config.head_dim, (config.layers, rows * config.kv_heads)
        self.keys = Shared.zeros(*matrices, dim, capacity)
        self.values = Shared.zeros(*matrices, capacity, dim)
        self._heads = np.arange(self.heads, dtype=np.int64)

    def slots(self, rows: NDArray[np.int64], positions: NDArray[np.int64]) -> KvSlots:
        """Return the places of N (row, position) pairs."""
        return KvSlots(rows[:, None] * self.heads + self._heads, positions[:, None])

    def write(self, layer: int, slots: KvSlots, keys: FloatArray, values: FloatArray) -> None:
        """Store a layer's keys and values of N tokens, both [N, kv_heads, head_dim]."""
        self.keys.array[layer][slots.matrices, :, slots.positions] = keys
        self.values.array[layer][slots.matrices, slots.positions] = values

    def span(self, row: int, start: int, end: int) -> KvSpan:
        """Return a view of positions of a row."""
        own = slice(row * self.heads, (row + 1) * self.heads)
        return KvSpan(self.keys.tensor[:, own, :, start:end], self.values.tensor[:, own, start:end])


class DecodeAttention:
    """The attention of one new token per row.

    A product of so few query rows costs MKL mostly the copies that it makes of keys and values;
    numpy's library multiplies them where they are, in about half of the time. It is used where it
    is found to round as MKL does, so that decoded tokens keep the bits of prefilled ones.
    """

    def __init__(self, config: ModelConfig, max_context: int) -> None:
        self._groups = config.kv_heads
        self._queries = config.heads // config.kv_heads
        context = round_up(max_context, KEYS)
        self.numpy_keys = numpy_scores_as_torch(self._queries, config.head_dim, context)
        """True where numpy multiplies the keys,"""
        self.numpy_values = numpy_mixes_as_torch(self._queries, config.head_dim)
        """and where it multiplies the values."""

    def __call__(
        self,
        query: FloatArray,
        kv: KvStore,
        layer: int,
        lengths: Sequence[int],
        block: DecodeBlock,
        mixed: FloatArray,
    ) -> None:
        """Write the attention of one query per row, [rows, heads, head_dim], over the first
        ``lengths`` positions of its row into ``mixed``, [rows, heads · head_dim].

        The heads of a group share keys, so a group is one product [heads / groups, longest].
        """
        begin, end, longest = block
        count, dim, length = end - begin, query.shape[2], round_up(longest, KEYS)
        stored = slice(begin * self._groups, end * self._groups)
        keys = kv.keys.array[layer, stored, :, :length]
        values = kv.values.array[layer, stored, :length]
        grouped = query[begin:end].reshape(-1, self._queries, dim)
        scores = (multiply_in_numpy if self.numpy_keys else multiply_in_torch)(grouped, keys)
        # a view in any case: torch's products are rows of a larger matrix
        by_row = scores.reshape(count, self._groups, self._queries, length)
        for row, attended in enumerate(lengths[begin:end]):
            by_row[row, :, :, attended:] = -math.inf
        shares = torch.from_numpy(scores).softmax(-1).numpy()
        multiply = multiply_in_numpy if self.numpy_values else multiply_in_torch
        mixed[begin:end] = mix(shares, values, multiply).reshape(count, -1)


def attend_span(
    query: Tensor, keys: Tensor, values: Tensor, span: PrefillSpan, groups: int
) -> Tensor:
    """Return the causal attention of a span over its row, [count, heads · head_dim]."""
    count, heads, dim = query.shape
    length = round_up(span.start + count, KEYS)
    row = slice(span.row * groups, (span.row + 1) * groups)
    query = query.view(count, groups, heads // groups, dim).permute(1, 2, 0, 3)
    grouped = query.reshape(groups, -1, dim)
    scores = torch.bmm(pad_queries(grouped), keys[row, :, :length])
    own = scores[:, : grouped.shape[1]].view(groups, -1, count, length)
    own[..., span.start :].add_(torch.full((count, length - span.start), -math.inf).triu_(1))
    mixed = mix(scores.softmax(-1), values[row, :length], torch.bmm)[:, : grouped.shape[1]]
    return mixed.reshape(heads, count, dim).transpose(0, 1).reshape(count, heads * dim)


def mix(
    shares: Matrices, values: Matrices, multiply: Callable[[Matrices, Matrices], Matrices]
) -> Matrices:
    """Return ``shares · values``, [B, M, head_dim], of ``shares`` [B, M, positions]."""
    mixed = multiply(shares[:, :, :KEY_TILE], values[:, :KEY_TILE])
    for start in range(KEY_TILE, values.shape[1], KEY_TILE):
        tile = slice(start, start + KEY_TILE)
        mixed += multiply(shares[:, :, tile], values[:, tile])
    return mixed


def multiply_in_numpy(queries: FloatArray, others: FloatArray) -> FloatArray:
    """Return the products of few queries, [B, M, K], with [B, K, N], by numpy's library."""
    product: FloatArray = np.matmul(queries, others)
    return product


def multiply_in_torch(queries: FloatArray, others: FloatArray) -> FloatArray:
    """Return the same by torch's library, with the kernel that multiplies spans of prefill."""
    product = torch.bmm(pad_queries(torch.from_numpy(queries)), torch.from_numpy(others))
    rounded: FloatArray = product[:, : queries.shape[1]].numpy()
    return rounded


@cache
def numpy_scores_as_torch(queries: int, dim: int, context: int) -> bool:
    """Return whether both libraries give the same bits for queries times keys, [dim, length], of
    every length up to ``context``.
    """
    # both add up in the order of the dimensions or they do not, whatever the numbers
    draw = np.random.default_rng(0).standard_normal
    grouped, keys = draw((2, queries, dim), np.float32), draw((2, dim, context), np.float32)
    lengths = {*range(KEYS, min(context, MOST_KEYS_TRIED), KEYS), context}
    lengths |= {1 << power for power in range(MOST_KEYS_TRIED.bit_length(), context.bit_length())}
    return all(_round_alike(grouped, keys[:, :, :length]) for length in lengths)


@cache
def numpy_mixes_as_torch(queries: int, dim: int) -> bool:
    """Return whether both libraries give the same bits for every length of a tile of values."""
    draw = np.random.default_rng(0).standard_normal
    shares = draw((3, queries, KEY_TILE), np.float32)
    values = draw((3, 2 * KEY_TILE, dim), np.float32)
    lengths = range(KEYS, KEY_TILE + 1, KEYS)
    return all(_round_alike(shares[:, :, :length], values[:, :length]) for length in lengths)


def _round_alike(left: FloatArray, right: FloatArray) -> bool:
    return np.array_equal(multiply_in_numpy(left, right), multiply_in_torch(left, right))


def pad_queries(grouped: Tensor) -> Tensor:
    """Add query rows of zeros to each matrix up to a multiple of ``QUERY_ROWS``."""
    missing = -grouped.shape[1] % QUERY_ROWS
    return F.pad(grouped, (0, 0, 0, missing)) if missing else grouped


def round_up(count: Count, step: int) -> Count:
    """Return the next multiple of ``step``, of a number or of each in a tensor."""
    return -(-count // step) * step


def decode_blocks(lengths: NDArray[np.int64]) -> tuple[DecodeBlock, ...]:
    """Cut decoding rows, of ``lengths`` int64 [rows], into blocks of ``BLOCK_ROWS``, if it pays.

    In one block all rows are padded to the longest, so one long row slows down all the others; each
    further block costs a few calls.
    """
    count = len(lengths)
    if not count:
        return ()
    whole = DecodeBlock(0, count, int(lengths.max()))
    if count <= BLOCK_ROWS:
        return (whole,)
    ends = [min(begin + BLOCK_ROWS, count) for begin in range(0, count, BLOCK_ROWS)]
    blocks = tuple(
        DecodeBlock(begin, end, int(lengths[begin:end].max()))
        for begin, end in zip(range(0, count, BLOCK_ROWS), ends, strict=True)
    )
    padded = sum((end - begin) * longest for begin, end, longest in blocks)
    return blocks if padded < MAX_PADDED_SHARE * count * whole.longest else (whole,)
