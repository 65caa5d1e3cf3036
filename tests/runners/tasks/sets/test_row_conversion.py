"""Rows of any schema, written as JSONL: they are read as the same tasks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from conf.errors import ConfigError
from conf.sections.task import JsonlTaskConfig
from runners.tasks.contract import ScriptGrading, Task
from runners.tasks.sets.dataset_files import DatasetError
from runners.tasks.sets.dataset_report import read_dataset
from runners.tasks.sets.row_conversion import ConversionError, convert_rows
from tests.fakes.harbor_tasks import write_task
from tests.runners.tasks.dataset_rows import write
from tests.runners.tasks.example_repositories import make_task
from tests.runners.tasks.published_rows import MULTI_SWE, ROWS, WRAPPED

OWN_ID = ("swe_smith", "swebench_pro", "r2e_gym", "multi_swe", "eval_cmd", "f2p_script")


def read(path: Path, **changes: Any) -> tuple[JsonlTaskConfig, list[Task]]:
    """Return the configuration and the tasks of a dataset without faults."""
    values: dict[str, Any] = {"kind": "jsonl", "format": "auto", "repositories": None}
    values |= {"grader": "own", "flaky_reruns": 0, "canaries": 0, "held_out_tasks": 0, **changes}
    config = JsonlTaskConfig.model_validate({**values, "path": str(path)})
    report = read_dataset(config, str(path))
    assert not report.faults
    return config, list(report.tasks)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with all that rows may need beside them."""
    place = tmp_path / "from"
    scripts = place / "run_scripts" / ROWS["swebench_pro"]["instance_id"]
    scripts.mkdir(parents=True)
    (scripts / "run_script.sh").write_text("true\n")
    (scripts / "parser.py").write_text("pass\n")
    (place / "log_parsers.py").write_text("def parse_log_gotest(log):\n    return {}\n")
    make_task(place)
    return place


def test_rows_of_every_schema_and_layer_are_the_same_tasks(folder: Path, tmp_path: Path) -> None:
    rows = {name: row for name, row in ROWS.items() if name != "multi_swe"}
    rows = {
        name: row if name in OWN_ID else {**row, "instance_id": f"{name}-1"}
        for name, row in rows.items()
    }
    for name in ("eval_cmd", "f2p_script"):
        rows[name] = {**rows[name], "repo_path": "pristine"}
    layers = [
        {"metadata": {**ROWS["swe_rebench"], "instance_id": "in-layers"}, "prompt": "p" * 100},
        {**WRAPPED["gym"], "label": "unused"},
    ]
    config, tasks = read(write(folder / "rows.jsonl", [*rows.values(), *layers]))
    out = tmp_path / "to" / "all.jsonl"
    assert convert_rows(config, tasks, out) == tuple(task.id for task in tasks)
    (folder / "rows.jsonl").unlink()
    assert read(out)[1] == tasks
    written = [json.loads(line) for line in out.read_text().splitlines()]
    assert {row["task_format"] for row in written} == {*ROWS} - {"multi_swe"}
    assert not any("" in row.values() for row in written)
    assert not any({"metadata", "responses_create_params", "prompt"} & {*row} for row in written)
    assert not any(str(tmp_path) in line for line in out.read_text().splitlines())


def test_a_row_whose_schema_was_given_names_it(folder: Path, tmp_path: Path) -> None:
    row = {**ROWS["swebench"], "repo": "pandas-dev/pandas"}
    file = write(folder / "rows.jsonl", [row])
    config, tasks = read(file, format="swe_gym")
    convert_rows(config, tasks, tmp_path / "out.jsonl")
    assert read(tmp_path / "out.jsonl")[1] == tasks


def test_only_the_meant_tasks_are_written_and_clones_are_found_again(
    folder: Path, tmp_path: Path
) -> None:
    clones = tmp_path / "clones"
    clones.mkdir()
    made = make_task(clones)
    made.repo.rename(clones / "acme__calc")
    row = {**ROWS["swebench"], "base_commit": made.base_commit}
    rows = [{**row, "instance_id": f"a-{number}"} for number in range(3)]
    config, tasks = read(write(folder / "rows.jsonl", rows), repositories=clones)
    assert convert_rows(config, tasks[1:2], tmp_path / "out.jsonl") == ("a-1",)
    (found,) = read(tmp_path / "out.jsonl")[1]
    assert found.image is not None
    assert replace(found, grading=tasks[1].grading) == tasks[1]
    assert isinstance(found.grading, ScriptGrading)
    assert found.grading.script == getattr(tasks[1].grading, "script", None)


def test_values_that_only_parquet_has_are_written(folder: Path, tmp_path: Path) -> None:
    row = {**ROWS["swebench"], "score": float("nan"), "none": None}
    table = pa.Table.from_pylist([row]).append_column(
        "created_at", pa.array([0], pa.timestamp("s"))
    )
    pyarrow.parquet.write_table(table, folder / "rows.parquet")
    config, tasks = read(folder / "rows.parquet")
    convert_rows(config, tasks, tmp_path / "out.jsonl")
    assert read(tmp_path / "out.jsonl")[1] == tasks
    (written,) = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert written["created_at"] == "1970-01-01 00:00:00"
    assert not {"score", "none"} & {*written}


def test_what_cannot_be_written_is_refused_and_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    config, tasks = read(write(folder / "rows.jsonl", [ROWS["swebench"], ROWS["swe_rebench_v2"]]))
    with pytest.raises(ConfigError, match=r"no \.jsonl file"):
        convert_rows(config, tasks, tmp_path / "out.json")
    with pytest.raises(ConfigError, match="exists already"):
        convert_rows(config, tasks, folder / "rows.jsonl")
    with pytest.raises(ConversionError, match=r"/proc/none/out\.jsonl cannot be written: "):
        convert_rows(config, tasks, Path("/proc/none/out.jsonl"))
    (tmp_path / "log_parsers.py").write_text("other = 1\n")
    with pytest.raises(DatasetError, match="is another file than"):
        convert_rows(config, tasks, tmp_path / "out.jsonl")
    gone = [replace(tasks[0], id="packed")]
    with pytest.raises(ConversionError, match=r"no rows of their own \(packed\)"):
        convert_rows(config, gone, tmp_path / "out.jsonl")
    config, tasks = read(write_task(tmp_path / "suite" / "one").parent)
    with pytest.raises(ConversionError, match="Harbor directories, which are no rows"):
        convert_rows(config, tasks, tmp_path / "out.jsonl")
    assert {path.name for path in tmp_path.iterdir()} == {"from", "log_parsers.py", "suite"}


def test_a_row_that_names_an_unknown_schema_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", [{**MULTI_SWE, "task_format": "swe_bench"}])
    config = JsonlTaskConfig.model_validate(
        {"kind": "jsonl", "path": str(file), "format": "auto", "repositories": None}
        | {"grader": "own", "flaky_reruns": 0, "canaries": 0, "held_out_tasks": 0}
    )
    (fault,) = read_dataset(config, str(file)).faults
    assert "rows.jsonl:1: task_format='swe_bench' is no schema: swebench, " in fault
