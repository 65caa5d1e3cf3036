"""The shares of processes that train together, and what they make of a step's figures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from runners.training.peers import TrainingPeers
from runners.training.sample import Sample


class Rank(TrainingPeers):
    """One of several, without the others."""

    def __init__(self, rank: int, count: int) -> None:
        super().__init__()
        self.rank, self.count = rank, count


def sample_of(opening: int, length: int) -> Sample:
    own = np.random.default_rng(length).integers(0, 1000, length)
    tokens = np.concatenate([np.full(64, opening), own]).astype(np.int32)
    mask = np.arange(len(tokens)) >= 64
    return Sample("r", tokens, mask, np.zeros(len(tokens), np.float32), 1.0)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 400)), max_size=24),
    st.integers(2, 8),
)
def test_every_sample_has_one_owner(sizes: list[tuple[int, int]], count: int) -> None:
    samples = [sample_of(*size) for size in sizes]
    ranks = [Rank(rank, count) for rank in range(count)]
    for rank in ranks:
        rank.share(samples)
    for sample in samples:
        assert sum(rank.owns(sample) for rank in ranks) == 1
        changed = replace(sample, advantage=0.0, old_logprobs=sample.logprobs)
        assert [rank.owns(changed) for rank in ranks] == [rank.owns(sample) for rank in ranks]


@given(st.lists(st.integers(1, 400), min_size=8, max_size=64))
def test_shares_have_about_as_many_nodes_or_tokens(lengths: list[int]) -> None:
    samples = [sample_of(number, length) for number, length in enumerate(lengths)]
    for tree in (True, False):
        tokens = []
        for number in range(2):
            rank = Rank(number, 2)
            rank.share([*samples, *samples], tree=tree)  # a sample that is there twice: no nodes
            tokens.append(sum(len(sample.tokens) for sample in samples if rank.owns(sample)))
        assert abs(tokens[0] - tokens[1]) <= 2 * max(len(sample.tokens) for sample in samples)


def test_samples_that_begin_alike_stay_together() -> None:
    samples = [sample_of(opening, 50) for opening in (0, 1, 0, 1, 0, 1)]
    rank = Rank(0, 2)
    rank.share(samples)
    assert [rank.owns(sample) for sample in samples] == [True, False] * 3


def test_one_process_owns_everything_and_shares_nothing() -> None:
    alone = TrainingPeers()
    samples = [sample_of(0, 3), sample_of(1, 4)]
    alone.share(samples)
    assert all(alone.owns(sample) for sample in samples)
    assert alone.add([1.5, 2.0]) == [1.5, 2.0]
    assert alone.join_texts(["a\nb", "ü"]) == ["a\nb", "ü"]
    assert alone.any(True)
    assert not alone.any(False)
