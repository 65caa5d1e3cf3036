"""Datasets read and graded by plug-ins."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from conf.compose import compose
from conf.errors import ConfigError
from conf.sections.plugin import PluginConfig
from conf.sections.task import JsonlTaskConfig
from runners.sandboxes.contract import Sandbox
from runners.sandboxes.local.backend import LocalBackend
from runners.sandboxes.tree import copy_tree
from runners.system.plugins.calls import PluginFailedError
from runners.tasks.contract import CustomGrading, ScriptGrading, Task, Verdict, VerdictKind
from runners.tasks.grading.canaries.coverage import count_uncheckable
from runners.tasks.grading.graders.custom import judge_custom
from runners.tasks.grading.grading import SandboxGrader
from runners.tasks.patches.workspace_diff import diff_workspace
from runners.tasks.sets.dataset_files import DatasetError
from runners.tasks.sets.dataset_report import load_dataset, read_dataset
from tests.runners.tasks.example_repositories import FIX, make_task

CODE = """
import csv, json

def from_csv(path, *, command: str = "true"):
    with path.open() as file:
        for fields in csv.DictReader(file):
            if fields["id"] == "raise":
                raise RuntimeError("torn page")
            if fields["id"] == "exit":
                raise SystemExit(3)
            yield "text" if fields["id"] == "text" else {
                "instance_id": fields["id"], "problem_statement": fields["problem"],
                "repo_path": "pristine", "eval_cmd": command,
            }

def plain(path):
    for line in path.open():
        yield {**json.loads(line), "repo_path": "pristine", "repo": ""}

class Numeric:
    async def __call__(self, row, sandbox, deadline_s):
        done = await sandbox.run(["cat", "score.txt"], deadline_s=deadline_s)
        if done.exit_code:
            return row["weight"] * 0.25
        return float(done.stdout)

class Exits:
    async def __call__(self, row, sandbox, deadline_s):
        raise SystemExit(3)

class Broken:
    async def __call__(self, row, sandbox, deadline_s):
        raise RuntimeError("no such model")
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    make_task(tmp_path)
    (tmp_path / "mine.py").write_text(CODE)
    return tmp_path


def section(path: Path, **plugins: str) -> JsonlTaskConfig:
    code = path.parent / "mine.py"
    lines = [f"task.{key}={{target: '{code}:{name}'}}" for key, name in plugins.items()]
    config = compose(["task=jsonl", f"task.path={path}", *lines]).task
    assert isinstance(config, JsonlTaskConfig)
    return config


def write_csv(place: Path, *ids: str) -> Path:
    file = place / "rows.csv"
    file.write_text("id,problem\n" + "".join(f"{name},Fix {name}.\n" for name in ids))
    return file


def test_a_plugin_reads_a_form_of_its_own(place: Path) -> None:
    file = write_csv(place, "one", "two")
    first, second = load_dataset(section(file, format="from_csv"), str(file))
    assert (first.id, second.problem_statement) == ("one", "Fix two.")
    assert first.grading == ScriptGrading("eval_cmd", "true", "/testbed")
    assert first.origin is not None
    assert first.origin.source == str(place / "pristine")


def test_its_rows_are_validated_like_any_others(place: Path) -> None:
    file = write_csv(place, "one", "../two", "text", "one")
    report = read_dataset(section(file, format="from_csv"), str(file))
    assert [task.id for task in report.tasks] == ["one"]
    second, third, fourth = report.faults
    assert second.startswith(f"{file}, row 2: instance_id='../two' is not up to 128 letters")
    assert third == f"{file}, row 3: task.format yields rows that are mappings, not str"
    assert "row 4: one is in" in fourth


@pytest.mark.parametrize(
    ("row", "fault"), [("raise", "RuntimeError: torn page"), ("exit", "SystemExit: 3")]
)
def test_a_reader_that_fails_is_named_with_its_row(place: Path, row: str, fault: str) -> None:
    file = write_csv(place, "one", row)
    with pytest.raises(DatasetError, match=rf"after row 1: .*raised {fault}"):
        read_dataset(section(file, format="from_csv"), str(file))


def test_rows_without_tests_need_a_grader(place: Path) -> None:
    file = place / "rows.jsonl"
    file.write_text(json.dumps({"instance_id": "a", "problem_statement": "p", "weight": 2}) + "\n")
    with pytest.raises(DatasetError, match="its grading is unknown"):
        load_dataset(section(file, format="plain"), str(file))
    (task,) = load_dataset(section(file, format="plain", grader="Numeric"), str(file))
    assert isinstance(task.grading, CustomGrading)
    assert json.loads(task.grading.row)["weight"] == 2
    assert count_uncheckable([task]) == {"graded by a plug-in": 1}


def scored(task: Task, code: Path, name: str) -> Task:
    plugin = PluginConfig(target=f"{code}:{name}").model_dump_json()
    return replace(task, grading=CustomGrading(plugin, json.dumps({"weight": 2})))


async def test_a_grader_that_exits_ends_its_own_grading_only(place: Path, tmp_path: Path) -> None:
    task = scored(make_task(tmp_path / "other"), place / "mine.py", "Exits")
    unused = SimpleNamespace(spec=None, workdir="/", gateway_url=None)
    with pytest.raises(PluginFailedError, match="Exits raised SystemExit: 3"):
        await judge_custom(task, cast("Sandbox", unused), 5.0)


async def grade(backend: LocalBackend, task: Task, tmp_path: Path, **files: str) -> Verdict:
    tmp_path.mkdir(exist_ok=True)
    workspace = tmp_path / "workspace"
    copy_tree(task.repo, workspace)
    for name, text in files.items():
        (workspace / name.replace("__", ".")).write_text(text)
    patch = diff_workspace(task, workspace)
    return await SandboxGrader(backend).grade(task, patch, name="grade", deadline_s=30)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("score", "kind", "part"),
    [("1", VerdictKind.SOLVED, 0.0), ("1.5", VerdictKind.SOLVED, 0.0),
     ("0.75", VerdictKind.UNSOLVED, 0.75), ("-3", VerdictKind.UNSOLVED, 0.0)],
)  # fmt: skip
async def test_a_score_solves_from_one_and_is_a_part_below(
    backend: LocalBackend, place: Path, tmp_path: Path, score: str, kind: VerdictKind, part: float
) -> None:
    task = scored(make_task(tmp_path / "other"), place / "mine.py", "Numeric")
    verdict = await grade(backend, task, tmp_path, score__txt=score)
    assert (verdict.kind, verdict.part) == (kind, part)
    assert verdict.rewards == (("reward", float(score)),)


@pytest.mark.integration
async def test_a_patch_that_makes_the_grader_raise_is_unsolved_and_a_broken_grader_is_no_verdict(
    backend: LocalBackend, place: Path, tmp_path: Path
) -> None:
    task = make_task(tmp_path / "other")
    numeric = scored(task, place / "mine.py", "Numeric")
    verdict = await grade(backend, numeric, tmp_path, score__txt="no number")
    assert verdict.kind is VerdictKind.UNSOLVED
    assert verdict.reason.startswith("with this patch, and not without it, task.grader=")
    verdict = await grade(backend, numeric, tmp_path / "again", score__txt="nan")
    assert verdict.kind is VerdictKind.UNSOLVED
    broken = scored(task, place / "mine.py", "Broken")
    verdict = await grade(backend, broken, tmp_path / "broken", calc__py=FIX)
    assert (verdict.kind, "no such model" in verdict.reason) == (VerdictKind.INFRA, True)


def test_a_wrong_grader_is_refused(place: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean official"):
        compose(["task=jsonl", "task.path=rows", "task.grader=offical"])
