"""The common prefix of token sequences, against a definition in plain Python."""

from __future__ import annotations

from itertools import takewhile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.records.graph import common_prefix_length

IDS = st.lists(st.integers(0, 2), max_size=6)


@given(IDS, st.lists(IDS, min_size=1, max_size=4))
def test_it_is_the_prefix_that_all_sequences_share(
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
def test_a_sequence_that_ends_or_differs_at_once(
    left: list[int], right: list[int], length: int
) -> None:
    assert common_prefix_length(np.array(left, np.int32), np.array(right, np.int32)) == length
