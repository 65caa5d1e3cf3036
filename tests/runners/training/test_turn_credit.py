"""Credit by turn: unbiased in a decision process whose policy chooses when to stop.

The process has a known gradient, and all its groups can be enumerated: expectations are exact. A
rollout has up to three turns. In each the policy stops (0), works with care (1) or in haste (2).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from conf.compose import compose
from conf.schema import Config
from conf.sections.training import LocalTrainerConfig
from runners.records.graph import build_segments
from runners.records.record import RolloutRecord, Turn
from runners.training.advantages import (
    StepGroups,
    compute_turn_credits,
    estimate_rloo,
    spread_over_tokens,
)
from runners.training.micro_batches import (
    make_micro_batches,
)
from runners.training.objective import Objective
from runners.training.sample import Sample, compute_token_weights
from runners.training.step_samples import StoredRollout, build_samples
from runners.training.totals import StepTotals
from tests.fakes.local_trainer import VOCAB, make_rollouts, make_trainer
from tests.fakes.records import a_rollout, a_turn
from tests.fakes.step_samples import BRANCHED
from tests.fakes.tiny_model import write_tiny_model

Trajectory = tuple[int, ...]
Array = NDArray[np.float64]
STOP = 0
LOGITS = torch.tensor([[0.3, 0.4, -0.2], [0.9, -0.1, 0.2], [-0.3, 0.5, 0.1]], dtype=torch.float64)
"""Of the three actions in each turn."""
EARNED = ((0.0, 0.9, -0.4), (0.0, -0.7, 0.8), (0.0, 1.5, -1.0))
"""What each action earns at once."""
FIRST_TOKEN = 100
"""Action a of turn t is token ``FIRST_TOKEN + 3 t + a``."""


def trajectories() -> Iterator[Trajectory]:
    """Yield the 15 ways through: three turns, or fewer that end with a stop."""
    for length in (1, 2, 3):
        for actions in itertools.product((STOP, 1, 2), repeat=length):
            stops = [action == STOP for action in actions]
            if not any(stops[:-1]) and (length == 3 or stops[-1]):
                yield actions


ALL = list(trajectories())


def turn_rewards(path: Trajectory) -> list[float]:
    return [EARNED[turn][action] for turn, action in enumerate(path)]


def outcome(path: Trajectory) -> float:
    """Return what the whole rollout earns at its end: a task solved with care."""
    return float(sum(action == 1 for action in path) >= 2)


def logprob(path: Trajectory, logits: Tensor) -> Tensor:
    table = logits.log_softmax(1)
    return torch.stack([table[turn, action] for turn, action in enumerate(path)]).sum()


@functools.cache
def true_gradient() -> Array:
    """Return the gradient of the expected reward, [3, 3]."""
    logits = LOGITS.clone().requires_grad_()
    value = torch.stack([
        logprob(path, logits).exp() * (outcome(path) + sum(turn_rewards(path))) for path in ALL
    ]).sum()  # fmt: skip
    return np.asarray(torch.autograd.grad(value, logits)[0])


PROBABILITIES = {path: math.exp(logprob(path, LOGITS).item()) for path in ALL}


def bias(gradient: Array) -> float:
    """Return the distance from the true gradient, relative to it, at the scale that fits best."""
    true = true_gradient()
    scale = (gradient * true).sum() / (gradient**2).sum()
    return float(np.linalg.norm(scale * gradient - true) / np.linalg.norm(true))


def records_of(group: Sequence[Trajectory]) -> list[RolloutRecord]:
    return [
        a_rollout(
            f"train-000001-00-{member:02d}", turns=len(path), turn_rewards=turn_rewards(path),
            reward=outcome(path) + math.fsum(turn_rewards(path)),
        )
        for member, path in enumerate(group)
    ]  # fmt: skip


def turns_of(path: Trajectory, session_id: str) -> list[Turn]:
    """Return a session in which every turn samples one token, its action."""
    return [
        a_turn(
            session_id, turn, prompt_kept=3 * turn, prompt_new=np.array([1, 2], np.int32),
            output_ids=np.array([FIRST_TOKEN + 3 * turn + action], np.int32),
            output_logprobs=np.array([math.log(0.5)], np.float32),
        )
        for turn, action in enumerate(path)
    ]  # fmt: skip


def train(group: Sequence[Trajectory], config: Config) -> Array:
    """Return the gradient of the objective for the logits, with one group as the whole step."""
    records = records_of(group)
    paths = {record.session_id: path for record, path in zip(records, group, strict=True)}

    def load(record: RolloutRecord) -> StoredRollout:
        turns = turns_of(paths[record.session_id], record.session_id)
        return StoredRollout(record, turns, build_segments(turns), lambda _: None)

    rollouts = build_samples(StepGroups(config, records), load, config).rollouts
    assert isinstance(config.trainer, LocalTrainerConfig)
    weights = compute_token_weights(
        rollouts, config.trainer.mean_of_losses, config.trainer.aggregation_tokens
    )
    samples = [sample for rollout in rollouts for sample in rollout]
    logits = LOGITS.clone().requires_grad_()
    table = logits.log_softmax(1).flatten()
    objective = torch.zeros(())
    batches = make_micro_batches(
        samples, weights, tokens_per_microbatch=99, device=torch.device("cpu")
    )
    for batch in batches:
        logprobs = table[batch.targets - FIRST_TOKEN]
        found = torch.stack([logprobs, torch.zeros_like(logprobs)], dim=1)
        objective = objective + Objective(config.trainer).compute(batch, found, StepTotals())
    return np.asarray(torch.autograd.grad(objective, logits)[0])


def expect_trained(*lines: str) -> Array:
    """Return the mean of the trainer's gradient over all groups of two, turned uphill."""
    config = compose([
        *("trainer.loss=reinforce", "trainer.credit=turn", "trainer.advantage=rloo"), *lines
    ])  # fmt: skip
    return -sum(
        (
            math.prod(PROBABILITIES[path] for path in group) * train(group, config)
            for group in itertools.product(ALL, repeat=2)
        ),
        np.zeros((3, 3)),
    )


def test_what_the_trainer_does_is_unbiased() -> None:
    found = expect_trained("trainer.aggregation_tokens=10")
    assert np.allclose(10 * found, true_gradient(), atol=1e-6)
    assert bias(found) < 1e-6


def test_a_mean_over_the_tokens_of_a_rollout_is_biased() -> None:
    """A rollout's weight depends on when its policy stops: docs/algorithms.md says so."""
    assert bias(expect_trained("trainer.aggregation=rollout")) > 0.25


# What holds for any rewards.

EARNINGS = st.lists(st.floats(-2, 2).map(lambda value: round(value, 3)), max_size=5)
GROUPS = st.lists(st.tuples(st.floats(-1, 1).map(lambda v: round(v, 3)), EARNINGS), min_size=2)


def a_group(members: Sequence[tuple[float, list[float]]]) -> list[RolloutRecord]:
    return [
        a_rollout(
            f"train-000001-00-{number:02d}", reward=own + math.fsum(earned), turn_rewards=earned
        )
        for number, (own, earned) in enumerate(members)
    ]


@given(GROUPS, st.integers(0, 99))
def test_turns_are_compared_with_the_others_rewards_to_go(
    members: list[tuple[float, list[float]]], seed: int
) -> None:
    records = a_group(members)
    found = compute_turn_credits(records, estimate_rloo)
    most = max(len(earned) for _, earned in members)
    for number, (own, earned) in enumerate(members):
        row = found[records[number].rollout_id]
        assert len(row) == most + 1
        for turn, credit in enumerate(row):
            others = [o + sum(e[turn:]) for index, (o, e) in enumerate(members) if index != number]
            assert credit == pytest.approx(own + sum(earned[turn:]) - np.mean(others), abs=1e-5)
    rewards = [record.reward or 0.0 for record in records]
    assert [row[0] for row in found.values()] == list(estimate_rloo(rewards))
    order = np.random.default_rng(seed).permutation(len(records))
    moved = compute_turn_credits([records[index] for index in order], estimate_rloo)
    assert all(moved[name] == pytest.approx(row, abs=1e-6) for name, row in found.items())
    ungraded = replace(records[0], rollout_id="train-000001-00-99", reward=None)
    assert compute_turn_credits([*records, ungraded], estimate_rloo) == found


def test_a_group_of_equal_rewards_has_a_signal_if_its_turns_earned_otherwise() -> None:
    early, late = records_of([(1, 0), (2, 0)])
    early, late = replace(early, reward=0.5), replace(late, reward=0.5)
    assert StepGroups(compose(["trainer.advantage=rloo"]), [early, late]).flat == [0]
    by_turn = StepGroups(compose(["trainer.advantage=rloo", "trainer.credit=turn"]), [early, late])
    assert by_turn.flat == []
    assert [advantage for _, advantage in by_turn.advantages] == [0.0, 0.0]
    assert by_turn.turn_credits[early.rollout_id] == pytest.approx([0.0, -1.3, -1.3])


def test_the_turns_of_sub_agents_are_credited_by_their_place_in_the_session() -> None:
    segments = build_segments(BRANCHED)
    found = {
        segment.own_turns: spread_over_tokens([5.0, 4.0, 3.0, 2.0], BRANCHED)(segment)
        for segment in segments
    }
    for segment in segments:
        (turn,), credit = segment.own_turns, found[segment.own_turns]
        assert credit is not None
        assert credit[segment.loss_mask].tolist() == [[5.0, 4.0, 3.0, 2.0, 2.0][turn]] * 2
        assert not credit[~segment.loss_mask].any()
    assert spread_over_tokens(None, BRANCHED)(segments[0]) is None


def test_the_trainer_runs_what_has_an_advantage_in_any_turn(tmp_path: Path) -> None:
    weights = write_tiny_model(tmp_path, vocab_size=VOCAB)
    whole, turned, still = (make_trainer(weights) for _ in range(3))
    rollouts = make_rollouts(whole, 4)
    by_token = [
        [
            replace(
                sample, advantage=0.0,
                token_advantages=np.full(len(sample.tokens), sample.advantage, np.float32),
            )
            for sample in rollout
        ]
        for rollout in rollouts
    ]  # fmt: skip
    whole.step(rollouts)
    turned.step(by_token)
    pairs = zip(whole.model.parameters(), turned.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    nothing = [
        [replace(sample, token_advantages=np.zeros(len(sample.tokens), np.float32)) for sample in r]
        for r in rollouts
    ]
    before = [parameter.clone() for parameter in still.model.parameters()]
    still.step(nothing)
    assert all(torch.equal(a, b) for a, b in zip(before, still.model.parameters(), strict=True))


def test_a_sample_whose_routing_is_wrong_has_no_advantage_in_any_turn() -> None:
    tokens = np.arange(3, dtype=np.int32)
    ones = np.ones(3, np.float32)
    sample = Sample("r", tokens, tokens > 0, ones, 1.0, token_advantages=ones)
    assert sample.has_advantage
    assert not sample.without_routing().has_advantage
