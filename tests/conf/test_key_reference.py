"""The reference of keys: whole, in plain words, and up to date."""

from __future__ import annotations

from pathlib import Path

import pytest

from conf.key_reference import find_page, list_keys
from conf.keys import CONF_DIR
from conf.type_words import describe_type
from conf.write_reference import PAGE, TABLE, render_page, render_table
from conf.yaml_comments import read_comments

DOCS = CONF_DIR.parent / "docs"


def test_the_reference_is_up_to_date() -> None:
    advice = "run: python -m conf.write_reference"
    assert PAGE.read_text("utf-8") == render_page(), advice
    assert TABLE.read_text("utf-8") == render_table(), advice


def test_every_key_is_one_line_of_a_table() -> None:
    rows = [line for line in render_page().splitlines() if line.startswith("| `")]
    assert len(rows) == len(list_keys())
    assert all(row.endswith(" |") for row in rows)


def test_every_key_has_a_type_a_comment_and_a_page() -> None:
    for entry in list_keys():
        assert entry.comment or entry.key.endswith(".kind"), entry.key
        assert (DOCS / entry.page).is_file(), f"{entry.key}: {entry.page}"
        assert entry.type != "any value", entry.key


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("run.steps", "whole number, at least 0"),
        ("sampling.temperature", "number, above 0, at most 10"),
        ("observe.dashboard", "auto, on or off"),
        ("run.dir", "path, or null"),
        ("trainer.recompute", "auto or true or false"),
        ("observe.tensorboard", "true or false"),
        ("engine.workers", "list of text"),
    ],
)
def test_a_type_is_described_in_plain_words(key: str, words: str) -> None:
    assert words in {entry.type for entry in list_keys() if entry.key == key}


def test_a_type_without_a_name_is_any_value() -> None:
    assert describe_type(object) == "any value"


def test_a_sentence_over_two_keys_is_whole_at_both(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(
        "# A head.\n\n# Below at low and\nlow: 1\n# above at high.\nhigh: 2\n"
        "# A part.\npart:\n  # Inner.\n  key: 3\nother: 4\n"
    )
    found = read_comments(file)
    assert found["low"] == found["high"] == "Below at low and above at high."
    assert (found["part"], found["part.key"]) == ("A part.", "Inner.")


def test_a_page_is_that_of_the_longest_beginning_or_of_the_comment() -> None:
    assert find_page("trainer.sft.path") == "algorithms.md"
    assert find_page("trainer.loss") == "algorithms.md"
    assert find_page("trainer.precision", "Numbers (docs/one_gpu.md).") == "one_gpu.md"
