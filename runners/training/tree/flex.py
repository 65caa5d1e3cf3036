"""Attention of a prefix tree on a GPU: FlexAttention's block mask (Dong et al. 2024, arXiv
2412.05496), in one kernel.

The mask is built from the order of the nodes, not from n² pairs. Rows are filled up to whole
blocks: the kernel for fewer than 128 queries does not exist for every shape, and each further kind
of length would be one more kernel to compile.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from runners.training.tree.attention import TreeAttention, find_path
from runners.training.tree.packing import Nodes, Pack

BLOCK = 128
"""FlexAttention's own; a multiple of its kernels' tiles."""
MOST_KERNELS = 64
"""Kernels that may be compiled: one per type, shape of heads, window, with gradients or without.
Beyond torch's own limit of 8 all n² scores would be computed, and nothing would say so.
"""


def attend_in_one_kernel(
    query: Tensor, key: Tensor, value: Tensor, tree: TreeAttention, window: int | None, scale: float
) -> Tensor:
    """Return the mixed values, float [1, T, heads, E].

    ``query`` [1, heads, T, D]; ``key`` [1, heads / groups, T, D]; ``value`` likewise.
    """
    nodes = query.shape[2]
    missing = -nodes % BLOCK
    filled = [F.pad(each, (0, 0, 0, missing)) for each in (query, key, value)]
    mixed: Tensor = _compiled()(
        *filled,
        block_mask=find_block_mask(tree, window),
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return mixed[:, :, :nodes].transpose(1, 2).contiguous()


@cache
def _compiled() -> Any:
    return compile_attention()


def compile_attention(backend: Any = "inductor") -> Any:
    """Return FlexAttention as a kernel, or an error: never the form that computes n² scores.

    The kernel of the second length is the one of all others.
    """
    settings: Any = torch._dynamo.config
    settings.recompile_limit = max(settings.recompile_limit, MOST_KERNELS)
    return torch.compile(flex_attention, fullgraph=True, backend=backend)


def find_block_mask(tree: TreeAttention, window: int | None) -> BlockMask:
    """Return the mask of a layer, made once for all layers alike."""
    if window not in tree.masks:
        tree.masks[window] = make_block_mask(tree, window)
    mask: BlockMask = tree.masks[window]
    return mask


def make_block_mask(tree: TreeAttention, window: int | None) -> BlockMask:
    """Return the mask of one row of nodes for a layer that attends to everything, or to the last
    ``window`` tokens of a path.
    """
    partial, whole = find_key_blocks(tree.pack, window)
    length, device = len(partial.counts) * BLOCK, tree.depths.device
    # What fills up the last block comes after every real query, and sees itself.
    ends = _pad(tree.ends, length, length).int()  # as the kernel's numbers of queries and keys
    depths = _pad(tree.depths, length, 0).int()

    def attends(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen: Tensor = (key <= query) & (query < ends[key])
        if window is not None:
            seen = seen & (depths[query] - depths[key] < window)
        return seen

    def move(array: NDArray[np.int32]) -> Tensor:
        return torch.from_numpy(array)[None, None].to(device)

    return BlockMask.from_kv_blocks(
        move(partial.counts), move(partial.indices), move(whole.counts), move(whole.indices),
        BLOCK_SIZE=BLOCK, mask_mod=attends, seq_lengths=(length, length),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class KeyBlocks:
    """Blocks of keys for each block of queries."""

    counts: NDArray[np.int32]
    """int32 [blocks]: how many."""
    indices: NDArray[np.int32]
    """int32 [blocks, blocks]: which, ascending; the rest of a row is 0."""


def find_key_blocks(pack: Pack, window: int | None) -> tuple[KeyBlocks, KeyBlocks]:
    """Return the blocks of keys that need the mask, and those that all of a block's queries attend
    to entirely, of which a window has none.
    """
    nodes = len(pack.depths)
    number = -(-nodes // BLOCK)
    partial, whole = (
        KeyBlocks(np.zeros(number, np.int32), np.zeros((number, number), np.int32))
        for _ in range(2)
    )
    least = np.minimum.reduceat(pack.ends, np.arange(0, nodes, BLOCK))
    for row in range(number):
        start, stop = row * BLOCK, min((row + 1) * BLOCK, nodes)
        path = find_path(pack, start)
        if window is not None:  # measured in tokens of the path, not in nodes of the row
            path = path[max(0, int(pack.depths[start:stop].min()) - window + 1) :]
        before = _name_blocks(path)
        before = before[before < row]
        is_whole = (least[before] >= stop) & (window is None)
        others = np.append(before[~is_whole], row)
        for blocks, found in ((partial, others), (whole, before[is_whole])):
            blocks.counts[row], blocks.indices[row, : len(found)] = len(found), found
    return partial, whole


def _name_blocks(path: Nodes) -> Nodes:
    """Return the blocks of a path's nodes, each once. It ascends, so that nothing is sorted: for
    each block of a long row this would be what the GPU waits for.
    """
    blocks = path // BLOCK
    return blocks[np.diff(blocks, prepend=-1) > 0]


def _pad(values: Tensor, length: int, filling: int) -> Tensor:
    return F.pad(values, (0, length - len(values)), value=filling)
