"""Attention of a prefix tree on a GPU: FlexAttention's block mask (Dong et al. 2024, arXiv
2412.05496), in one kernel.

The mask is built from the order of the nodes, not from n² pairs.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from runners.training.tree.attention import TreeAttention, find_path
from runners.training.tree.packing import Pack

BLOCK = 128
"""FlexAttention's own; a multiple of its kernels' tiles."""


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
    counts, indices = find_key_blocks(tree.pack, window, whole=False)
    whole_counts, whole_indices = find_key_blocks(tree.pack, window, whole=True)
    nodes, device = len(tree.pack.depths), tree.depths.device
    # A kernel reads whole blocks: what is after the last node is visible to no real query.
    ends, depths = (_pad(each, len(counts) * BLOCK) for each in (tree.ends, tree.depths))

    def attends(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen: Tensor = (key <= query) & (query < ends[key])
        if window is not None:
            seen = seen & (depths[query] - depths[key] < window)
        return seen

    def move(array: NDArray[np.int32]) -> Tensor:
        return torch.from_numpy(array)[None, None].to(device)

    return BlockMask.from_kv_blocks(
        move(counts), move(indices), move(whole_counts), move(whole_indices),
        BLOCK_SIZE=BLOCK, mask_mod=attends, seq_lengths=(nodes, nodes),
    )  # fmt: skip


def find_key_blocks(
    pack: Pack, window: int | None, *, whole: bool
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the blocks of keys for each block of queries: how many, int32 [blocks], and which,
    int32 [blocks, blocks], the rest of a row being 0.

    ``whole``: those that every query attends to entirely; else those that need the mask. With a
    window none is taken for whole.
    """
    nodes = len(pack.depths)
    number = -(-nodes // BLOCK)
    counts, indices = np.zeros(number, np.int32), np.zeros((number, number), np.int32)
    least = np.minimum.reduceat(pack.ends, np.arange(0, nodes, BLOCK))
    for row in range(number):
        start, stop = row * BLOCK, min((row + 1) * BLOCK, nodes)
        before = np.unique(find_path(pack, start) // BLOCK)
        before = before[before < row]
        is_whole = (least[before] >= stop) & (window is None)
        found = before[is_whole] if whole else [*before[~is_whole], row]
        counts[row], indices[row, : len(found)] = len(found), found
    return counts, indices


def _pad(values: Tensor, length: int) -> Tensor:
    return torch.nn.functional.pad(values, (0, length - len(values)))
