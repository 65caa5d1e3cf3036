"""Abbreviations of names: beginnings of their words, in order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf.suggestions import abbreviates

WORDS = st.lists(st.text("abc", min_size=1, max_size=6), min_size=1, max_size=4)


@given(WORDS, st.data())
def test_beginnings_of_all_words_are_an_abbreviation(words: list[str], data: st.DataObject) -> None:
    parts = [word[: data.draw(st.integers(1, len(word)))] for word in words]
    name = "_".join(words)
    assert abbreviates("".join(parts), name)
    assert abbreviates("_".join(parts), name)
    assert not abbreviates("".join(parts) + "x", name)


@pytest.mark.parametrize(
    ("short", "name", "known"),
    [
        ("lr", "learning_rate", True),
        ("lr", "lora_rank_max", False),  # a word is missing
        ("ent", "entropy_bonus", True),
        ("rl", "learning_rate", False),
        ("ern", "learning_rate", False),
        ("", "learning_rate", False),
    ],
)
def test_only_long_ones_may_leave_out_words_at_the_end(short: str, name: str, known: bool) -> None:
    assert abbreviates(short, name) == known
