"""Refuse a run with everything that is wrong, before anything of it is made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from cli.invocation import report_problems, stderr

if TYPE_CHECKING:
    from cli.jobs import Job
    from conf.errors import AgentrlError
    from launch.preflight import Problem


def find_start_errors(
    jobs: Sequence[Job], *, benchmark: str | None = None, uses_policy: bool = True
) -> list[AgentrlError]:
    """Return what would refuse the jobs: their tasks, their policy's files, their engine."""
    from runners.preflight import start_check

    configs = [job.config for job in jobs]
    text = "reading the tasks, looking at the engine…"
    with stderr().status(text) as status:
        return start_check.find_start_errors(
            configs,
            benchmark=benchmark,
            uses_policy=uses_policy,
            show=lambda progress: status.update(f"{text} {progress}"),
        )


def refuse_start(problems: Iterable[Problem], errors: Sequence[AgentrlError]) -> None:
    """Raise everything that is fatal as one error; else print the warnings."""
    from launch.preflight import PreflightError
    from runners.preflight.start_check import refuse

    problems = list(dict.fromkeys(problems))
    fatal = [problem.message for problem in problems if problem.fatal]
    refuse([*errors, *map(PreflightError, fatal)])
    report_problems(problems)
