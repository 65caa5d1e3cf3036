"""The self-check of captured routing names what is wrong, the token and the layer."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from runners.records.routing import Routing, RoutingShape
from runners.training.routing.check import find_routing_fault
from runners.training.sample import Sample

SHAPE = RoutingShape(layers=3, top_k=2, experts=8, routed=(1, 2))


def sample(tokens: int = 4) -> Sample:
    """A sample with good routing: the first layer is dense and all zeros."""
    experts = np.zeros((tokens, 3, 2), np.uint8)
    experts[:, 1:] = [3, 7]
    valid = np.ones(tokens, bool)
    valid[-1] = False
    return Sample(
        "r", np.arange(tokens, dtype=np.int32), np.zeros(tokens, bool),
        np.zeros(tokens, np.float32), 1.0, routing=Routing(experts, valid),
    )  # fmt: skip


def with_experts(token: int, layer: int, row: list[int]) -> Sample:
    """Return the sample with one token's choice in one layer replaced."""
    good = sample()
    assert good.routing is not None
    experts = good.routing.experts.copy()
    experts[token, layer] = row
    return replace(good, routing=replace(good.routing, experts=experts))


def test_good_routing_has_no_fault() -> None:
    assert find_routing_fault(sample(), SHAPE) is None
    assert find_routing_fault(with_experts(0, 0, [0, 0]), SHAPE) is None, (
        "a dense layer routes nothing"
    )


def test_invalid_rows_are_not_checked() -> None:
    assert find_routing_fault(with_experts(3, 1, [200, 200]), SHAPE) is None


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ([0, 0], r"token 1 in layer 2 twice to one expert \(\[0, 0\]\): is it padding"),
        ([2, 8], "token 1 in layer 2 to expert 8 of 8"),
    ],
)
def test_impossible_choices_are_named(row: list[int], fault: str) -> None:
    found = find_routing_fault(with_experts(1, 2, row), SHAPE)
    assert found is not None
    assert re.search(fault, found)


def test_wrong_shapes_and_a_row_too_many_are_named() -> None:
    good = sample()
    assert good.routing is not None
    assert "has no routing" in (find_routing_fault(replace(good, routing=None), SHAPE) or "")
    short = Routing(good.routing.experts[:-1], good.routing.valid[:-1])
    assert "shape (3, 3, 2)" in (find_routing_fault(replace(good, routing=short), SHAPE) or "")
    over = Routing(good.routing.experts, np.ones(4, bool))
    assert "last token" in (find_routing_fault(replace(good, routing=over), SHAPE) or "")
