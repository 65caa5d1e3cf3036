"""The built-in tasks: their rows, and the same verdicts from our judge and the official one."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from conf.sections.task import SwebenchTaskConfig
from runners.sandboxes.contract import SandboxSpec
from runners.sandboxes.local.backend import LocalBackend
from runners.tasks import builtin
from runners.tasks.contract import ScriptGrading, Task, Verdict, VerdictKind
from runners.tasks.grading.graders import packages
from runners.tasks.grading.graders.eval_script import run_script, script_mounts
from runners.tasks.grading.graders.parsers import judge_report, judge_run
from runners.tasks.grading.grading import apply_patch
from runners.tasks.patches.patch import decode_patch
from runners.tasks.repositories.task_repositories import TaskRepositories
from runners.tasks.sets.dataset_report import load_dataset

pytestmark = pytest.mark.integration

AT_ONCE = 2


@pytest.fixture(scope="module")
def instances(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return builtin.build(tmp_path_factory.mktemp("set") / "made")


@pytest.fixture(scope="module")
def tasks(instances: Path) -> list[Task]:
    choice = SwebenchTaskConfig(
        kind="swebench",
        path=str(instances),
        format="auto",
        repositories=None,
        grader="own",
        flaky_reruns=0,
        canaries=0,
    )
    return load_dataset(choice, str(instances))


def test_there_are_enough_instances_of_several_repositories(tasks: list[Task]) -> None:
    assert len(tasks) >= 12
    assert len({task.kind for task in tasks}) >= 4
    assert all(task.fail_to_pass and task.pass_to_pass for task in tasks)


def test_the_same_sources_give_the_same_commits(instances: Path, tmp_path: Path) -> None:
    again = builtin.build(tmp_path / "again")
    assert again.read_bytes() == instances.read_bytes()


def test_a_row_has_the_fields_of_swe_bench(instances: Path) -> None:
    row = json.loads(instances.read_text().splitlines()[0])
    assert {
        *("instance_id", "repo", "base_commit", "problem_statement", "patch", "test_patch"),
        *("FAIL_TO_PASS", "PASS_TO_PASS", "version", "environment_setup_commit"),
        *("image", "eval_script", "log_parser", "eval_type"),
    } <= row.keys()
    assert isinstance(json.loads(row["FAIL_TO_PASS"]), list)


async def both_verdicts(
    backend: LocalBackend, task: Task, diff: str, name: str
) -> tuple[Verdict, Verdict | None]:
    """Run the tests once; judge the log by ourselves, and by the package if it is installed."""
    assert isinstance(task.grading, ScriptGrading)
    official = packages.is_installed()
    script = packages.build_eval_script(task) if official else task.grading.script

    def change(root: Path) -> None:
        assert apply_patch(task, decode_patch(diff, {}), root) == ""

    sandbox = await backend.create(
        SandboxSpec(name, task.repo, "none", mounts=script_mounts(), change=change)
    )
    try:
        run = await run_script(task.grading.workdir, script, sandbox, 60)
    finally:
        await sandbox.close()
    if not official:
        return judge_run(task, run), None
    # As if pytest had reported nothing: the package's word alone.
    report = await asyncio.to_thread(packages.read_swebench, task, run.log)
    alone = judge_report(task, replace(run, began=False), report)
    return judge_run(task, run), replace(alone, official=None)


async def check_verdicts(backend: LocalBackend, tasks: list[Task], root: Path) -> None:
    """Check that gold solves, an empty patch does not, and both judges agree on each run."""
    repositories, room = TaskRepositories(backend, root), asyncio.Semaphore(AT_ONCE)

    async def check(task: Task) -> None:
        async with room:
            ready = await repositories.ensure(task)
            gold, gold_too = await both_verdicts(backend, ready, task.gold_patch, f"{task.id}-g")
            empty, empty_too = await both_verdicts(backend, ready, "", f"{task.id}-e")
        assert (gold.kind, gold.reason) == (VerdictKind.SOLVED, "all tests pass"), gold
        assert empty.kind is VerdictKind.UNSOLVED, empty
        assert empty.fail_to_pass_passed == 0
        assert empty.pass_to_pass_passed == empty.pass_to_pass_total
        if packages.is_installed():
            ours, theirs = (gold, empty), (gold_too, empty_too)
            assert [replace(v, tests=()) for v in ours] == [
                replace(v, tests=()) for v in theirs if v
            ]

    async with asyncio.TaskGroup() as group:
        for task in tasks:
            group.create_task(check(task))


async def test_both_judges_give_the_right_verdicts(
    backend: LocalBackend, tasks: list[Task], tmp_path: Path
) -> None:
    of_each = {task.kind: task for task in tasks}
    await check_verdicts(backend, list(of_each.values()), tmp_path / "root")


@pytest.mark.slow
async def test_both_judges_are_right_on_every_instance(
    backend: LocalBackend, tasks: list[Task], tmp_path: Path
) -> None:
    await check_verdicts(backend, tasks, tmp_path / "root")


async def test_a_workspace_holds_neither_the_fix_nor_its_tests(
    backend: LocalBackend, tasks: list[Task], tmp_path: Path
) -> None:
    repositories = TaskRepositories(backend, tmp_path / "root")
    first = next(task for task in tasks if task.id.endswith("textkit-1"))
    repo = (await repositories.ensure(first)).repo
    assert not (repo / ".git/packed-refs").exists()
    assert [path.name for path in (repo / ".git/refs").rglob("*") if path.is_file()] == ["main"]
    assert "test_max_length" not in (repo / "tests/test_slug.py").read_text()
