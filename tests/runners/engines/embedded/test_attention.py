"""The two libraries of decode attention round alike, and the store costs what is used."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from numpy.typing import NDArray

from runners.engines.embedded import attention
from runners.engines.embedded.attention import DecodeAttention, DecodeBlock, KvStore
from runners.engines.embedded.weights import ModelConfig, load_weights
from tests.fakes.tiny_model import write_tiny_model

CONTEXT = 720

Array = NDArray[np.float32]


def config_of(directory: Path, heads: int, kv_heads: int, dim: int) -> ModelConfig:
    return load_weights(
        write_tiny_model(
            directory, num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=dim
        )
    ).config


def test_keys_and_values_multiplied_by_numpy_or_by_torch_have_the_same_bits(tmp_path: Path) -> None:
    heads, dim = 4, 32
    config = config_of(tmp_path, heads, 2, dim)
    kv, attend = KvStore(config, 5, CONTEXT), DecodeAttention(config, CONTEXT)
    if not (attend.numpy_keys and attend.numpy_values):
        pytest.skip("numpy's library rounds otherwise on this machine, so it is not used")
    generator = torch.Generator().manual_seed(7)
    kv.keys.normal_(generator=generator)
    kv.values.normal_(generator=generator)
    query = torch.randn(5, heads, dim, generator=generator)
    lengths = torch.tensor([1, 130, 128, 517, 720])
    blocks = (DecodeBlock(0, 3, 130), DecodeBlock(3, 5, 720))
    mask = attend.mask(lengths, blocks)
    assert mask is not None
    keys, values = kv.keys[0], kv.values[0]
    for block in blocks:
        attend.numpy_keys = attend.numpy_values = True
        ours = attend(query, keys, values, mask, block)
        attend.numpy_keys = attend.numpy_values = False
        assert torch.equal(ours, attend(query, keys, values, mask, block))


def test_a_row_attends_to_its_own_positions_alone(tmp_path: Path) -> None:
    attend = DecodeAttention(config_of(tmp_path, 4, 2, 32), CONTEXT)
    mask = attend.mask(torch.tensor([1, 20, 40]), (DecodeBlock(0, 3, 40),))
    assert mask is not None
    expected = torch.full((3, 1, 48), -math.inf)
    for row, length in enumerate((1, 20, 40)):
        expected[row, :, :length] = 0
    assert torch.equal(mask, expected)


@pytest.fixture
def reversed_sums(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A numpy whose library adds up a product from its last term to its first."""
    matmul, probes = np.matmul, (attention.numpy_scores_as_torch, attention.numpy_mixes_as_torch)

    def reverse(left: Array, right: Array) -> Array:
        flipped = np.ascontiguousarray(left[..., ::-1]), np.ascontiguousarray(right[..., ::-1, :])
        product: Array = matmul(*flipped)
        return product

    for probe in probes:
        probe.cache_clear()
    monkeypatch.setattr(np, "matmul", reverse)
    yield
    for probe in probes:
        probe.cache_clear()


@pytest.mark.usefixtures("reversed_sums")
def test_a_numpy_that_rounds_otherwise_is_not_used(tmp_path: Path) -> None:
    attend = DecodeAttention(config_of(tmp_path, 4, 2, 32), CONTEXT)
    assert not attend.numpy_keys
    assert not attend.numpy_values


def test_a_store_takes_memory_only_where_it_is_written(tmp_path: Path) -> None:
    config, process = config_of(tmp_path, 4, 2, 32), psutil.Process()
    before = process.memory_info().rss
    kv = KvStore(config, 256, 4096)
    assert kv.keys.nbytes + kv.values.nbytes == 2**30
    for part in kv.span(3, 0, 100):
        part.fill_(1.0)
    assert process.memory_info().rss - before < 2**27
    for part in kv.span(3, 0, 101):
        assert np.count_nonzero(part.numpy()) == 2 * 2 * 100 * 32
