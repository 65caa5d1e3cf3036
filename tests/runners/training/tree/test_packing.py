"""Packs of prefix trees: every token of every sample, every node once, few repeated."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.records.routing import Routing, RoutingShape
from runners.training.sample import Sample
from runners.training.tree.packing import Pack, count_run, find_cuts, make_keys, pack_samples
from tests.fakes.sample_trees import sample_trees

SHAPE = RoutingShape(layers=2, top_k=2, experts=8, routed=(0, 1))
TREES = st.one_of(sample_trees(), sample_trees(shape=SHAPE))


def describe(sample: Sample) -> list[object]:
    """What makes the nodes of a sample's tokens: all that its forward pass depends on."""
    routing, found = sample.routing, []
    for index in range(count_run(sample)):
        experts = None
        if routing is not None and routing.valid[index]:
            experts = routing.experts[index].tobytes()
        found.append((int(sample.tokens[index]), experts))
    return [tuple(found[: index + 1]) for index in range(len(found))]


def ancestors(pack: Pack) -> set[tuple[int, int]]:
    """Pairs of a node and one on its path, itself included."""
    return {
        (int(q), int(k)) for path in pack.paths for i, q in enumerate(path) for k in path[: i + 1]
    }


@given(TREES, st.integers(1, 90))
def test_a_pack_is_the_prefix_tree_of_its_samples(samples: list[Sample], most: int) -> None:
    everything: set[object] = set()
    seen: list[int] = []
    computed, repeated = 0, 0
    for pack in pack_samples(samples, most):
        size = len(pack.depths)
        assert size <= most or len(pack.samples) == 1
        nodes: dict[object, int] = {}
        for index, path in zip(pack.samples, pack.paths, strict=True):
            histories = describe(samples[index])
            assert len(histories) == len(path)
            assert pack.depths[path].tolist() == list(range(len(path)))
            for history, node in zip(histories, path.tolist(), strict=True):
                assert nodes.setdefault(history, node) == node
        assert sorted(nodes.values()) == list(range(size)), "a node per history, and no other"
        pairs = ancestors(pack)
        for q, k in itertools.product(range(size), repeat=2):
            assert (k <= q < pack.ends[k]) == ((q, k) in pairs)
        assert len(everything & nodes.keys()) == pack.repeated
        everything |= nodes.keys()
        seen += pack.samples
        computed, repeated = computed + size, repeated + pack.repeated
    assert sorted(seen) == list(range(len(samples)))
    assert computed - repeated == len(everything)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=9),
    st.integers(1, 30),
)
def test_no_other_cuts_repeat_fewer_nodes(paths: list[tuple[int, int]], most: int) -> None:
    lengths = [length for length, _ in paths]
    shared = [0, *map(min, (common for _, common in paths[1:]), lengths, lengths[1:])]

    def cost(starts: tuple[int, ...]) -> tuple[int, int] | None:
        stops = [*starts[1:], len(lengths)]
        for start, stop in zip(starts, stops, strict=True):
            own = sum(lengths[k] - shared[k] for k in range(start + 1, stop))
            if stop - start > 1 and lengths[start] + own > most:
                return None
        return sum(shared[start] for start in starts), len(starts)

    found = cost(tuple(find_cuts(lengths, shared, most)))
    every = [
        cost((0, *rest))
        for size in range(len(lengths))
        for rest in itertools.combinations(range(1, len(lengths)), size)
    ]
    assert found is not None
    assert found == min(each for each in every if each is not None)


@given(TREES, st.integers(1, 60), st.randoms(use_true_random=False))
def test_packs_do_not_depend_on_the_order_of_the_list(
    samples: list[Sample], most: int, random: object
) -> None:
    """That of concurrent sub-agents' segments is chance."""
    shuffled = list(samples)
    random.shuffle(shuffled)  # type: ignore[attr-defined]

    def contents(given: list[Sample]) -> list[list[bytes]]:
        return [
            [
                b"".join([given[i].tokens.tobytes(), given[i].rollout_id.encode()])
                for i in pack.samples
            ]
            for pack in pack_samples(given, most)
        ]

    assert contents(samples) == contents(shuffled)


def routed(experts: list[int], valid: list[bool]) -> Sample:
    """A sample whose tokens went to these first experts."""
    size = len(experts)
    array = np.zeros((size, SHAPE.layers, SHAPE.top_k), np.uint8)
    array[..., 1] = 7
    array[:, 1, 0] = experts
    mask = np.arange(size) == size - 1
    return Sample(
        "r", np.arange(size, dtype=np.int32), mask, np.zeros(size, np.float32), 1.0,
        routing=Routing(array, np.array(valid)),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("experts", "valid"),
    [
        ([0, 1, 2, 4, 4, 5, 0], [True] * 6 + [False]),
        ([0, 1, 2, 3, 4, 5, 0], [True] * 3 + [False] * 4),
    ],
    ids=["another expert", "an unknown one"],
)
def test_routing_that_differs_at_one_token_makes_other_nodes_from_there_on(
    experts: list[int], valid: list[bool]
) -> None:
    one, other = routed([0, 1, 2, 3, 4, 5, 0], [True] * 6 + [False]), routed(experts, valid)
    (pack,) = pack_samples([one, other], 99)
    assert [int(n) for n in pack.paths[0][:4] == pack.paths[1][:4]] == [1, 1, 1, 0]
    assert len(pack.depths) == 6 + 3


def test_unknown_routing_has_no_experts() -> None:
    one = routed([0, 1, 2, 3], [True, False, False, False])
    other = routed([0, 6, 5, 4], [True, False, False, False])
    keys = make_keys([one, other])
    assert keys[0].tolist() == keys[1].tolist()
    keys = make_keys([one, replace(one, routing=None)])
    assert keys[0].tolist() != keys[1].tolist()


def test_what_follows_the_last_trained_token_is_not_run() -> None:
    mask = np.array([False, False, True, False, False])
    sample = Sample("r", np.arange(5, dtype=np.int32), mask, np.zeros(5, np.float32), 1.0)
    (pack,) = pack_samples([sample], 99)
    assert len(pack.depths) == 2
    assert list(pack_samples([replace(sample, loss_mask=np.zeros(5, bool))], 99)) == []
