"""The radix tree: longest prefixes, exact contents, eviction."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from runners.engines.embedded.attention import KvSpan, KvStore
from runners.engines.embedded.prefix_cache import PrefixCache
from runners.engines.embedded.weights import ModelConfig
from runners.records.graph import common_prefix_length

CAPACITY = 24
CONFIG = ModelConfig(
    model_type="qwen3_moe", vocab_size=10, hidden_size=8, layers=2, heads=2, kv_heads=2,
    head_dim=3, intermediate_size=4, experts=4, experts_per_token=2, moe_intermediate_size=4,
    norm_topk_prob=True, moe_layers=(True, True), rms_norm_eps=1e-6, rope_theta=1e4,
    attention_bias=False, tied_embeddings=True, max_position=CAPACITY, eos_token_ids=(),
)  # fmt: skip

sequences = st.lists(st.integers(0, 2), min_size=1, max_size=CAPACITY)


class Bench:
    """A cache with one scratch row to write from and one to read into."""

    def __init__(self) -> None:
        self.cache = PrefixCache()
        self.kv = KvStore(CONFIG, 2, CAPACITY)
        self.routing = np.zeros((CAPACITY, 2, 2), dtype=np.int16)

    def insert(self, ids: list[int]) -> None:
        for part in self.kv.span(0, 0, CAPACITY):
            part.zero_()
        self.kv.span(0, 0, len(ids)).copy_(
            KvSpan(marks(ids)[None, None, None, :], -marks(ids)[None, None, :, None])
        )
        self.routing[: len(ids)] = marks(ids)[:, None, None].numpy() % 1000
        self.cache.insert(array(ids), self.kv, 0, self.routing)

    def restore(self, ids: list[int]) -> int:
        for part in self.kv.span(1, 0, CAPACITY):
            part.fill_(-1)
        self.routing[:] = -1
        return self.cache.restore(array(ids), self.kv, 1, self.routing)


def array(ids: list[int]) -> NDArray[np.int32]:
    return np.asarray(ids, dtype=np.int32)


def marks(ids: list[int]) -> torch.Tensor:
    """Compute a number per position that depends on all tokens up to it, as keys and values do."""
    value, found = 7, []
    for token in ids:
        value = (value * 31 + token + 1) % 99_991
        found.append(float(value))
    return torch.tensor(found)


@settings(max_examples=50, deadline=None)
@given(st.lists(sequences, max_size=12), sequences)
def test_a_prefix_is_found_and_restored_exactly(stored: list[list[int]], asked: list[int]) -> None:
    bench = Bench()
    for ids in stored:
        bench.insert(ids)
    longest = max((common_prefix_length(array(ids), array(asked)) for ids in stored), default=0)
    assert bench.cache.match(array(asked)) == longest
    assert bench.restore(asked) == longest
    restored = bench.kv.span(1, 0, CAPACITY)
    wanted = marks(asked)[:longest].expand(2, 2, 3, longest)
    found, rest = restored.part(0, longest), restored.part(longest)
    assert torch.equal(found.keys, wanted)
    assert torch.equal(found.values, -wanted.transpose(2, 3))
    assert all((part == -1).all() for part in rest)
    assert (bench.routing[:longest, 1, 1] == marks(asked)[:longest].numpy() % 1000).all()
    assert (bench.routing[longest:] == -1).all()


@settings(max_examples=40, deadline=None)
@given(st.lists(sequences, min_size=1, max_size=12))
def test_shared_tokens_are_stored_once(stored: list[list[int]]) -> None:
    bench = Bench()
    for ids in stored:
        bench.insert(ids)
    prefixes = {tuple(ids[:size]) for ids in stored for size in range(1, len(ids) + 1)}
    assert bench.cache.tokens == len(prefixes)


@settings(max_examples=40, deadline=None)
@given(st.lists(sequences, min_size=1, max_size=12), st.integers(0, 60))
def test_eviction_obeys_the_limit_and_keeps_prefixes_whole(
    stored: list[list[int]], limit: int
) -> None:
    bench = Bench()
    for ids in stored:
        bench.insert(ids)
    bench.cache.shrink(limit)
    assert bench.cache.tokens <= limit
    for ids in stored:
        held = bench.restore(ids)
        restored = bench.kv.span(1, 0, held).keys[0, 0, 0]
        assert torch.equal(restored, marks(ids)[:held])


def test_the_least_recently_used_sequence_is_evicted_first() -> None:
    bench = Bench()
    for first in (0, 1, 2):
        bench.insert([first] * 5)
    bench.restore([0] * 5)
    bench.cache.shrink(14)
    assert [bench.cache.match(array([first] * 5)) for first in (0, 1, 2)] == [5, 0, 5]


def test_nothing_is_found_after_clear() -> None:
    bench = Bench()
    bench.insert([1, 2, 3])
    bench.cache.clear()
    assert bench.cache.match(array([1, 2, 3])) == 0
    assert bench.cache.tokens == 0
