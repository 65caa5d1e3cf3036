"""The figures that every check prints."""

from __future__ import annotations

from pathlib import Path

from tests.budgets import compare, count_lines, count_options


def test_lines_are_counted_by_district_and_in_all(tmp_path: Path) -> None:
    files = {
        "cli/run.py": 3,
        "conf/schema.py": 2,
        "conf/group/a.yaml": 4,
        "runners/gateway/tree/a.py": 5,
        "runners/gateway/b.py": 7,
        "tests/runners/gateway/test_b.py": 11,
    }
    for name, lines in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("\n" * lines)
    assert count_lines(tmp_path) == {
        "lines cli": 3,
        "lines conf": 2,
        "lines of YAML": 4,
        "lines of source": 17,
        "lines of tests": 11,
        "lines runners/gateway": 12,
        "lines tests/runners": 11,
    }


def test_options_of_sub_commands_are_counted() -> None:
    assert count_options() > 50


def test_what_rises_or_is_new_says_by_how_much() -> None:
    figures = {"keys": 12, "options": 5, "new": 2, "seconds of unit tests": 105}
    budget = {"keys": 10, "options": 5, "gone": 1, "seconds of unit tests": 100}
    rises = {line.split("  ")[0]: "rises" in line for line in compare(figures, budget)}
    assert rises == {
        "gone": False,
        "keys": True,
        "new": True,
        "options": False,
        "seconds of unit tests": False,
    }
