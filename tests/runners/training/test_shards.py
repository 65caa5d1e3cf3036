"""Master weights and moments that are divided among processes."""

from __future__ import annotations

import math
from functools import partial
from itertools import chain

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from runners.training.peers import TrainingPeers
from runners.training.policy import decay_groups
from runners.training.shards import WeightShards
from tests.fakes.thread_peers import run_together

Shapes = list[tuple[int, ...]]
SHAPES = st.lists(
    st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple), min_size=1, max_size=6
)


def make_weights(shapes: Shapes, *, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {str(i): torch.randn(shape, generator=generator) for i, shape in enumerate(shapes)}


def optimizer_of(parameters: dict[str, nn.Parameter]) -> torch.optim.AdamW:
    return torch.optim.AdamW(decay_groups(parameters.values(), 0.1), lr=0.01, foreach=True)


def divide(
    shapes: Shapes, peers: TrainingPeers, rounded: bool
) -> tuple[WeightShards, dict[str, nn.Parameter], dict[nn.Parameter, Tensor]]:
    """Return shards, the whole parameters, and the copies of every second one."""
    trained = {name: nn.Parameter(each) for name, each in make_weights(shapes).items()}
    copies: dict[nn.Parameter, Tensor] = {}
    if rounded:
        copies = {each: each.detach().bfloat16() for each in list(trained.values())[::2]}
    return WeightShards(trained, copies, peers), trained, copies


def train_divided(shapes: Shapes, rounded: bool, peers: TrainingPeers) -> dict[str, Tensor]:
    """Make three updates; return what the policy computes with, masters and moments."""
    divided, trained, copies = divide(shapes, peers, rounded)
    optimizer = optimizer_of(divided.parts)
    for step in range(3):
        for name, gradient in make_weights(shapes, seed=step + 1).items():
            trained[name].grad = gradient if name != "1" or step else None
        divided.share_gradients()
        optimizer.step()
        divided.publish()
    found = {f"computed {name}": copies.get(each, each).detach() for name, each in trained.items()}
    for name, part in divided.parts.items():
        found[f"master {name}"] = divided.gather(name, part.detach())
        for key in ("exp_avg", "exp_avg_sq"):
            found[f"{key} {name}"] = divided.gather(name, optimizer.state[part][key])
    return found


def train_whole(shapes: Shapes, rounded: bool) -> dict[str, Tensor]:
    """Do the same without parts."""
    trained = {name: nn.Parameter(each) for name, each in make_weights(shapes).items()}
    optimizer = optimizer_of(trained)
    for step in range(3):
        for name, gradient in make_weights(shapes, seed=step + 1).items():
            trained[name].grad = gradient if name != "1" or step else None
        optimizer.step()
    found = {}
    for number, (name, each) in enumerate(trained.items()):
        value = each.detach()
        found[f"computed {name}"] = value.bfloat16() if rounded and number % 2 == 0 else value
        found[f"master {name}"] = value
        for key in ("exp_avg", "exp_avg_sq"):
            found[f"{key} {name}"] = optimizer.state[each][key]
    return found


@settings(max_examples=40, deadline=None)
@given(SHAPES, st.integers(1, 5), st.booleans())
def test_divided_adamw_is_adamw_bit_for_bit(shapes: Shapes, count: int, rounded: bool) -> None:
    expected = train_whole(shapes, rounded)
    for found in run_together(count, partial(train_divided, shapes, rounded)):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert found[name].dtype == value.dtype
            assert torch.equal(found[name], value), name


def test_small_buckets_give_the_same() -> None:
    shapes: Shapes = [(3, 4), (5,), (2, 3), (7,), (1,)]
    whole = train_whole(shapes, True)
    for found in run_together(3, partial(train_divided, shapes, True), bucket=6):
        assert all(torch.equal(found[name], value) for name, value in whole.items())


@pytest.mark.parametrize("rounded", [False, True])
def test_a_process_keeps_its_part_alone(rounded: bool) -> None:
    shapes: Shapes = [(64, 10), (130,)]

    def measure(peers: TrainingPeers) -> tuple[int, int]:
        divided, trained, copies = divide(shapes, peers, rounded)
        optimizer = optimizer_of(divided.parts)
        for each in trained.values():
            each.grad = torch.ones_like(each)
        divided.share_gradients()
        optimizer.step()
        moments = chain.from_iterable(state.values() for state in optimizer.state.values())
        masters = {each.untyped_storage() for each in copies}
        kept = sum(each.untyped_storage().nbytes() for each in divided.parts.values())
        return (
            sum(each.nbytes for each in moments if each.dim()),
            sum(each.nbytes() for each in masters) + (kept if rounded else 0),
        )

    numbers = sum(map(math.prod, shapes))
    for moments, masters in run_together(5, measure):
        assert moments == 2 * 4 * numbers // 5
        # of the second parameter, which has no copy, the part is a view of the whole
        assert masters == (4 + 4 * 640 // 5 + 4 * 130 if rounded else 0)


def test_whole_weights_are_loaded_into_parts() -> None:
    shapes: Shapes = [(4, 3), (5,)]
    others = make_weights(shapes, seed=7)

    def load(peers: TrainingPeers) -> dict[str, Tensor]:
        divided, _, _ = divide(shapes, peers, True)
        divided.load(others)
        return {name: divided.gather(name, part.detach()) for name, part in divided.parts.items()}

    for found in run_together(2, load):
        assert all(torch.equal(found[name], value) for name, value in others.items())
