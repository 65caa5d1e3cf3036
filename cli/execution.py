"""Check and execute runs on this machine: for the commands, and for the package ``agentrl``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cli.invocation import report_head
from cli.start import find_start_errors, refuse_start, report_sets

if TYPE_CHECKING:
    from cli.task_counts import Reports
    from runners.campaigns.evaluation.benchmarks import Benchmark
    from runners.campaigns.evaluation.run import EvaluationResult
    from runners.campaigns.jobs import Job
    from runners.observe.live.result import CampaignResult


def check_campaigns(jobs: Sequence[Job]) -> None:
    """Raise one AgentrlError with everything that would refuse campaigns; print the warnings."""
    from launch.local import plan_local_run
    from runners.campaigns.preflight.start_check import find_device_errors

    plans = [plan_local_run(job.config, job.run_dir) for job in jobs]
    sets: list[Reports] = []
    errors = find_start_errors(jobs, note_sets=sets.append)
    errors += find_device_errors(job.config for job in jobs)
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


def check_evaluations(jobs: Sequence[Job], benchmark: str, *, uses_policy: bool = True) -> None:
    """Raise one AgentrlError with everything that would refuse evaluations or calibrations."""
    from launch.preflight import find_problems

    sets: list[Reports] = []
    errors = find_start_errors(
        jobs, benchmark=benchmark, uses_policy=uses_policy, note_sets=sets.append
    )
    report_sets(sets)
    found = (find_problems(job.config, job.run_dir, trains=False) for job in jobs)
    refuse_start((problem for problems in found for problem in problems), errors)
    _check_selections(jobs, benchmark)


def _check_selections(jobs: Sequence[Job], benchmark: str) -> None:
    """Raise ConfigError if ``eval.ids`` or ``eval.offset`` leave no job a task, before a run
    directory is made; one job of several is a row of their comparison. The ids of generated tasks
    are known only once they are made; the run needs them, too.
    """
    from conf.errors import ConfigError
    from runners.campaigns.evaluation.benchmarks import find_benchmark
    from runners.campaigns.evaluation.plan import select_tasks

    faults = []
    for job in jobs:
        if (job.config.eval.ids, job.config.eval.offset) == ("*", 0):
            return
        try:
            select_tasks(find_benchmark(benchmark), job.config)
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
