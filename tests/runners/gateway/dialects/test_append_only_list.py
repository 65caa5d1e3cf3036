"""A growing list is what a plain list would be, whatever else continued the same memory."""

from __future__ import annotations

from weakref import ref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.gateway.dialects.append_only_list import AppendOnlyList

Step = tuple[int, int, list[int]]
STEPS: st.SearchStrategy[list[Step]] = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 3), st.lists(st.integers(), max_size=3)),
    max_size=15,
)


@given(STEPS, st.data())
def test_lists_stay_what_they_were(steps: list[Step], data: st.DataObject) -> None:
    lists = [(AppendOnlyList([1, 2, 3]), [1, 2, 3])]
    for chosen, dropped, added in steps:
        grown, plain = lists[chosen % len(lists)]
        length = max(0, len(plain) - dropped)
        lists.append((grown.continue_from(length, added), plain[:length] + added))
        first, start = data.draw(st.integers(0, 2)), data.draw(st.integers(0, length))
        lists.append((grown.prefixed(first, start), [first, *plain[start:]]))
    for grown, plain in lists:
        assert grown == plain
        assert len(grown) == len(plain)
        assert list(grown) == [grown[place] for place in range(len(plain))]
        assert [*reversed(grown)] == plain[::-1]
        place = data.draw(st.slices(len(plain)))
        assert grown[place] == plain[place]
        for other, others in lists:
            shared = grown.count_shared(other)
            assert plain[:shared] == others[:shared]


def test_a_continuation_shares_the_memory_of_what_it_continues() -> None:
    first = AppendOnlyList([1, 2])
    second = first.continue_from(2, [3])
    assert second.count_shared(first) == 2
    assert second.continue_from(3, [4]).count_shared(second) == 3
    assert first.continue_from(2, [5]).count_shared(first) == 0  # 3 stands there


def test_a_list_that_was_cut_keeps_nothing_of_the_rest() -> None:
    class Item:
        pass

    first, rest = Item(), Item()
    whole, gone = AppendOnlyList([first, rest]), ref(rest)
    cut, led = whole.continue_from(1), whole.prefixed(first).continue_from(2)
    del whole, rest
    assert gone() is None
    assert (list(cut), list(led)) == ([first], [first, first])


def test_lists_behind_the_same_first_item_continue_each_other() -> None:
    first = AppendOnlyList([1, 2])
    led = first.prefixed(0)
    assert first.continue_from(2, [3]).prefixed(0).count_shared(led) == 3
    assert first.prefixed(7).count_shared(led) == 0


def test_a_place_behind_the_end_is_no_item() -> None:
    shorter = AppendOnlyList([1, 2, 3]).continue_from(2)
    for place in (2, -3):
        with pytest.raises(IndexError):
            shorter[place]
