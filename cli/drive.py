"""A job on a cluster, as ``agentrl run`` drives it: written, checked, started, followed."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from cli.invocation import (
    Invocation,
    print_json,
    report_error,
    report_run_dir,
    report_warning,
    stderr,
    stdout,
)
from cli.jobs import Job, JobError, cluster_config
from conf.errors import AgentrlError, ExitCode
from conf.sections.cluster import ClusterLaunchConfig, KubernetesLaunchConfig

if TYPE_CHECKING:
    from launch.job_follower import JobFollower, JobStatus
    from launch.plan import JobPlan
    from launch.running_job import RunningJob

SHOWN_DIFFERENCES = 3


class _Left(BaseException):
    """Asked by SIGTERM to leave."""


def drive(job: Job, invocation: Invocation, command: Sequence[str], *, dry_run: bool) -> int:
    """Do what ``command``, an ``agentrl run``, asks; return the exit code. Raises AgentrlError."""
    from launch.plan import plan_job
    from launch.preflight import refuse_fatal

    plan = plan_job(job.config)
    _refuse_other_run(job)
    if dry_run:
        if cluster_config(job.run_dir) not in (None, job.config):
            _running(job, command)  # a job that waits for its nodes has yet to read its scripts
        return _dry_run(job, plan, invocation, command)
    from launch.job_follower import JobStatus
    from launch.job_preflight import find_job_problems

    problems = find_job_problems(plan)
    refuse_fatal(problems)
    for warning in (*plan.memory.faults, *(problem.message for problem in problems)):
        report_warning(warning)
    found = _running(job, command)
    if found is None and (done := _steps_done(job)) >= job.config.run.steps > 0:
        stderr().print(
            f"{done} of {job.config.run.steps} steps are done already; for more: "
            f"agentrl run --resume {job.run_dir} run.steps=N",
            soft_wrap=True,
        )
        return _ended(job, None, JobStatus("done", {}, "", 0), invocation)
    return _follow(job, _follower(job, plan, found, command), found, invocation)


def _running(job: Job, command: Sequence[str]) -> RunningJob | None:
    """Return the job if it goes on; refuse to change it then. Raises JobError or LauncherError."""
    from launch.running_job import find_running_job

    launch = job.config.launch
    assert isinstance(launch, ClusterLaunchConfig)
    found = find_running_job(launch, job.run_dir)
    if found is not None and job.config != cluster_config(job.run_dir):
        raise JobError(
            f"{found.what} is running with the configuration it was started with: let it end, or "
            f"stop it with `{found.stop}`, then say again `{shlex.join(command)}`"
        )
    return found


def _steps_done(job: Job) -> int:
    """Return how many steps a job that ended well has done."""
    from runners.store.status_file import read_status_file

    status = read_status_file(job.run_dir) or {}
    return int(status["steps_done"]) if status.get("exit_code") == 0 else 0


def _refuse_other_run(job: Job) -> None:
    """Refuse a directory that holds another run: it would go on from that one's checkpoint."""
    from conf.keys import flatten

    stored = cluster_config(job.run_dir)
    if job.resume:
        launch = job.config.launch
        assert isinstance(launch, ClusterLaunchConfig)
        there = launch.shared_dir / launch.name
        if launch.shared_dir.is_dir() and job.run_dir.resolve() != there.resolve():
            raise JobError(
                f"{job.run_dir} is not where its nodes see the job, {there}: resume it as "
                f"`agentrl run --resume {there}`"
            )
        return
    if stored is None:
        return
    old, new = (dict(flatten(config.model_dump(mode="json"))) for config in (stored, job.config))
    differ = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
    if differ:
        shown = [f"{key}={old.get(key)}, not {new.get(key)}" for key in differ[:SHOWN_DIFFERENCES]]
        more = f", and {len(differ) - len(shown)} more" if len(differ) > len(shown) else ""
        raise JobError(
            f"{job.run_dir} holds a run with {'; '.join(shown)}{more}: continue it with `agentrl "
            f"run --resume {job.run_dir}`, or choose another launch.name"
        )


def _write(job: Job, plan: JobPlan, command: Sequence[str]) -> Path:
    from launch.job_files import write_job

    return write_job(plan, job.run_dir / "launch", command=command)


def _dry_run(job: Job, plan: JobPlan, invocation: Invocation, command: Sequence[str]) -> int:
    """Write the scripts if they can be written here, and show everything."""
    from launch.job_files import list_commands
    from launch.job_preflight import find_job_problems
    from launch.plan_table import render_job

    problems = find_job_problems(plan)
    fatal = [problem.message for problem in problems if problem.fatal]
    start = _written(job, plan, command)
    code = ExitCode.PREFLIGHT if fatal else ExitCode.DONE
    if invocation.json:
        print_json(
            {
                **plan.to_dict(),
                "run_dir": str(job.run_dir),
                "start": None if start is None else str(start),
                "commands": [] if start is None else list_commands(plan, start),
                "problems": [problem.message for problem in problems],
                "exit_code": int(code),
            }
        )
        return int(code)
    stderr().print(render_job(plan))
    for fault in plan.memory.faults:
        report_warning(fault)
    for problem in problems:
        (report_error if problem.fatal else report_warning)(problem.message)
    if start is not None:
        begins, submits, trains = list_commands(plan, start)
        shown = {"start": begins, "submits": submits, "trains": _shortened(trains)}
        stderr().print("commands")
        for name, line in shown.items():
            stderr().print(f"  {name:8}{line}", soft_wrap=True)
        stdout().print(str(start), soft_wrap=True)
    return int(code)


def _shortened(command: str, words: int = 5) -> str:
    found = command.split(" ")
    return f"{' '.join(found[:words])} … ({len(found)} words: TRAIN_ARGS in settings.sh)"


def _written(job: Job, plan: JobPlan, command: Sequence[str]) -> Path | None:
    """Write the scripts; None where the shared directory should be here and is not."""
    launch = job.config.launch
    assert isinstance(launch, ClusterLaunchConfig)
    if not isinstance(launch, KubernetesLaunchConfig) and not launch.shared_dir.is_dir():
        return None
    return _write(job, plan, command)


def _follower(
    job: Job, plan: JobPlan, found: RunningJob | None, command: Sequence[str]
) -> JobFollower:
    """Return what follows the job, started if it is not running."""
    from launch.job_follower import JobFollower

    launch = job.config.launch
    assert isinstance(launch, ClusterLaunchConfig)
    if found is not None and found.attached:
        return JobFollower(launch, job.run_dir)
    script = job.run_dir / "launch" / f"{launch.kind}.sh"
    if found is None or not script.exists():
        script = _write(job, plan, command)
    if found is None and isinstance(launch, KubernetesLaunchConfig):
        job.write_config()  # what a resume reads; elsewhere the start script writes it
    return JobFollower.start(launch, job.run_dir, script, runs=found is not None)


def _follow(
    job: Job, follower: JobFollower, found: RunningJob | None, invocation: Invocation
) -> int:
    from cli.job_view import JobView

    report_run_dir(job.run_dir)
    console = stderr()
    said = f"following {found.what}, which is running" if found else f"logs: {job.run_dir / 'logs'}"
    console.print(said, soft_wrap=True)
    sight: JobStatus | None = None
    try:
        with _termination(), JobView(job.config, job.run_dir, console) as view:
            for sight in follower.follow():
                view.show(sight)
    except KeyboardInterrupt:
        return _detached(job, ExitCode.INTERRUPTED, invocation)
    except _Left:
        return _detached(job, ExitCode.TERMINATED, invocation)
    assert sight is not None
    assert sight.exit_code is not None
    return _ended(job, follower, sight, invocation)


@contextmanager
def _termination() -> Iterator[None]:
    def leave(*_: object) -> NoReturn:
        raise _Left

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _detached(job: Job, code: ExitCode, invocation: Invocation) -> int:
    """Say that the job goes on, and how it is followed and stopped."""
    from launch.running_job import find_running_job

    launch = job.config.launch
    assert isinstance(launch, ClusterLaunchConfig)
    resume = f"agentrl run --resume {job.run_dir}"
    stop = "it has not begun yet"
    try:
        if (found := find_running_job(launch, job.run_dir)) is not None:
            stop = found.stop
    except AgentrlError as error:
        stop = str(error)
    console = stderr()
    console.print("the job goes on without this terminal", style="bold")
    console.print(f"  follow it: {resume}", soft_wrap=True)
    console.print(f"  stop it:   {stop}", soft_wrap=True)
    if invocation.json:
        print_json(
            {"run_dir": str(job.run_dir), "exit_code": int(code), "resume": resume, "stop": stop}
        )
    return int(code)


def _ended(job: Job, follower: JobFollower | None, sight: JobStatus, invocation: Invocation) -> int:
    """Say how the job ended and what it came to."""
    from runners.observe.summary import summary_table

    launch = job.config.launch
    assert isinstance(launch, ClusterLaunchConfig)
    assert sight.exit_code is not None
    code = sight.exit_code if sight.exit_code in set(ExitCode) else int(ExitCode.FAILURE_BUDGET)
    console = stderr()
    log = None if follower is None else str(follower.log)
    if code:
        report_error(f"{sight.message} (log: {log})")
    mounted = launch.shared_dir.is_dir()
    summary = _summary(job) if mounted else None
    if summary is not None:
        console.print(summary_table(summary))
    elif not mounted:
        console.print(
            f"its files are in {launch.shared_dir / launch.name} of the claim; where that is "
            "mounted, `agentrl status` and `agentrl dump-trajectories` read them",
            soft_wrap=True,
        )
    if code:
        console.print(f"continue with: agentrl run --resume {job.run_dir}", soft_wrap=True)
    if invocation.json:
        facts = {"launch": launch.kind, "name": launch.name, "log": log}
        end = {"exit_code": code, "message": sight.message}
        print_json({"run_dir": str(job.run_dir), **facts, **(summary or {}), **end})
    else:
        stdout().print(str(job.run_dir), soft_wrap=True)
    return code


def _summary(job: Job) -> dict[str, Any] | None:
    """Return what the run came to; None if it had no rollout, or its store is not to be had."""
    from runners.campaign.result import summarize
    from runners.store.run_store import STORE_FILE, RunStore

    if not (job.run_dir / STORE_FILE).is_file():
        return None
    try:
        with RunStore.open(job.run_dir, read_only=True) as store:
            return summarize(store, wall_s=store.state().spent_s)
    except AgentrlError as error:
        report_warning(str(error))
        return None
