"""The turn graph over random sessions: chains hold each sampled token exactly once."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.records.graph import ChainError, build_segments, common_prefix_length
from runners.records.record import Turn
from tests.fakes.turn_graphs import make_turn, sessions

IDS = st.lists(st.integers(0, 2), max_size=6)


@given(sessions())
def test_every_sampled_token_is_masked_in_once_after_exactly_the_prompt_the_model_saw(
    session: tuple[list[Turn], list[tuple[list[int], list[int]]]],
) -> None:
    turns, seen = session
    chains = build_segments(turns)
    assert sorted(index for chain in chains for index in chain.own_turns) == list(range(len(turns)))
    for chain in chains:
        tokens, trained = chain.tokens.tolist(), []
        for index in chain.turns:
            prompt, output = seen[index]
            assert tokens[: len(prompt) + len(output)] == prompt + output
            if index in chain.own_turns:
                trained += list(range(len(prompt), len(prompt) + len(output)))
                span = slice(len(prompt), len(prompt) + len(output))
                assert chain.logprobs[span].tolist() == turns[index].output_logprobs.tolist()
                assert set(chain.weight_versions[span].tolist()) <= {index + 3}
        assert len(tokens) == sum(map(len, seen[chain.turns[-1]]))
        assert np.flatnonzero(chain.loss_mask).tolist() == trained
        assert not chain.logprobs[~chain.loss_mask].any()
        assert set(chain.weight_versions[~chain.loss_mask].tolist()) <= {-1}
    finals = [chain.own_turns[-1] for chain in chains if chain.kind == "final"]
    assert finals == ([len(turns) - 1] if turns else [])
    assert sum(chain.kind == "wipe" for chain in chains) == max(0, len(chains) - 1)


GOOD = [
    make_turn(0, 0, None, 0, [1, 2], [3]),
    make_turn(1, 0, 0, 3, [4], [5, 6]),
    make_turn(2, 0, 1, 6, [7], [8]),
]


@pytest.mark.parametrize(
    ("turns", "message"),
    [
        ([GOOD[0], GOOD[2]], "missing, doubled or foreign"),
        ([GOOD[0], GOOD[0]], "missing, doubled or foreign"),
        ([GOOD[0], replace(GOOD[1], session_id="t")], "missing, doubled or foreign"),
        ([GOOD[0], replace(GOOD[1], prompt_kept=2)], "keeps 2 tokens of a path of 3"),
        ([replace(GOOD[0], prompt_kept=1)], "keeps 1 tokens of a path of 0"),
        ([GOOD[0], replace(GOOD[1], parent=1)], "continues turn 1, which is not before it"),
        ([*GOOD[:2], replace(GOOD[2], parent=0, prompt_kept=3)], "chain 0, but not at its end"),
        ([replace(GOOD[0], output_logprobs=np.zeros(2, np.float32))], "1 sampled tokens and 2"),
    ],
)
def test_turns_that_contradict_each_other_are_refused(turns: list[Turn], message: str) -> None:
    assert len(build_segments(GOOD)) == 1
    with pytest.raises(ChainError, match=message):
        build_segments(turns)


def test_each_chain_has_the_kind_of_its_branch_and_position() -> None:
    def said(index: int, segment: int, parent: int | None, **changes: str) -> Turn:
        kept = 0 if parent is None else 2 * (len(lineage[parent]) + 1)
        lineage[index] = [*lineage.get(parent, []), parent] if parent is not None else []
        return replace(make_turn(index, segment, parent, kept, [1], [2]), **changes)  # type: ignore[arg-type]

    lineage: dict[int | None, list[int]] = {}
    turns = [
        said(0, 0, None),
        said(1, 1, None, thread="a1", branch="subagent"),
        said(2, 2, None, branch="side"),
        said(3, 0, 0),
        said(4, 3, 0, branch="compaction"),
        said(5, 4, None),
        said(6, 5, 1, thread="a1", branch="subagent"),
        said(7, 6, None, branch="subagent"),
    ]
    chains = build_segments(turns)
    assert [chain.kind for chain in chains] == [
        *("wipe", "wipe", "side", "compaction", "final", "subagent", "subagent")
    ]
    assert [chain.own_turns for chain in chains] == [(0, 3), (1,), (2,), (4,), (5,), (6,), (7,)]
    assert chains[3].turns == (0, 4), "a summary stands after the history that it sums up"
    assert chains[3].loss_mask.tolist() == [False, False, False, True]


@given(IDS, st.lists(IDS, min_size=1, max_size=4))
def test_a_common_prefix_is_what_all_sequences_share(
    prefix: list[int], tails: list[list[int]]
) -> None:
    rows = [[*prefix, *tail] for tail in tails]
    columns = zip(*rows, strict=False)
    expected = len(list(takewhile(lambda column: len(set(column)) == 1, columns)))
    assert common_prefix_length(*(np.array(row, np.int32) for row in rows)) == expected


@pytest.mark.parametrize(
    ("left", "right", "length"),
    [([], [], 0), ([], [1], 0), ([1, 2], [1, 2, 3], 2), ([1, 2], [2], 0), ([0, 1], [0, 2], 1)],
)
def test_the_common_prefix_of_a_sequence_that_ends_or_differs_at_once(
    left: list[int], right: list[int], length: int
) -> None:
    assert common_prefix_length(np.array(left, np.int32), np.array(right, np.int32)) == length
