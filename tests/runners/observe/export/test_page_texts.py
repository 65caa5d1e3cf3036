"""The page's texts and lists are bounded, whoever wrote them."""

from __future__ import annotations

from runners.observe.export.page_texts import ITEMS, LATER, TEXT, TOTAL, TextCutter
from runners.records.text import dumps


def test_long_texts_are_cut_and_say_so() -> None:
    cutter = TextCutter()
    first, last = cutter.cut([{"a": "x" * (TEXT + 5)}, 3])
    assert first["a"].startswith("x" * TEXT + "\n… 5 more characters")
    assert last == 3
    for _ in range(TOTAL // TEXT):
        cutter.cut("x" * TEXT)
    assert cutter.cut("y" * 1000).startswith("y" * LATER + "\n…")


def test_lists_that_somebody_wrote_are_cut_and_those_of_the_record_are_not() -> None:
    many = ["x" * 60] * 200_000
    document = {"turns": [{"sent": [{"content": many}]}, {"reply": {"a": many}}], "ids": many}
    cut = TextCutter().cut(document)
    assert len(cut["turns"][0]["sent"][0]["content"]) == ITEMS + 1
    assert "199,000 more" in cut["turns"][1]["reply"]["a"][-1]
    assert len(cut["ids"]) == 200_000
    assert len(dumps(TextCutter().cut({"sent": [[many] * 900] * 900}))) < 3 * TOTAL
