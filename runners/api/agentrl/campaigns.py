"""Run campaigns and evaluations from a program or a notebook, by the functions of the commands.

A call blocks until its run has ended, also inside a running event loop and outside the main
thread. Ctrl-C, or a notebook's stop button, lets running rollouts finish, a second one stops at
once; either way the call returns, and ``resume`` continues the run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from agentrl.arguments import to_path
from conf.errors import AgentrlError, ConfigError, ExitCode
from runners.services.stop_signals import run_blocking

if TYPE_CHECKING:
    from agentrl.run_reader import RunReader
    from runners.campaigns.evaluation.report import EvaluationReport
    from runners.campaigns.jobs import Job
    from runners.observe.export import ExportedRollout

AnyPath = str | os.PathLike[str]
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """The end of a campaign."""

    run_dir: Path
    exit_code: ExitCode
    """That of ``agentrl run``: DONE, INTERRUPTED, …"""
    message: str
    """The reason of an early end; "" if the run is done."""
    summary: Mapping[str, Any]
    """The document that ``agentrl run --json`` prints."""

    def open(self) -> RunReader:
        """Open the run to read it."""
        return _open(self.run_dir)


@dataclass(frozen=True, slots=True)
class FinishedEvaluation:
    """The end of an evaluation."""

    run_dir: Path
    exit_code: ExitCode
    message: str
    report: EvaluationReport | None
    """Content of ``report.json``; None if it ended before its tasks were known."""

    def open(self) -> RunReader:
        """Open the run to read it."""
        return _open(self.run_dir)


def run(
    overrides: Sequence[str] = (),
    *,
    resume: AnyPath | None = None,
    rewind: bool = False,
    replay_schedule: AnyPath | None = None,
    config: AnyPath | None = None,
    config_dir: AnyPath | None = None,
) -> FinishedRun:
    """Run a campaign on this machine, or continue the one in ``resume``; return its end.

    The arguments are those of ``agentrl run``: ``run(["scenario=mixed", "run.steps=3"])``. Raises
    AgentrlError with the words of the command: ConfigError for what is wrong with the
    configuration, another for what else makes a start impossible. What fails later is in
    ``exit_code`` and ``message``.
    """

    def work() -> FinishedRun:
        from runners.campaigns.execution import check_campaigns, execute_campaign
        from runners.campaigns.jobs import new_jobs, replaying_job, resumed_job

        _use_config_dir(config_dir)
        if resume is not None:
            job = resumed_job(to_path("resume", resume), _check_words(overrides), rewind=rewind)
        elif replay_schedule is not None:
            replayed = to_path("replay_schedule", replay_schedule)
            job = replaying_job(replayed, _check_words(overrides))
        else:
            file = None if config is None else to_path("config", config)
            job = _single(new_jobs(_check_words(overrides), file))
        if job.config.launch.kind != "local":
            raise ConfigError(
                f"launch={job.config.launch.kind} starts a job on a cluster: use `agentrl run`"
            )
        check_campaigns([job])
        end = execute_campaign(job)
        return FinishedRun(job.run_dir, end.exit_code, end.message, end.summary)

    return run_blocking(work)


def evaluate(
    benchmark: str,
    overrides: Sequence[str] = (),
    *,
    resume: AnyPath | None = None,
    config_dir: AnyPath | None = None,
) -> FinishedEvaluation:
    """Measure a policy on a benchmark (bugfix, swebench), or continue the evaluation in ``resume``.

    The arguments are those of ``agentrl eval``; errors as of ``run``.
    """

    def work() -> FinishedEvaluation:
        from runners.campaigns.evaluation.benchmarks import find_benchmark
        from runners.campaigns.execution import check_evaluations, execute_evaluation
        from runners.campaigns.jobs import new_jobs, resumed_job

        _use_config_dir(config_dir)
        found = find_benchmark(benchmark)
        if resume is not None:
            job = resumed_job(
                to_path("resume", resume), _check_words(overrides), benchmark=found.name
            )
        else:
            lines = found.overrides(_check_words(overrides))
            job = _single(new_jobs(lines, kind=f"eval-{found.name}"))
        check_evaluations([job], found)
        result = execute_evaluation(found, job)
        return FinishedEvaluation(
            job.run_dir, result.end.exit_code, result.end.message, result.report
        )

    return run_blocking(work)


def rollout(
    overrides: Sequence[str] = (),
    *,
    task: str = "*",
    benchmark: str = "bugfix",
    config_dir: AnyPath | None = None,
) -> ExportedRollout:
    """Let the policy work on one task of a benchmark; return its graded rollout.

    It is an evaluation of one rollout, with a run directory of its own; ``task``: an id or a
    pattern, of which the first match is taken. Raises AgentrlError, also if there is no rollout.
    """
    one = ["eval.tasks=1", "eval.attempts_per_task=1", f"eval.ids='{task}'"]
    finished = evaluate(benchmark, [*overrides, *one], config_dir=config_dir)
    with finished.open() as reader:
        for found in reader.rollouts(split="eval"):
            return found
    raise AgentrlError(finished.message or f"{finished.run_dir} has no rollout")


def _open(run_dir: Path) -> RunReader:
    from agentrl.run_reader import open_run

    return open_run(run_dir)


def _use_config_dir(directory: AnyPath | None) -> None:
    from conf.config_dir import use_config_dir

    use_config_dir(None if directory is None else to_path("config_dir", directory))


def _single(jobs: list[Job]) -> Job:
    if len(jobs) > 1:
        labels = ", ".join(job.label for job in jobs)
        raise ConfigError(
            f"several values are a sweep of {len(jobs)} runs ({labels}): call once for each"
        )
    return jobs[0]


def _check_words(overrides: Sequence[str]) -> list[str]:
    """Return KEY=VALUE words as a list; raises ConfigError for one text, or for what is no text."""
    if isinstance(overrides, str) or not all(isinstance(word, str) for word in overrides):
        raise ConfigError(f"{overrides!r:.100} is no list of texts: write ['KEY=VALUE', …]")
    return list(overrides)
