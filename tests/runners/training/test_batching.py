"""Micro-batches: every trained token exactly once, with its own numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runners.training.batching import micro_batches, split_by_rollout, token_weights
from runners.training.sample import Sample


def sample(
    rollout_id: str, length: int, trained: list[int], *, advantage: float = 1.0, first: int = 0
) -> Sample:
    """A sample whose token i is ``first + i`` and whose logprob at i is −(first + i)."""
    mask = np.zeros(length, dtype=bool)
    mask[trained] = True
    tokens = np.arange(first, first + length, dtype=np.int32)
    return Sample(
        rollout_id, tokens, mask, np.where(mask, -tokens, 0).astype(np.float32), advantage
    )


SHAPES = st.lists(st.tuples(st.integers(2, 30), st.integers(0, 4)), min_size=1, max_size=20)


@given(SHAPES, st.integers(1, 80))
def test_every_trained_token_appears_once_with_its_context_position(
    shapes: list[tuple[int, int]], budget: int
) -> None:
    samples = [
        sample(
            f"r{rollout}",
            length,
            list(range(1, length, 2)),
            first=100 * index,
            advantage=float(index),
        )
        for index, (length, rollout) in enumerate(shapes)
    ]
    seen = []
    weights = token_weights(samples)
    for batch in micro_batches(
        samples, weights, tokens_per_microbatch=budget, device=torch.device("cpu")
    ):
        rows, width = batch.input_ids.shape
        assert rows == 1 or rows * width <= budget
        context = batch.input_ids[batch.rows, batch.positions]
        assert torch.equal(context + 1, batch.targets)  # the position before the token predicts it
        assert torch.equal(-batch.targets.float(), batch.behaviour_logprobs)
        assert torch.equal(batch.targets // 100, batch.advantages.long())
        seen += batch.targets.tolist()
    assert sorted(seen) == sorted(
        int(token) for item in samples for token in item.tokens[item.loss_mask]
    )


def test_each_rollout_weighs_the_same_however_long_and_however_split() -> None:
    samples = [sample("a", 10, [1, 2, 3, 4]), sample("b", 5, [1]), sample("b", 5, [1, 2, 3])]
    weights = token_weights(samples)
    of_rollout = {"a": 4 * weights[0], "b": weights[1] + 3 * weights[2]}
    assert of_rollout == pytest.approx({"a": 0.5, "b": 0.5})


def test_a_trained_first_token_is_refused() -> None:
    with pytest.raises(ValueError, match="no context"):
        list(
            micro_batches(
                [sample("a", 4, [0])], [1.0], tokens_per_microbatch=8, device=torch.device("cpu")
            )
        )


@given(st.lists(st.integers(0, 6), min_size=1, max_size=30), st.integers(1, 5), st.integers(0, 9))
def test_minibatches_keep_the_samples_of_a_rollout_together(
    rollouts: list[int], parts: int, seed: int
) -> None:
    samples = [sample(f"r{rollout}", 3, [1]) for rollout in rollouts]
    dealt = split_by_rollout(samples, parts, torch.Generator().manual_seed(seed))
    homes: dict[str, set[int]] = {}
    for part, members in enumerate(dealt):
        assert members
        for member in members:
            homes.setdefault(member.rollout_id, set()).add(part)
    assert all(len(home) == 1 for home in homes.values())
    assert sum(map(len, dealt)) == len(samples)
