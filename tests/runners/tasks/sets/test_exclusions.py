"""Tasks that are set aside by name: from a calibration, or from a list of one's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conf.absolute_paths import make_paths_absolute
from conf.compose import compose
from conf.sections.task import JsonlTaskConfig
from runners.tasks.sets.dataset_files import DatasetError
from runners.tasks.sets.dataset_report import DatasetReport, read_dataset
from tests.runners.tasks.dataset_rows import CLASSIC, config, write


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    (tmp_path / "repo").mkdir()
    ids = ("a__x-1", "a__x-2", "b__y-1")
    row = {**CLASSIC, "repo_path": "repo"}
    return write(tmp_path / "rows.jsonl", [{**row, "instance_id": name} for name in ids])


def read(rows: Path, text: str, name: str = "aside.txt") -> DatasetReport:
    (rows.parent / name).write_text(text)
    settings = config(rows).model_copy(update={"exclude": rows.parent / name})
    return read_dataset(settings, str(rows))


def test_ids_and_globs_are_set_aside_with_their_reason(rows: Path) -> None:
    report = read(rows, "# mine\na__*  # too slow\n\n")
    assert [task.id for task in report.tasks] == ["b__y-1"]
    assert report.aside == {"a__x-1": "too slow", "a__x-2": "too slow"}
    assert report.repositories == {"o/r": 1}


def test_the_file_of_a_calibration_is_taken_as_it_is(rows: Path) -> None:
    found = {"set_aside": {"a__x-2": "the empty patch solves it"}, "not_graded": {"b__y-1": "?"}}
    report = read(rows, json.dumps(found), "calibration.json")
    assert [task.id for task in report.tasks] == ["a__x-1", "b__y-1"]
    assert report.aside == found["set_aside"]


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        ("a__x-3\n", "aside.txt", r"not there: a__x-3 \(did you mean a__x-\d\?\)"),
        ("z*\n", "aside.txt", r"not there: z\*"),
        ("*\n", "aside.txt", "excludes all 3 tasks"),
        ("[]", "calibration.json", "neither a calibration"),
        ("[" * 5000, "calibration.json", "neither a calibration"),
        ('{"set_aside": ["a"]}', "calibration.json", "neither a calibration"),
    ],
)
def test_a_file_that_names_others_or_all_is_refused(
    rows: Path, text: str, name: str, words: str
) -> None:
    with pytest.raises(DatasetError, match=words):
        read(rows, text, name)


def test_a_missing_file_is_refused(rows: Path) -> None:
    settings = config(rows).model_copy(update={"exclude": rows.parent / "none"})
    with pytest.raises(DatasetError, match=r"task\.exclude="):
        read_dataset(settings, str(rows))


def test_tasks_that_are_bad_for_everybody_are_set_aside_where_they_are(rows: Path) -> None:
    row = {**CLASSIC, "repo_path": "repo"}
    ids = ("psf__requests-1963", "own__one-1")
    write(rows, [{**row, "instance_id": name} for name in ids])
    lines = ["task=jsonl", f"task.path={rows}", "task.exclude=known_bad"]
    family = make_paths_absolute(compose(lines)).task
    assert isinstance(family, JsonlTaskConfig)
    report = read_dataset(family, str(rows))
    assert [task.id for task in report.tasks] == ["own__one-1"]
    assert report.aside == {"psf__requests-1963": "now and then: SWE-bench/SWE-bench issue 167"}
