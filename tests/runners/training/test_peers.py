"""The shares of processes that train together, and what they make of a step's figures."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from runners.training.merge import COMMON, JOINED, OPTIONAL, SUMMED
from runners.training.peers import TrainingPeers
from runners.training.routing import step
from runners.training.sample import Sample
from runners.training.totals import StepTotals


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


@given(
    st.lists(
        st.lists(st.integers(0, 2), min_size=2, max_size=9),
        min_size=1,
        max_size=16,
        unique_by=tuple,
    ),
    st.integers(2, 5),
    st.data(),
)
def test_nodes_that_several_processes_run_count_once(
    texts: list[list[int]], count: int, data: st.DataObject
) -> None:
    samples = [written(text) for text in texts]
    chosen = data.draw(st.lists(st.sampled_from(samples), unique_by=id, min_size=1))
    counted, ranks = 0, [Rank(rank, count) for rank in range(count)]
    for rank in ranks:
        rank.share(samples)
        own = [sample for sample in chosen if rank.owns(sample)]
        counted += count_nodes(own) - rank.count_repeated(chosen)
    assert counted == count_nodes(chosen)


def test_rows_of_several_processes_repeat_nothing() -> None:
    samples = [written([1, 2, 3, last]) for last in range(4)]
    for number in range(2):
        rank = Rank(number, 2)
        rank.share(samples, tree=False)
        assert rank.count_repeated(samples) == 0


def written(text: list[int]) -> Sample:
    """Return a sample of these tokens, which trains all but the first."""
    tokens = np.array(text, np.int32)
    trained = np.arange(len(text)) > 0
    return Sample("r", tokens, trained, np.zeros(len(text), np.float32), 1.0)


def count_nodes(samples: list[Sample]) -> int:
    return len({tuple(each.tokens[:n]) for each in samples for n in range(1, len(each.tokens))})


def test_one_process_owns_everything_and_shares_nothing() -> None:
    alone = TrainingPeers()
    samples = [sample_of(0, 3), sample_of(1, 4)]
    alone.share(samples)
    assert alone.count_repeated(samples) == 0
    assert all(alone.owns(sample) for sample in samples)
    assert alone.add([1.5, 2.0]) == [1.5, 2.0]
    assert alone.join_texts(["a\nb", "ü"]) == ["a\nb", "ü"]
    assert alone.any(True)
    assert not alone.any(False)


def test_every_figure_of_a_step_is_merged_or_common() -> None:
    """A new one must be in one of the lists, or ranks would report their share of it."""
    names = [field.name for field in fields(StepTotals)]
    assert sorted(names) == sorted((*SUMMED, *OPTIONAL, *COMMON, *JOINED))
    admitted = {"tokens", "captured", "refused", "refused_at_once", "gate_norm", "other_most"}
    assert set(vars(step._Totals())) == {*step._SUMMED, *admitted}
