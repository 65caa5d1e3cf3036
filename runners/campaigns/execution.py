"""Check and execute runs on this machine: for the commands, and for the package ``agentrl``.

What a person should know before a run is printed to stderr.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from conf.errors import AgentrlError, ConfigError
from conf.exact_tokens import describe_inexactness
from conf.plan_numbers import find_key_numbers
from conf.schema import Config
from launch.local import plan_local_run
from launch.preflight import PreflightError, Problem, find_problems
from runners.campaigns.evaluation.benchmarks import TASKS, Benchmark
from runners.campaigns.evaluation.plan import select_tasks
from runners.campaigns.jobs import Job
from runners.campaigns.preflight import start_check
from runners.campaigns.preflight.start_check import NoteSets
from runners.observe.console import make_console, report_warning
from runners.observe.live import CampaignResult
from runners.records.text import make_printable
from runners.services.policy import check_examples, describe_examples
from runners.tasks.sets import DatasetReport

if TYPE_CHECKING:
    from runners.campaigns.evaluation.calibration import CalibrationResult
    from runners.campaigns.evaluation.run import EvaluationResult

Reports = Mapping[str, DatasetReport]
"""Reports on the sets of tasks, by their places in the configuration."""


def check_campaigns(jobs: Sequence[Job]) -> None:
    """Raise one AgentrlError with everything that would refuse campaigns; print the warnings."""
    plans = [plan_local_run(job.config, job.run_dir) for job in jobs]
    sets: list[Reports] = []
    errors = find_start_errors(jobs, here=True, note_sets=sets.append)
    report_sets(sets)
    refuse_start((problem for plan in plans for problem in plan.problems), errors)


def execute_campaign(job: Job) -> CampaignResult:
    """Run or continue a campaign to its end; raises AgentrlError if it cannot start."""
    from runners.campaigns.run import run_campaign

    report_head(job.config, job.run_dir)
    job.write_config()
    return run_campaign(
        job.config, job.run_dir, resume=job.resume, rewind=job.rewind, replayed=job.replayed
    )


def check_evaluations(jobs: Sequence[Job], benchmark: Benchmark) -> None:
    """Raise one AgentrlError with everything that would refuse evaluations or checks of tasks."""
    sets: list[Reports] = []
    uses_policy = benchmark is not TASKS
    errors = find_start_errors(
        jobs, benchmark=benchmark.name, uses_policy=uses_policy, note_sets=sets.append
    )
    report_sets(sets)
    found = (
        find_problems(job.config, job.run_dir, trains=False, uses_policy=uses_policy)
        for job in jobs
    )
    refuse_start((problem for problems in found for problem in problems), errors)
    _check_selections(jobs, benchmark)


def _check_selections(jobs: Sequence[Job], benchmark: Benchmark) -> None:
    """Raise ConfigError if ``eval.ids`` or ``eval.offset`` leave no job a task, before a run
    directory is made; one job of several is a row of their comparison. The ids of generated tasks
    are known only once they are made; the run needs them, too.
    """
    faults = []
    for job in jobs:
        if (job.config.eval.ids, job.config.eval.offset) == ("*", 0):
            return
        try:
            select_tasks(benchmark, job.config)
        except ConfigError as error:
            faults.append(error)
        else:
            return
    if faults:
        raise faults[0]


def execute_evaluation(benchmark: Benchmark, job: Job) -> EvaluationResult:
    """Run or continue an evaluation to its end; raises AgentrlError if it cannot start."""
    from runners.campaigns.evaluation.run import run_evaluation

    report_head(job.config, job.run_dir)
    job.write_config()
    return run_evaluation(benchmark, job.config, job.run_dir, resume=job.resume)


def execute_calibration(job: Job) -> CalibrationResult:
    """Run or continue a check of tasks to its end; raises AgentrlError if it cannot start."""
    from runners.campaigns.evaluation.calibration import calibrate

    report_head(job.config, job.run_dir, uses_policy=False)
    job.write_config()
    return calibrate(job.config, job.run_dir, resume=job.resume)


def find_start_errors(
    jobs: Sequence[Job],
    *,
    benchmark: str | None = None,
    uses_policy: bool = True,
    here: bool = False,
    note_sets: NoteSets = lambda sets: None,
) -> list[AgentrlError]:
    """Return what would refuse the jobs: their tasks, their policy's files, their engine.

    ``here``: they train on this machine, so its GPUs are looked for. ``note_sets`` gets the sets of
    tasks of each job.
    """
    configs = [job.config for job in jobs]
    text = "reading the tasks, looking at the engine…"
    with make_console().status(text) as status:
        errors = start_check.find_start_errors(
            configs,
            benchmark=benchmark,
            uses_policy=uses_policy,
            show=lambda progress: status.update(f"{text} {progress}"),
            note_sets=note_sets,
        )
    return errors + (start_check.find_device_errors(configs) if here else [])


def report_sets(found: Sequence[Reports]) -> None:
    """Print the sizes of the sets of tasks to stderr, as a part of a run's head."""
    lines = [f"{use} {number}" for sets in found for use, number in count_sets(sets)]
    for line in dict.fromkeys(lines):  # those of a sweep are often the same
        make_console().print(make_printable(line), style="bright_black", soft_wrap=True)


def report_examples(jobs: Sequence[Job]) -> None:
    """Print to stderr how many examples the jobs' supervised steps have."""
    lines = []
    for config in (job.config for job in jobs):
        examples = check_examples(config)
        if examples is not None:
            lines.append(f"examples {describe_examples(config, examples)}")
    for line in dict.fromkeys(lines):
        make_console().print(line, style="bright_black", soft_wrap=True)


def refuse_start(problems: Iterable[Problem], errors: Sequence[AgentrlError]) -> None:
    """Raise everything that is fatal as one error; else print the warnings."""
    problems = list(dict.fromkeys(problems))
    fatal = [problem.message for problem in problems if problem.fatal]
    start_check.refuse([*errors, *map(PreflightError, fatal)])
    for problem in problems:
        report_warning(problem.message)


def count_sets(sets: Reports) -> Iterator[tuple[str, str]]:
    """Yield the use of each set, and its size in words."""
    for key, tasks in sets.items():
        use = "evaluation tasks" if key.startswith("eval_task") else "tasks"
        yield use, _count_tasks(tasks)


def _count_tasks(tasks: DatasetReport) -> str:
    kinds = ", ".join(f"{number} by {kind}" for kind, number in tasks.kinds.items())
    name = f"{tasks.name}: " if tasks.name else ""
    aside = f"; {len(tasks.aside)} set aside" if tasks.aside else ""
    repositories = len(tasks.repositories)
    noun = "repository" if repositories == 1 else "repositories"
    number = f"{name}{len(tasks.tasks)} of {repositories} {noun}"
    return f"{number}, graded: {kinds}{aside}"


def report_head(config: Config, path: Path, *, uses_policy: bool = True) -> None:
    """Print the run directory to stderr and, if a policy takes part, the numbers that decide."""
    console = make_console()
    console.print("run directory", style="bright_black", end=" ")
    console.print(make_printable(str(path)), soft_wrap=True)
    if not uses_policy:
        return
    console.print(find_key_numbers(config).line(), style="bright_black", soft_wrap=True)
    if (inexact := describe_inexactness(config)) is not None:
        console.print(inexact, style="yellow", soft_wrap=True)
