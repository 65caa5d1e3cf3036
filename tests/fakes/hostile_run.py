"""Run hostile programs in sandboxes, each through patch capture, removal and grading."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from runners.records.outcome import OutcomeCode
from runners.sandboxes.contract import OversizedError, SandboxSpec
from runners.sandboxes.local.backend import LocalBackend
from runners.tasks.contract import DEFAULT_LIMITS, Task
from runners.tasks.grading.grading import SandboxGrader
from runners.tasks.patches.patch import capture_patch

DEADLINE_S = 5.0
"""Of a program: some wait for signals that they ignore."""
LIMITS = replace(DEFAULT_LIMITS, workspace_bytes=64 << 20, workspace_files=5000)


async def run_programs(
    backend: LocalBackend, task: Task, programs: Sequence[str], *, at_once: int = 2
) -> Counter[str]:
    """Run programs in a sandbox each; return how many ended in which outcome.

    ``infra``, ``internal`` and ``left`` count what must not happen: a grading without a verdict, an
    exception, a directory that stayed.
    """
    ended: Counter[str] = Counter()
    slots = asyncio.Semaphore(at_once)

    async def one(number: int, program: str) -> None:
        async with slots:
            ended[await _run(backend, task, number, program, ended)] += 1

    await asyncio.gather(*(one(number, program) for number, program in enumerate(programs)))
    return ended


async def _run(
    backend: LocalBackend, task: Task, number: int, program: str, ended: Counter[str]
) -> str:
    sandbox = await backend.create(SandboxSpec(f"p{number}", task.repo, "none"))
    outcome = str(OutcomeCode.POLICY_FINISHED)
    try:
        try:
            result = await sandbox.run(["bash", "-c", program], deadline_s=DEADLINE_S)
            if result.timed_out:
                outcome = str(OutcomeCode.BUDGET_WALL)
        except OversizedError:
            return str(OutcomeCode.POLICY_FILLED_DISK)
        patch = await capture_patch(task, sandbox, LIMITS, deadline_s=120)
    except Exception as error:  # a rollout's boundary: it is what is counted
        return f"internal: {type(error).__name__}: {error}: {program!r}"
    finally:
        await sandbox.close()
        ended["left"] += sandbox.workspace.parent.exists()
    if patch.refused:
        return patch.refused_as
    grader = SandboxGrader(backend)
    verdict = await grader.grade(task, patch, name=f"g{number}", deadline_s=60)
    if verdict.kind == "infra":
        return f"infra: {verdict.reason}: {program!r}"
    return outcome


def find_left(*directories: Path) -> list[str]:
    """Return the names of what was set aside or stayed in directories."""
    return [
        path.name
        for directory in directories
        if directory.exists()
        for path in directory.iterdir()
        if path.name.startswith(".agentrl-left-")
    ]
