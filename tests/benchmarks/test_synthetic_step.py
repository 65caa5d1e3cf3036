"""The long step that is made, and the file of steps: what the tree's benchmark measures."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from runners.records.graph import common_prefix_length
from runners.training.sample import Rollout, Sample
from runners.training.tree.packing import pack_samples
from tests.benchmarks.saved_steps import load_steps, save_steps
from tests.benchmarks.synthetic_step import StepShape, make_synthetic_step

SHAPE = StepShape(tasks=2).shrink(30)


def make(**changes: int) -> list[Rollout]:
    return make_synthetic_step(SHAPE, vocabulary=50_000, **changes)


def describe(rollouts: list[Rollout]) -> list[tuple[object, ...]]:
    return [
        (
            s.rollout_id,
            *(each.tolist() for each in (s.tokens, s.loss_mask, s.logprobs)),
            s.advantage,
        )
        for rollout in rollouts
        for s in rollout
    ]


def test_a_seed_gives_one_step() -> None:
    assert describe(make(seed=1)) == describe(make(seed=1))
    assert describe(make(seed=1)) != describe(make(seed=2))


def test_a_group_shares_its_prompt_and_siblings_what_they_sample_for_a_while() -> None:
    rollouts = make()
    mains = [max(rollout, key=lambda sample: len(sample.tokens)) for rollout in rollouts]
    assert common_prefix_length(*(each.tokens for each in mains)) == SHAPE.prompt // 2
    group = [each.tokens for each in mains[: SHAPE.rollouts]]
    assert common_prefix_length(*group) >= SHAPE.prompt
    pairs = [common_prefix_length(a, b) for a in group for b in group if a is not b]
    assert max(pairs) > SHAPE.prompt + SHAPE.sampled


def test_rollouts_have_compactions_and_sub_agents() -> None:
    numbers = [len(rollout) for rollout in make()]
    assert set(numbers) == {1, 2, 3}
    assert make()[1][1].tokens[: SHAPE.prompt].tolist() == (
        make()[1][0].tokens[: SHAPE.prompt].tolist()
    )


def test_its_tree_is_smaller_than_its_samples() -> None:
    samples = [sample for rollout in make() for sample in rollout]
    (pack,) = pack_samples(samples, 10**6)
    flat = sum(map(len, pack.paths))
    assert 0.5 * flat < len(pack.depths) < 0.85 * flat


def test_a_step_is_read_as_it_was_saved(tmp_path: Path) -> None:
    steps = [("a step", make()), ("another", make(seed=3)[:2])]
    save_steps(tmp_path / "steps.npz", steps)
    found = list(load_steps(tmp_path / "steps.npz"))
    assert [name for name, _ in found] == ["a step", "another"]
    for (_, mine), (_, theirs) in zip(steps, found, strict=True):
        assert describe(mine) == describe(theirs)
        assert [len(rollout) for rollout in mine] == [len(rollout) for rollout in theirs]
        first: Sample = theirs[0][0]
        assert first.tokens.dtype == np.dtype(np.int32)
        assert first.logprobs.dtype == np.dtype(np.float32)
