"""Weight versions as spans: nothing is lost, and one version is no span."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from runners.records.graph import build_segments
from runners.records.record import expand_spans, find_spans
from runners.records.routing import RoutingShape, build_segment_routing, build_turn_routing
from tests.fakes.records import a_turn

SHAPE = RoutingShape(layers=1, top_k=1, experts=4, routed=(0,))


@given(st.lists(st.integers(-1, 3)))
def test_versions_become_spans_and_back(values: list[int]) -> None:
    versions = np.array(values, np.int32)
    spans = find_spans(versions)
    assert len(spans) != 1
    assert (spans == ()) == (len(set(values)) <= 1)
    assert sum(count for _, count in spans) in (0, len(values))
    last = values[-1] if values else 0
    assert expand_spans(spans, last, len(values)).tolist() == values


def test_spans_of_other_lengths_are_cut_or_go_on() -> None:
    assert expand_spans([[3, 2], [4, 1]], 4, 5).tolist() == [3, 3, 4, 4, 4]
    assert expand_spans([[3, 2], [4, 4]], 4, 3).tolist() == [3, 3, 4]
    assert expand_spans((), 7, 2).tolist() == [7, 7]


def test_a_segment_has_the_version_of_each_token_and_a_row_that_of_the_token_it_sampled() -> None:
    turn = a_turn(
        index=0, prompt_new=np.array([1, 2, 3], np.int32), output_ids=np.array([7, 8, 9], np.int32),
        output_logprobs=np.zeros(3, np.float32), weight_version=6,
        weight_spans=[[5, 1], [6, 2]],
    )  # fmt: skip
    (chain,) = build_segments([turn])
    assert chain.weight_versions.tolist() == [-1, -1, -1, 5, 6, 6]
    flat = np.zeros(5, np.int32)
    routing = build_turn_routing(flat, chain.tokens, 0, SHAPE, turn.weight_version)
    switched = routing.switch_weights(turn.weight_spans)
    assert switched.row_versions().tolist() == [5, 5, 5, 6, 6]
    assert build_segment_routing(chain, {0: switched}, SHAPE).valid.tolist() == [True] * 5 + [False]
    # the rows of one version did not sample the tokens of another
    valid = build_segment_routing(chain, {0: routing}, SHAPE).valid
    assert valid.tolist() == [True, True, False, True, True, False]
    later = build_turn_routing(flat[:3], chain.tokens, 2, SHAPE, 6).switch_weights([[5, 1], [6, 2]])
    assert later.row_versions().tolist() == [5, 6, 6]
