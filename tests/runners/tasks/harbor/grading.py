"""Grade a task by what a script of an agent leaves in its sandbox."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from runners.sandboxes.contract import SandboxBackend
from runners.sandboxes.wrappers import open_sandbox
from runners.tasks.contract import Task, Verdict
from runners.tasks.grading.graders.end_state import EndStateGrader
from runners.tasks.harbor.suites import read_task
from runners.tasks.repositories.task_repositories import TaskRepositories, describe_workspace

DEADLINE_S = 60.0


def make_grader(backend: SandboxBackend, root: Path) -> EndStateGrader:
    """Return a grader."""
    return EndStateGrader(backend, TaskRepositories(backend, root / "workspaces").ensure)


async def grade_agent(
    backend: SandboxBackend, place: Path, script: str, *, deadline_s: float = DEADLINE_S
) -> Verdict:
    """Return the verdict on a task after an agent has run a script."""
    ready = await TaskRepositories(backend, place.parent / "workspaces").ensure(read_task(place))
    spec = replace(describe_workspace(ready), name="agent")
    async with open_sandbox(backend, spec) as sandbox:
        if script:
            await sandbox.run(["bash", "-c", script], deadline_s=30)
        grader = make_grader(backend, place.parent)
        return await grader.grade(ready, sandbox, name="grade", deadline_s=deadline_s)


async def grade_reference(
    backend: SandboxBackend, place: Path, *, solve: bool
) -> tuple[Task, Verdict]:
    """Return a task, and the verdict on its solution or its untouched environment."""
    task = read_task(place)
    verdict = await make_grader(backend, place.parent).grade_reference(
        task, solve=solve, name="gold" if solve else "empty", deadline_s=DEADLINE_S
    )
    return task, verdict
