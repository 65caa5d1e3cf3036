"""Attention of a prefix tree: block by block, and FlexAttention's mask, against all pairs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounter
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention

from runners.training.sample import Sample
from runners.training.tree.attention import TreeAttention, attend_by_blocks
from runners.training.tree.flex import (
    BLOCK,
    attend_in_one_kernel,
    compile_attention,
    find_key_blocks,
    make_block_mask,
)
from runners.training.tree.packing import Pack, pack_samples
from tests.fakes.sample_trees import sample_trees

CPU = torch.device("cpu")
TREES = sample_trees(most=9, longest=90)
WINDOWS = st.none() | st.integers(1, 40)


def find_visible(pack: Pack, window: int | None) -> torch.Tensor:
    """Which nodes each attends to, by the paths of the samples: bool [n, n]."""
    size = len(pack.depths)
    visible = torch.zeros(size, size, dtype=torch.bool)
    for path in pack.paths:
        for depth, node in enumerate(path.tolist()):
            first = 0 if window is None else max(0, depth - window + 1)
            visible[node, path[first : depth + 1]] = True
    return visible


@settings(max_examples=15, deadline=None)
@given(TREES, WINDOWS, st.sampled_from([(4, 2, 8, 8), (2, 2, 6, 4), (3, 1, 4, 6)]))
def test_blocks_attend_as_all_pairs_do_and_have_the_same_gradients(
    samples: list[Sample], window: int | None, shape: tuple[int, int, int, int]
) -> None:
    (pack,) = pack_samples(samples, 10_000)
    heads, key_heads, width, of_value = shape
    generator = torch.Generator().manual_seed(0)
    nodes = len(pack.depths)
    sizes = [(heads, nodes, width), (key_heads, nodes, width), (key_heads, nodes, of_value)]
    inputs = [torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes]
    results = []
    for by_blocks in (True, False):
        query, key, value = (each.clone().requires_grad_() for each in inputs)
        if by_blocks:
            found = attend_by_blocks(query, key, value, TreeAttention(pack, CPU), window, 0.3)
        else:
            keys, values = (each.repeat_interleave(heads // key_heads, 0) for each in (key, value))
            mask = find_visible(pack, window)
            found = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=0.3)
        (found * torch.arange(1, found.numel() + 1).view(found.shape)).sum().backward()  # type: ignore[no-untyped-call]
        results.append([found, query.grad, key.grad, value.grad])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@settings(max_examples=15, deadline=None)
@given(TREES, WINDOWS)
def test_flex_attention_s_mask_is_that_of_the_paths(
    samples: list[Sample], window: int | None
) -> None:
    """A few nodes fill no block; one path of many has blocks of which every key is visible."""
    long = make_path(400)
    for each in (samples, [long, replace(long, tokens=np.roll(long.tokens, 1))]):
        (pack,) = pack_samples(each, 10_000)
        check_flex_mask(pack, window)


def check_flex_mask(pack: Pack, window: int | None) -> None:
    """Compare the mask as a kernel takes it: whole blocks of keys, and blocks with the mask."""
    mask = make_block_mask(TreeAttention(pack, CPU), window)
    nodes = len(pack.depths)
    assert mask.seq_lengths == (-(-nodes // BLOCK) * BLOCK,) * 2, "whole blocks"
    assert mask.full_kv_num_blocks is not None
    assert mask.full_kv_indices is not None
    found = torch.zeros(nodes, nodes, dtype=torch.bool)
    for row in range(-(-nodes // BLOCK)):
        queries = torch.arange(row * BLOCK, min((row + 1) * BLOCK, nodes))
        for counts, indices, masked in (
            (mask.kv_num_blocks, mask.kv_indices, True),
            (mask.full_kv_num_blocks, mask.full_kv_indices, False),
        ):
            for column in indices[0, 0, row, : int(counts[0, 0, row])].tolist():
                keys = torch.arange(column * BLOCK, min((column + 1) * BLOCK, nodes))
                pair = queries[:, None], keys[None]
                zero = torch.zeros((), dtype=torch.int64)
                seen = mask.mask_mod(zero, zero, *pair) if masked else torch.ones(1, 1).bool()
                assert not found[pair].any(), "a block is listed once"
                found[pair] = seen.expand(len(queries), len(keys))
    assert torch.equal(found, find_visible(pack, window))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("window", [None, 30])
@pytest.mark.parametrize("length", [7, 128, 300])
def test_one_kernel_attends_as_blocks_do(
    length: int, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the kernel is given, with FlexAttention's plain form in its place; gradients need a
    GPU (``test_gpu.py``).
    """
    monkeypatch.setattr("runners.training.tree.flex._compiled", lambda: flex_attention)
    first = make_path(length)
    other = replace(first, tokens=np.where(first.tokens > length // 2, 1, first.tokens))
    (pack,) = pack_samples([first, other], 10_000)
    generator = torch.Generator().manual_seed(0)
    nodes = len(pack.depths)
    sizes = [(4, nodes, 16), (2, nodes, 16), (2, nodes, 16)]
    query, key, value = (torch.randn(size, generator=generator).double() for size in sizes)
    tree = TreeAttention(pack, CPU)
    mixed = attend_in_one_kernel(query[None], key[None], value[None], tree, window, 0.3)
    expected = attend_by_blocks(query, key, value, tree, window, 0.3)
    torch.testing.assert_close(mixed[0].transpose(0, 1), expected, rtol=1e-6, atol=1e-6)


def test_lengths_and_trees_do_not_multiply_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel takes seconds to compile, and too many of them are an error."""
    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = compile_attention(counter)
    monkeypatch.setattr("runners.training.tree.flex._compiled", lambda: compiled)
    for length in (100, 300, 500, 200, 260, 650):
        first = make_path(length)
        other = replace(first, tokens=np.where(first.tokens > length // 2, 1, first.tokens))
        for samples in ([first], [first, other]):
            (pack,) = pack_samples(samples, 10_000)
            query, key = (torch.zeros(1, heads, len(pack.depths), 16) for heads in (4, 2))
            attend_in_one_kernel(query, key, key, TreeAttention(pack, CPU), None, 0.3)
    assert counter.frame_count == 2  # of one length, and of any


def test_blocks_before_a_window_are_not_read() -> None:
    (pack,) = pack_samples([make_path(1000)], 10_000)
    partial, whole = find_key_blocks(pack, BLOCK)
    assert whole.counts.max() == 0
    assert partial.counts.tolist() == [1, *[2] * 7]


def make_path(length: int) -> Sample:
    """A sample whose last token is trained."""
    tokens = np.arange(length, dtype=np.int32)
    mask = tokens == length - 1
    return Sample("r", tokens, mask, np.zeros(length, np.float32), 1.0)


def test_a_long_path_has_long_blocks() -> None:
    for length, blocks in ((700, 6), (9000, 18)):
        (pack,) = pack_samples([make_path(length)], 10_000)
        assert len(TreeAttention(pack, CPU).find_blocks(None)) == blocks
