"""The two libraries of decode attention round alike, and the store costs what is used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
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
    query, lengths = fill(kv, heads, dim), [1, 130, 128, 517, 720]
    ours = run(attend, kv, query, lengths)
    attend.numpy_keys = attend.numpy_values = False
    assert np.array_equal(ours, run(attend, kv, query, lengths))


def test_a_row_attends_to_its_own_positions_alone(tmp_path: Path) -> None:
    config, lengths = config_of(tmp_path, 4, 2, 32), [1, 20, 40, 517, 720]
    kv, attend = KvStore(config, 5, CONTEXT), DecodeAttention(config, CONTEXT)
    query = fill(kv, 4, 32)
    wanted = run(attend, kv, query, lengths)
    for row, length in enumerate(lengths):
        for part in kv.span(row, length, CONTEXT):
            part.fill_(1e3)
    assert np.array_equal(wanted, run(attend, kv, query, lengths))


def fill(kv: KvStore, heads: int, dim: int) -> Array:
    """Fill five rows of a store with random numbers; return as many queries."""
    draw = np.random.default_rng(7).standard_normal
    for part in (kv.keys, kv.values):
        part.array[:] = draw(part.array.shape, np.float32)
    return draw((5, heads, dim), np.float32)


def run(attend: DecodeAttention, kv: KvStore, query: Array, lengths: list[int]) -> Array:
    """Attend in two blocks; return float32 [5, heads · head_dim]."""
    mixed = np.empty((5, query.shape[1] * query.shape[2]), np.float32)
    for begin, end in ((0, 3), (3, 5)):
        block = DecodeBlock(begin, end, max(lengths[begin:end]))
        attend(query, kv, 0, lengths, block, mixed)
    return mixed


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
    assert kv.keys.array.nbytes + kv.values.array.nbytes == 2**30
    for part in kv.span(3, 0, 100):
        part.fill_(1.0)
    assert process.memory_info().rss - before < 2**27
    for part in kv.span(3, 0, 101):
        assert np.count_nonzero(part.numpy()) == 2 * 2 * 100 * 32
