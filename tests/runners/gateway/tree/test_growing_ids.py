"""A path of token ids grows in place, and what was returned before stays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.gateway.tree.growing_ids import GrowingIds
from runners.records.record import IdArray


def ids(*values: int) -> IdArray:
    return np.array(values, np.int32)


@given(st.lists(st.tuples(st.integers(0, 30), st.lists(st.integers(0, 99), max_size=9))))
def test_every_path_that_was_returned_keeps_its_ids(steps: list[tuple[int, list[int]]]) -> None:
    memory = GrowingIds()
    paths, expected = [ids()], [ids()]
    for choice, added in steps:
        at = choice % len(paths)
        paths.append(memory.append(paths[at], ids(*added)))
        expected.append(np.concatenate([expected[at], ids(*added)]))
        for path, whole in zip(paths, expected, strict=True):
            np.testing.assert_array_equal(path, whole)


def test_a_path_is_continued_in_place() -> None:
    memory = GrowingIds()
    path = memory.append(np.arange(1000, dtype=np.int32), ids(1))
    longer = memory.append(path, ids(2, 3))
    assert np.shares_memory(path, longer)
    other = memory.append(path, ids(4))
    assert not np.shares_memory(path, other)
    assert longer[-2:].tolist() == [2, 3]


def test_a_path_cannot_be_written() -> None:
    path = GrowingIds().append(ids(1), ids(2))
    with pytest.raises(ValueError, match="read-only"):
        path[0] = 5
