"""The reference of keys: whole, and in plain words."""

from __future__ import annotations

from pathlib import Path

import pytest

from conf.key_reference import find_page, list_keys
from conf.key_table import read_key_table
from conf.keys import CONF_DIR
from conf.type_words import describe_type
from conf.write_reference import render_page

DOCS = CONF_DIR.parent / "docs"


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


def test_a_field_that_is_declared_again_keeps_its_description() -> None:
    jsonl, swebench = (entry for entry in list_keys() if entry.key == "task.path")
    assert jsonl.comment.startswith("JSONL, JSON or Parquet file, Harbor task directories")
    assert swebench.comment.endswith("null: a small built-in set.")


def test_data_is_one_key() -> None:
    (architecture,) = (e for e in list_keys() if e.key.startswith("model.architecture"))
    assert (architecture.default, len(architecture.choices)) == ("{…}", 10)
    assert {e.default for e in list_keys() if e.key.startswith("harness.env")} == {"{}", "{…}"}


def test_the_table_of_keys_is_kept_until_a_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    read_key_table.cache_clear()
    assert read_key_table()["keys"]["run.steps"][2].startswith("Training steps")
    (kept,) = (tmp_path / "agentrl" / "tables").iterdir()
    kept.write_text('{"keys": "kept"}')
    read_key_table.cache_clear()
    assert read_key_table() == {"keys": "kept"}
    read_key_table.cache_clear()


def test_a_page_is_that_of_the_longest_beginning_or_of_the_comment() -> None:
    assert find_page("trainer.sft.path") == "algorithms.md"
    assert find_page("trainer.loss") == "algorithms.md"
    assert find_page("trainer.precision", "Numbers (docs/one_gpu.md).") == "one_gpu.md"
