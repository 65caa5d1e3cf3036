"""Dataset files: valid rows become tasks, malformed rows are reported with their line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from conf.compose import compose
from conf.errors import ConfigError
from runners.tasks.contract import ScriptGrading
from runners.tasks.repositories.pinned_repositories import SourceError, find_source
from runners.tasks.sets.dataset_files import DatasetError
from runners.tasks.sets.dataset_report import load_dataset, read_dataset
from runners.tasks.sets.task_sets import load_tasks
from tests.runners.tasks.dataset_rows import CLASSIC, config, write
from tests.runners.tasks.example_repositories import git, make_task


@pytest.fixture
def row(tmp_path: Path) -> dict[str, Any]:
    """Return a row whose repository is beside its file."""
    (tmp_path / "repo").mkdir()
    return {**CLASSIC, "repo_path": "repo"}


def test_valid_rows_become_tasks(tmp_path: Path, row: dict[str, Any]) -> None:
    file = write(tmp_path / "rows.jsonl", [row, "", {**row, "instance_id": "o__r-2"}])
    first, second = load_dataset(config(file), str(file))
    assert (first.id, second.id, first.kind) == ("o__r-1", "o__r-2", "o/r")
    assert first.protected == ("t.py",)
    assert first.origin is not None
    assert first.origin.source == str(tmp_path / "repo")
    assert isinstance(first.grading, ScriptGrading)
    assert "git apply -v -" in first.grading.script


def test_every_malformed_row_is_named_with_its_line(tmp_path: Path, row: dict[str, Any]) -> None:
    file = write(
        tmp_path / "rows.jsonl",
        [
            row,
            "{not json",
            "[1]",
            {**row, "instance_id": "x", "base_commit": "short"},
            row,
            {**row, "instance_id": "y", "repo_path": "elsewhere"},
            {**row, "instance_id": "z", "FAIL_TO_PASS": []},
            {"instance_id": "w", "problem_statement": "p", "repo": "o/r", "eval_cmd": "true"},
            {"instance_id": "v", "problem_statement": "p", "repo_path": "repo"},
        ],
    )
    report = read_dataset(config(file), str(file))
    assert [task.id for task in report.tasks] == ["o__r-1"]
    faults = dict(fault.split(": ", 1) for fault in report.faults)
    assert sorted(faults) == [f"rows.jsonl:{line}" for line in range(2, 10)]
    for line, words in {
        2: "not JSON",
        3: "a row must be an object, not list",
        4: "base_commit",
        5: "o__r-1 is in rows.jsonl:1 already",
        6: "repo_path=elsewhere: there is no",
        7: "FAIL_TO_PASS is empty",
        8: "task.repositories",
        9: "its grading is unknown",
    }.items():
        assert words in faults[f"rows.jsonl:{line}"]
    with pytest.raises(DatasetError, match="has 8 malformed rows") as caught:
        load_dataset(config(file), str(file))
    assert all(fault in str(caught.value) for fault in report.faults)


def test_a_commit_that_a_repository_does_not_have_is_named(tmp_path: Path) -> None:
    made = make_task(tmp_path)
    row = {**CLASSIC, "repo_path": made.repo.name, "base_commit": made.base_commit}
    rows = [row, {**row, "instance_id": "lost", "base_commit": "1" * 40}]
    file = write(tmp_path / "rows.jsonl", rows)
    assert read_dataset(config(file), str(file)).faults == (
        f"lost: {made.repo} has no commit {'1' * 40}: correct its base_commit, or fetch the commit "
        "there",
    )


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"base_commit": "main"}, "base_commit='main' is not a commit's full hash: 40 or 64 digits "
         "of 0-9a-f, as `git rev-parse` prints it"),
        ({"base_commit": None}, "base_commit is missing: add it, a commit's full hash"),
        ({"base_commit": 7}, "base_commit=7 is not a commit's full hash"),
        ({"instance_id": "../x\x1b"}, "instance_id='../x\\x1b' is not up to 128 letters"),
        ({"problem_statement": None}, "problem_statement is missing: add it"),
        ({"problem_statement": " "}, "problem_statement=' ' is not a text that is not empty"),
        ({"FAIL_TO_PASS": [1, 2]}, "FAIL_TO_PASS=1 is not a list of names, or the JSON"),
        ({"FAIL_TO_PASS": "t.py::a"}, "FAIL_TO_PASS='t.py::a' is not a list of names"),
        ({"patch": ["x"]}, "patch=['x'] is not a text"),
    ],
)  # fmt: skip
def test_a_fault_of_a_field_is_named_once_with_what_it_must_be(
    change: dict[str, Any], fault: str, tmp_path: Path, row: dict[str, Any]
) -> None:
    changed = {name: value for name, value in {**row, **change}.items() if value is not None}
    file = write(tmp_path / "rows.jsonl", [changed])
    [found] = read_dataset(config(file), str(file)).faults
    assert found.startswith(f"rows.jsonl:1: {fault}")
    assert ";" not in found.removeprefix(f"rows.jsonl:1: {fault}"), "one fault, told once"


def test_parquet_and_jsonl_give_the_same_tasks_and_faults(
    tmp_path: Path, row: dict[str, Any]
) -> None:
    rows = [row, {**row, "instance_id": "o__r-2", "base_commit": "short"}]
    jsonl = write(tmp_path / "rows.jsonl", rows)
    parquet = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), parquet)
    one, other = (read_dataset(config(file), str(file)) for file in (jsonl, parquet))
    assert one.tasks == other.tasks
    assert [f.replace("parquet", "jsonl") for f in other.faults] == list(one.faults)


def test_rows_are_held_out_by_their_ids(tmp_path: Path, row: dict[str, Any]) -> None:
    rows = [{**row, "instance_id": f"t-{n}"} for n in range(6)]
    file = tmp_path / "r.jsonl"
    settings = ["task=jsonl", f"task.path='{file}'", "run.tasks_per_step=1"]

    def split(*rows: dict[str, Any]) -> dict[str, str]:
        write(file, [*rows])
        tasks = load_tasks(compose([*settings, "task.held_out_tasks=2"]))
        return {task.id: task.split for task in tasks}

    found = split(*rows)
    assert sorted(found.values()) == ["held_out"] * 2 + ["train"] * 4
    assert split(*reversed(rows)) == found, "the place of a row decides nothing"
    with pytest.raises(DatasetError, match=r"task\.held_out_tasks=9 is more than the 6 rows"):
        load_tasks(compose([*settings, "task.held_out_tasks=9"]))


def test_a_file_that_is_not_a_dataset_is_refused(tmp_path: Path) -> None:
    for name, message in (
        ("none.jsonl", "no such file"),
        ("x.csv", "not a .jsonl"),
        ("e.jsonl", "no rows"),
    ):
        if name != "none.jsonl":
            (tmp_path / name).write_text("")
        with pytest.raises(DatasetError, match=message):
            load_dataset(config(tmp_path / name), str(tmp_path / name))
    (tmp_path / "bad.parquet").write_text("x")
    with pytest.raises(DatasetError, match="not a Parquet file"):
        load_dataset(config("x"), str(tmp_path / "bad.parquet"))


def test_repositories_are_found_by_their_names(tmp_path: Path) -> None:
    for name in ("a/b", "c__d.git", "f"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "g__h.bundle").write_text("")
    for repo, name in (("a/b", "a/b"), ("c/d", "c__d.git"), ("e/f", "f"), ("g/h", "g__h.bundle")):
        assert find_source("", repo, tmp_path, tmp_path) == str(tmp_path / name)
    assert find_source("https://host/x.git", "a/b", tmp_path, tmp_path) == "https://host/x.git"
    with pytest.raises(SourceError, match="git clone --mirror"):
        find_source("", "x/y", tmp_path, tmp_path)


def test_tests_named_by_ids_and_commands_are_protected(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    base = {"problem_statement": "p", "repo_path": str(task.repo), "workdir": "/repo"}
    file = write(
        tmp_path / "rows.jsonl",
        [
            {**base, "instance_id": "c", "eval_cmd": "python -m pytest /repo/tests/test_add.py -q"},
            {
                **base,
                "instance_id": "p",
                "run_script": "x",
                "parser_script": "y",
                "selected_test_files": ["tests/a.py", "tests/b.py::T"],
                "fail_to_pass": ["x"],
                "pass_to_pass": [],
            },
        ],
    )
    command, pro = load_dataset(config(file), str(file))
    assert isinstance(command.grading, ScriptGrading)
    assert "tests/test_add.py" in command.protected
    assert command.base_commit == git(task.repo, "rev-parse", "HEAD")
    assert isinstance(pro.grading, ScriptGrading)
    assert pro.protected == ("tests/a.py", "tests/b.py")


def test_too_few_tasks_to_train_on_are_refused(tmp_path: Path, row: dict[str, Any]) -> None:
    file = write(tmp_path / "r.jsonl", [{**row, "instance_id": f"t-{n}"} for n in range(4)])
    fits = ("task=jsonl", f"task.path='{file}'", "run.eval_tasks=1", "run.tasks_per_step=3")
    assert len(load_tasks(compose([*fits]))) == 4
    with pytest.raises(ConfigError, match=r"has 3 tasks to train on, run\.tasks_per_step=4"):
        load_tasks(compose([*fits, "run.tasks_per_step=4"]))
    with pytest.raises(ConfigError, match="train on task=jsonl"):
        load_tasks(compose(["task=swebench", f"task.path='{file}'"]))
