"""Refuse a run with everything that is wrong, before anything of it is made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from cli.invocation import report_problems, stderr

if TYPE_CHECKING:
    from cli.task_counts import Reports
    from conf.errors import AgentrlError
    from launch.preflight import Problem
    from runners.campaigns.jobs import Job
    from runners.campaigns.preflight.start_check import NoteSets


def find_start_errors(
    jobs: Sequence[Job],
    *,
    benchmark: str | None = None,
    uses_policy: bool = True,
    note_sets: NoteSets = lambda sets: None,
) -> list[AgentrlError]:
    """Return what would refuse the jobs: their tasks, their policy's files, their engine.

    ``note_sets`` gets the sets of tasks of each job.
    """
    from runners.campaigns.preflight import start_check

    configs = [job.config for job in jobs]
    text = "reading the tasks, looking at the engine…"
    with stderr().status(text) as status:
        return start_check.find_start_errors(
            configs,
            benchmark=benchmark,
            uses_policy=uses_policy,
            show=lambda progress: status.update(f"{text} {progress}"),
            note_sets=note_sets,
        )


def report_sets(found: Sequence[Reports]) -> None:
    """Print the sizes of the sets of tasks to stderr, as a part of a run's head."""
    from cli.task_counts import count_sets
    from runners.records.printable import make_printable

    lines = [f"{use} {number}" for sets in found for use, number in count_sets(sets)]
    for line in dict.fromkeys(lines):  # those of a sweep are often the same
        stderr().print(make_printable(line), style="bright_black", soft_wrap=True)


def report_examples(jobs: Sequence[Job]) -> None:
    """Print to stderr how many examples the jobs' supervised steps have."""
    from runners.services.run_examples import check_examples, describe_examples

    lines = []
    for config in (job.config for job in jobs):
        examples = check_examples(config)
        if examples is not None:
            lines.append(f"examples {describe_examples(config, examples)}")
    for line in dict.fromkeys(lines):
        stderr().print(line, style="bright_black", soft_wrap=True)


def refuse_start(problems: Iterable[Problem], errors: Sequence[AgentrlError]) -> None:
    """Raise everything that is fatal as one error; else print the warnings."""
    from launch.preflight import PreflightError
    from runners.campaigns.preflight.start_check import refuse

    problems = list(dict.fromkeys(problems))
    fatal = [problem.message for problem in problems if problem.fatal]
    refuse([*errors, *map(PreflightError, fatal)])
    report_problems(problems)
