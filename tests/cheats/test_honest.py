"""No honest solution is accused, or loses its reward to a canary."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from conf.sections.sandbox import LocalSandboxConfig
from conf.sections.task import SwebenchTaskConfig
from runners.sandboxes.local.backend import LocalBackend
from runners.tasks import bugfix, builtin
from runners.tasks.contract import Task, Verdict, VerdictKind
from runners.tasks.grading import RolloutResult
from runners.tasks.grading.canaries.verification import Verification
from runners.tasks.grading.graders.task_grader import TaskGrader
from runners.tasks.grading.grading import SandboxGrader
from runners.tasks.repositories.task_repositories import TaskRepositories
from runners.tasks.sets.dataset_report import load_dataset
from tests.cheats.honest import FORMS, honest_solutions
from tests.cheats.project import make_patch

SETTINGS = LocalSandboxConfig(
    kind="local", isolation="auto", memory_mb=512, processes=32, file_mb=8, cpu_s=20, warm=0
)


async def grade_all(root: Path, tasks: list[Task], *, level: int) -> dict[str, Verdict]:
    """Grade every honest solution of tasks, by task and form, two at a time."""
    backend = LocalBackend(SETTINGS, root / "sandboxes")
    run_tests, slots = SandboxGrader(backend), asyncio.Semaphore(2)
    repositories = TaskRepositories(backend, root / "repositories")
    grader = TaskGrader(run_tests, repositories.ensure, verification=Verification(run_tests, level))

    async def grade(task: Task, form: str, diff: str) -> tuple[str, Verdict]:
        async with slots:
            name = f"{task.id}-{form}"
            patch = make_patch(diff)
            return name, await grader.grade(
                task, RolloutResult.of_patch(patch), name=name, deadline_s=60
            )

    try:
        solutions = [
            (task, form, diff)
            for task in tasks
            for form, diff in (
                honest_solutions(task)
                if task.origin is None
                else [("reference", task.gold_patch), ("commented", _commented(task.gold_patch))]
            )
        ]
        return dict(await asyncio.gather(*(grade(*solution) for solution in solutions)))
    finally:
        await backend.close()


def _commented(diff: str) -> str:
    """Return a diff whose first hunk adds a comment to the first added line."""
    lines = diff.split("\n")
    at = next(
        number
        for number, line in enumerate(lines)
        if line.startswith("+    ") and line.rstrip()[-1] in ')]}:"0123456789'
    )
    return "\n".join([*lines[:at], f"{lines[at]}  # as the issue says", *lines[at + 1 :]])


def check(verdicts: dict[str, Verdict]) -> None:
    for name, verdict in verdicts.items():
        assert verdict.kind is VerdictKind.SOLVED, (name, verdict)
        assert (verdict.tampered, verdict.unverified, verdict.signs) == ("", "", ()), name


@pytest.mark.integration
async def test_a_few_honest_solutions_stay_solved(tmp_path: Path) -> None:
    tasks = bugfix.build(tmp_path / "tasks", seed=11, train=4, held_out=1)
    verdicts = await grade_all(tmp_path, tasks[:4], level=2)
    assert len(verdicts) == 4 * len(FORMS)
    check(verdicts)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [21, 22, 23, 24])
async def test_five_hundred_honest_solutions_stay_solved(tmp_path: Path, seed: int) -> None:
    tasks = bugfix.build(tmp_path / "tasks", seed=seed, train=19, held_out=1)
    verdicts = await grade_all(tmp_path, tasks, level=2)
    assert len(verdicts) == 20 * len(FORMS)
    check(verdicts)


@pytest.mark.slow
async def test_the_built_in_tasks_stay_solved(tmp_path: Path) -> None:
    instances = builtin.build(tmp_path / "built-in")
    config = SwebenchTaskConfig(
        kind="swebench",
        path=str(instances),
        format="auto",
        repositories=None,
        grader="own",
        flaky_reruns=0,
        canaries=2,
    )
    tasks = [replace(task, split="train") for task in load_dataset(config, str(instances))]
    verdicts = await grade_all(tmp_path, tasks, level=2)
    assert len(verdicts) == 2 * len(tasks)
    check(verdicts)
