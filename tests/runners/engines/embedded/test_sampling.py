"""Sampling: distributions, logprobs, and independence from the rest of the batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runners.engines.embedded.sampling import BatchSampling, hash_uniform, sample

VOCABULARY = 12
EVERYTHING = 1 << 40


def draw(
    count: int,
    *,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = EVERYTHING,
    seed: int = 0,
) -> BatchSampling:
    """``count`` rows that differ only in their position."""
    return BatchSampling(
        temperature=np.full(count, temperature, dtype=np.float32),
        top_p=np.full(count, top_p, dtype=np.float32),
        top_k=np.full(count, top_k, dtype=np.int64),
        seed=np.full(count, seed, dtype=np.uint64),
        position=np.arange(count, dtype=np.int64),
    )


def logits(seed: int = 0, rows: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, VOCABULARY, generator=generator) * 2


def frequencies(
    settings_: BatchSampling, row: torch.Tensor
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    ids, _ = sample(row.expand(len(settings_.seed), -1), settings_)
    return np.bincount(ids, minlength=VOCABULARY) / len(ids)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_softmax_at_the_temperature(temperature: float) -> None:
    row = logits()
    found = frequencies(draw(40_000, temperature=temperature), row)
    wanted = (row[0] / temperature).softmax(-1).numpy()
    assert np.abs(found - wanted).max() < 0.012  # 4.8 standard deviations at worst


def test_top_k_samples_the_k_most_probable_in_proportion() -> None:
    row = logits(1)
    found = frequencies(draw(20_000, top_k=3), row)
    best = row[0].topk(3).indices.numpy()
    kept = row[0].softmax(-1).numpy()[best]
    assert found[best].sum() == pytest.approx(1.0)
    assert np.abs(found[best] - kept / kept.sum()).max() < 0.02


def test_top_p_samples_the_smallest_set_that_reaches_the_mass() -> None:
    row = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    ids, _ = sample(row.expand(4000, -1), draw(4000, top_p=0.7))
    assert set(ids.tolist()) == {0, 1}
    ids, _ = sample(row.expand(4000, -1), draw(4000, top_p=0.85))
    assert set(ids.tolist()) == {0, 1, 2}


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_logprobs_are_after_temperature_and_before_top_p_and_top_k(temperature: float) -> None:
    rows = logits(2, rows=50)
    ids, logprobs = sample(rows, draw(50, temperature=temperature, top_p=0.6, top_k=4))
    wanted = (rows / temperature).log_softmax(-1)[torch.arange(50), torch.from_numpy(ids)]
    assert np.allclose(logprobs, wanted.numpy(), atol=1e-6)


def test_temperature_zero_is_greedy_with_logprobs_of_temperature_one() -> None:
    rows = logits(3, rows=20)
    ids, logprobs = sample(rows, draw(20, temperature=0.0, top_p=0.5))
    assert np.array_equal(ids, rows.argmax(-1).numpy())
    assert np.allclose(logprobs, rows.log_softmax(-1).max(-1).values.numpy())


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 2**63 - 1),
    st.integers(0, 100_000),
    st.sampled_from([0.0, 0.7, 1.0]),
    st.sampled_from([0.8, 1.0]),
    st.lists(st.tuples(st.sampled_from([0.0, 1.0, 1.3]), st.sampled_from([0.5, 1.0])), max_size=5),
)
def test_a_sample_does_not_depend_on_the_rest_of_the_batch(
    seed: int, position: int, temperature: float, top_p: float, others: list[tuple[float, float]]
) -> None:
    rows = logits(4, rows=len(others) + 1)
    settings_ = BatchSampling(
        temperature=np.asarray([temperature, *(t for t, _ in others)], dtype=np.float32),
        top_p=np.asarray([top_p, *(p for _, p in others)], dtype=np.float32),
        top_k=np.full(len(rows), EVERYTHING),
        seed=np.full(len(rows), seed, dtype=np.uint64),
        position=np.full(len(rows), position),
    )
    alone = BatchSampling(*(getattr(settings_, name)[:1] for name in BatchSampling.__slots__))
    batch_ids, batch_logprobs = sample(rows, settings_)
    ids, logprobs = sample(rows[:1], alone)
    assert batch_ids[0] == ids[0]
    assert batch_logprobs[0] == pytest.approx(float(logprobs[0]), abs=1e-6)


def test_hashed_numbers_are_uniform_over_seeds_and_positions() -> None:
    index = np.arange(50_000)
    for values in (
        hash_uniform(np.zeros(50_000, dtype=np.uint64), index),
        hash_uniform(index.astype(np.uint64), np.full(50_000, 300)),
    ):
        assert values.min() >= 0
        assert values.max() < 1
        counts = np.bincount((values * 20).astype(int), minlength=20)
        assert np.abs(counts - 2500).max() < 250  # five standard deviations
        assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.03
