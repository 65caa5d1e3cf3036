"""Micro-batches: every trained token exactly once, with its own numbers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conf.compose import compose
from conf.sections.training import Aggregation, LocalTrainerConfig
from runners.training.micro_batches import (
    make_micro_batches,
    select_tokens,
    split_rollouts,
)
from runners.training.sample import Sample, compute_token_weights


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


SHAPES = st.lists(st.lists(st.integers(2, 30), max_size=4), min_size=1, max_size=8).filter(any)
"""Lengths of each rollout's samples."""


@given(SHAPES, st.integers(1, 80), st.booleans())
def test_every_trained_token_appears_once_with_its_context_position(
    shapes: list[list[int]], budget: int, tree: bool
) -> None:
    number = itertools.count()
    rollouts = [
        [
            sample(
                f"r{rollout}",
                length,
                list(range(1, length, 2)),
                first=100 * (index := next(number)),
                advantage=float(index),
            )
            for length in lengths
        ]
        for rollout, lengths in enumerate(shapes)
    ]
    samples = list(itertools.chain(*rollouts))
    seen = []
    weights = compute_token_weights(rollouts)
    for batch in make_micro_batches(
        samples, weights, tokens_per_microbatch=budget, device=torch.device("cpu"), tree=tree
    ):
        assert len(batch.samples) == 1 or batch.input_ids.numel() <= budget
        assert (batch.tree is not None) == tree
        context = batch.input_ids.flatten()[batch.predictors[batch.predicted_by]]
        assert torch.equal(context + 1, batch.targets)  # the position before the token predicts it
        assert torch.equal(-batch.targets.float(), batch.rollout_logprobs)
        assert torch.equal(batch.targets // 100, batch.advantages.long())
        seen += batch.targets.tolist()
    assert sorted(seen) == sorted(
        int(token) for item in samples for token in item.tokens[item.loss_mask]
    )


def test_a_sample_s_tokens_can_be_left_out_and_the_others_are_numbered_anew() -> None:
    samples = [sample(f"r{index}", 6, [2, 4]) for index in range(3)]  # the same nodes
    (batch,) = make_micro_batches(
        samples, [0.1, 0.2, 0.3], tokens_per_microbatch=64, device=torch.device("cpu")
    )
    first = batch.rollout_ids.index("r1")
    kept = select_tokens(batch, batch.rows != first)
    assert kept.rows.tolist() == [0, 0, 1, 1]
    assert sorted(kept.targets.tolist()) == [2, 2, 4, 4]
    assert torch.equal(-kept.targets.float(), kept.rollout_logprobs)
    assert sorted(kept.weights.tolist()) == pytest.approx([0.1, 0.1, 0.3, 0.3])
    assert len(kept.predicted_by) == len(kept.advantages) == 4


def test_each_rollout_weighs_the_same_however_long_and_however_split() -> None:
    a, b = sample("a", 10, [1, 2, 3, 4]), [sample("b", 5, [1]), sample("b", 5, [1, 2, 3])]
    weights = compute_token_weights([[a], b])
    of_rollout = {"a": 4 * weights[0], "b": weights[1] + 3 * weights[2]}
    assert of_rollout == pytest.approx({"a": 0.5, "b": 0.5})


def test_a_rollout_of_which_nothing_is_left_does_not_make_the_others_weigh_more() -> None:
    whole, rest = [sample("a", 10, [1, 2, 3, 4])], [sample("b", 5, [1])]
    assert compute_token_weights([whole, rest]) == [1 / 8, 1 / 2]
    assert compute_token_weights([whole, []]) == [1 / 8]
    assert compute_token_weights([whole, [sample("b", 5, [])]]) == [1 / 8, 1 / 2]


def test_a_trained_first_token_is_refused() -> None:
    with pytest.raises(ValueError, match="no context"):
        list(
            make_micro_batches(
                [sample("a", 4, [0])], [1.0], tokens_per_microbatch=8, device=torch.device("cpu")
            )
        )


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(1, 5), st.integers(0, 9))
def test_rollouts_are_split_evenly_and_no_minibatch_is_empty(
    sizes: list[int], parts: int, seed: int
) -> None:
    rollouts = [[sample(f"r{i}", 3, [1])] * size for i, size in enumerate(sizes)]
    dealt = split_rollouts(rollouts, parts, torch.Generator().manual_seed(seed))
    assert sorted(map(id, itertools.chain(*dealt))) == sorted(map(id, rollouts))
    assert min(map(len, dealt)) >= max(1, max(map(len, dealt)) - 1)


def opened(length: int, first_trained: int, last: int) -> Sample:
    """A sample that opens as all others do and ends in its own way."""
    tokens = np.arange(length, dtype=np.int32)
    tokens[-3:] = last
    mask = np.arange(length) >= first_trained
    return Sample("r", tokens, mask, np.zeros(length, np.float32), 1.0)


def test_what_samples_have_in_common_is_one_run_of_positions() -> None:
    samples = [opened(100, 90, 1), opened(104, 95, 2), opened(98, 92, 3)]
    (batch,) = make_micro_batches(
        samples, [1.0] * 3, tokens_per_microbatch=200, device=torch.device("cpu")
    )
    # 95 tokens, of which 97 and 101 go on alike, and two more each: the last is predicted only
    assert batch.input_ids.shape == (1, 101 + 3 * 2)
    assert batch.nodes == 107
    for index, path in zip(batch.samples, batch.paths, strict=True):
        found = batch.input_ids.flatten()[torch.from_numpy(path)]
        assert found.tolist() == samples[index].tokens[: len(path)].tolist()


def test_rows_of_a_policy_that_runs_no_trees_are_as_long_as_the_longest() -> None:
    samples = [opened(100, 90, 1), opened(104, 95, 2), opened(98, 92, 3)]
    batches = list(
        make_micro_batches(
            samples, [1.0] * 3, tokens_per_microbatch=210, device=torch.device("cpu"), tree=False
        )
    )
    assert [tuple(batch.input_ids.shape) for batch in batches] == [(2, 103), (1, 97)]
    assert [batch.nodes for batch in batches] == [103 + 99, 97]
    assert all(batch.tree is None for batch in batches)


def test_a_sample_without_trained_tokens_is_in_no_micro_batch() -> None:
    samples = [sample("a", 5, []), sample("b", 5, [3])]
    for tree in (True, False):
        (batch,) = make_micro_batches(
            samples, [1.0] * 2, tokens_per_microbatch=64, device=torch.device("cpu"), tree=tree
        )
        assert batch.samples == (1,)


@pytest.mark.parametrize(
    ("aggregation", "weights"),
    [
        ("rollout", [1 / 12, 1 / 12, 1 / 24]),
        ("token", [1 / 12, 1 / 12, 1 / 12]),
        ("segment", [1 / 6, 1 / 6, 1 / 24]),
        ("constant", [1 / 30, 1 / 30, 1 / 30]),
    ],
)
def test_tokens_are_averaged_as_asked(aggregation: Aggregation, weights: list[float]) -> None:
    """Rollouts of two segments with 2 trained tokens each, of none, and of one with 8."""
    rollouts = [[sample("a", 4, [2, 3])] * 2, [], [sample("b", 9, [*range(1, 9)])]]
    found = compute_token_weights(rollouts, aggregation, 10)
    assert found == pytest.approx(weights)
    assert compute_token_weights([[]], aggregation, 10) == []


@given(
    st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=4), min_size=1, max_size=5),
    st.sampled_from(["rollout", "token", "constant"]),
)
def test_how_a_rollout_is_split_into_segments_changes_no_token_s_weight(
    rollouts: list[list[int]], aggregation: Aggregation
) -> None:
    """``rollouts``: of each the trained tokens of its segments. ``segment`` is the one mean that
    says otherwise.
    """

    def weigh(sizes: list[list[int]], mean: Aggregation) -> list[float]:
        """Return the weight of each trained token."""
        samples = [
            [sample("r", size + 1, [*range(1, size + 1)]) for size in each] for each in sizes
        ]
        weights = compute_token_weights(samples, mean, 10)
        flat = [size for each in sizes for size in each]
        return [w for w, size in zip(weights, flat, strict=True) for _ in range(size)]

    whole = [[sum(sizes)] for sizes in rollouts]
    assert weigh(rollouts, aggregation) == pytest.approx(weigh(whole, aggregation))
    assert sum(weigh(rollouts, "segment")) == pytest.approx(1.0)


def test_dr_grpo_averages_by_a_constant_unless_something_else_is_asked_for() -> None:
    def find(*lines: str) -> object:
        trainer = compose(["model.max_context_tokens=8192", *lines]).trainer
        assert isinstance(trainer, LocalTrainerConfig)
        return trainer.mean_of_losses, trainer.aggregation_tokens

    assert find() == ("rollout", 8192)
    assert find("trainer.advantage=dr_grpo") == ("constant", 8192)
    assert find("trainer.advantage=dr_grpo", "trainer.aggregation=token") == ("token", 8192)
