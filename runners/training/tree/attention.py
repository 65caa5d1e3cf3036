"""Attention of a prefix tree's nodes to their own paths, block by block.

A row of nodes in depth-first order is cut into blocks of queries. All that a block attends to
before its first node lies on that node's path, so its keys are that path and the block itself: with
blocks of 128, some ``n · (1 + depth / 128)`` keys are gathered for n nodes, however many samples
share them. Nothing of n² numbers exists, and nothing but the output and a number per query and head
is kept for the backward pass (as in FlashAttention, Dao et al. 2022, arXiv 2205.14135).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from runners.training.tree.packing import Nodes, Pack

BLOCK, LONG_BLOCK = 128, 512
"""Queries of a block, and those where paths are longer than ``LONG_PATH``: its keys are gathered
once per block, so a longer path wants a longer block."""
LONG_PATH = 8192


class TreeAttention:
    """The keys of each node in one pack of n nodes: its own path."""

    def __init__(self, pack: Pack, device: torch.device) -> None:
        """Move what attention needs to a device."""
        self.pack = pack
        self.depths = torch.from_numpy(pack.depths).to(device)
        """int64 [n]: position of each node."""
        self.ends = torch.from_numpy(pack.ends).to(device)
        """int64 [n]: see ``Pack``."""
        self._blocks: dict[int | None, list[AttentionBlock]] = {}
        self.masks: dict[int | None, Any] = {}
        """FlexAttention's masks by window, made when a layer first needs one."""

    def find_blocks(self, window: int | None) -> list[AttentionBlock]:
        """Return the blocks of a layer that attends to everything, or to the last ``window``
        tokens of a path only.
        """
        if window not in self._blocks:
            self._blocks[window] = list(self._cut(window))
        return self._blocks[window]

    def _cut(self, window: int | None) -> Iterator[AttentionBlock]:
        pack, device = self.pack, self.depths.device
        nodes = len(pack.depths)
        size = BLOCK if int(pack.depths.max()) < LONG_PATH else LONG_BLOCK
        for start in range(0, nodes, size):
            stop = min(start + size, nodes)
            path = find_path(pack, start)
            if window is not None:  # measured in tokens of the path, not in nodes of the row
                path = path[max(0, int(pack.depths[start:stop].min()) - window + 1) :]
            # Subtrees of ancestors end later: those whose last node is in or after the block come
            # first, and every query of the block attends to them.
            whole = int((pack.ends[path] >= stop).sum()) if window is None else 0
            keys = torch.from_numpy(np.concatenate([path, np.arange(start, stop)])).to(device)
            visible = self._find_visible(start, stop, keys[whole:], window)
            yield AttentionBlock(start, stop, keys, whole, ~visible)

    def _find_visible(self, start: int, stop: int, keys: Tensor, window: int | None) -> Tensor:
        """Return which keys the queries of a block attend to, bool [q, k]."""
        queries = torch.arange(start, stop, device=keys.device)[:, None]
        visible = (keys <= queries) & (queries < self.ends[keys])
        if window is not None:
            visible &= self.depths[start:stop, None] - self.depths[keys] < window
        return visible


@dataclass(frozen=True, slots=True)
class AttentionBlock:
    """Queries of consecutive nodes and the keys that any of them attends to."""

    start: int
    stop: int
    keys: Tensor
    """int64 [k], nodes."""
    whole: int
    """All queries attend to so many of the first keys."""
    hidden: Tensor
    """bool [q, k − whole]: keys after those that a query does not attend to."""

    def make_mask(self, groups: int, dtype: torch.dtype) -> Tensor:
        """Return what is added to scores: 0 or −∞, [1, 1, q · groups, k].

        Not kept: of a deep tree these are many numbers, of which ``hidden`` has the few that count.
        """
        queries = self.stop - self.start
        mask = torch.zeros(queries, groups, len(self.keys), dtype=dtype, device=self.keys.device)
        mask[..., self.whole :].masked_fill_(self.hidden[:, None], -torch.inf)
        return mask.view(1, 1, queries * groups, -1)


def find_path(pack: Pack, node: int) -> Nodes:
    """Return the nodes before a node on its path, int64 [its depth]."""
    sample = int(np.searchsorted(pack.added, node, side="right")) - 1
    return pack.paths[sample][: pack.depths[node]]


def attend_by_blocks(
    query: Tensor, key: Tensor, value: Tensor, tree: TreeAttention, window: int | None, scale: float
) -> Tensor:
    """Return ``softmax(q · kᵀ · scale) · v`` of every node over its path, [heads, n, E], on a CPU.

    ``query``: [heads, n, D]; ``key`` [heads / groups, n, D] and ``value`` [heads / groups, n, E],
    of which each serves ``groups`` heads. Deterministic: gradients of a key that several blocks
    attend to are added in their order.
    """
    width, wanted = query.shape[-1], value.shape[-1]
    missing = wanted - width  # the kernel has one width: zeros change no product
    if missing > 0:
        query, key = (F.pad(each, (0, missing)) for each in (query, key))
    elif missing < 0:
        value = F.pad(value, (0, -missing))
    found: Tensor = _BlockAttention.apply(query, key, value, tree, window, scale)  # type: ignore[no-untyped-call]
    return found[..., :wanted]


_attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_attend_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class _BlockAttention(torch.autograd.Function):
    """Torch's kernels for a CPU, block by block; scores are computed again in the backward pass.

    Heads that share a key are rows of one head, so that a block of queries is one piece of memory:
    [heads / groups, n · groups, width]. Keys and values lie by node, [n, heads / groups, width], so
    that those of a node are.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        tree: TreeAttention,
        window: int | None,
        scale: float,
    ) -> Tensor:
        groups = len(query) // len(key)
        queries = _stack(query, groups)
        keys, values = (each.transpose(0, 1).contiguous() for each in (key, value))
        output = torch.empty_like(queries)
        totals = []
        for block in tree.find_blocks(window):
            part = slice(block.start * groups, block.stop * groups)
            output[:, part], total = _attend(
                queries[None, :, part], _gather(keys, block), _gather(values, block),
                attn_mask=block.make_mask(groups, query.dtype), scale=scale,
            )  # fmt: skip
            totals.append(total)
        ctx.save_for_backward(queries, keys, values, output, *totals)
        ctx.tree, ctx.window, ctx.scale, ctx.groups = tree, window, scale, groups
        return _unstack(output, groups)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, values, output, *totals = ctx.saved_tensors
        groups = ctx.groups
        given = _stack(gradients[0], groups)
        of_queries = torch.empty_like(queries)
        # In float32 also where numbers have 16 bits: a key is in the sums of many blocks.
        wide = torch.promote_types(keys.dtype, torch.float32)
        of_keys, of_values = (torch.zeros_like(each, dtype=wide) for each in (keys, values))
        for block, total in zip(ctx.tree.find_blocks(ctx.window), totals, strict=True):
            part = slice(block.start * groups, block.stop * groups)
            of_queries[:, part], *others = _attend_backward(
                given[None, :, part], queries[None, :, part],
                _gather(keys, block), _gather(values, block), output[None, :, part], total,
                0.0, False, attn_mask=block.make_mask(groups, queries.dtype), scale=ctx.scale,
            )  # fmt: skip
            for whole, own in zip((of_keys, of_values), others, strict=True):
                # A key is once in a block: to add and to copy back is quicker than index_add_.
                total_so_far = whole.index_select(0, block.keys)
                whole.index_copy_(0, block.keys, total_so_far + own[0].transpose(0, 1).to(wide))
        sums = (each.transpose(0, 1).to(keys.dtype) for each in (of_keys, of_values))
        return _unstack(of_queries, groups), *sums, None, None, None


def _stack(query: Tensor, groups: int) -> Tensor:
    """Return [heads, n, width] as [heads / groups, n · groups, width], contiguous."""
    heads, nodes, width = query.shape
    stacked = query.reshape(heads // groups, groups, nodes, width).transpose(1, 2)
    return stacked.reshape(heads // groups, nodes * groups, width).contiguous()


def _unstack(stacked: Tensor, groups: int) -> Tensor:
    """Undo ``_stack``."""
    key_heads, rows, width = stacked.shape
    parts = stacked.view(key_heads, rows // groups, groups, width).transpose(1, 2)
    return parts.reshape(key_heads * groups, rows // groups, width)


def _gather(rows: Tensor, block: AttentionBlock) -> Tensor:
    """Return a block's keys or values, [1, heads / groups, k, width]."""
    return rows.index_select(0, block.keys).transpose(0, 1)[None]
