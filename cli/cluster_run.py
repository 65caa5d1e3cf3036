"""Run a job on a cluster for ``agentrl run``: write its scripts, check it, start it, follow it.

The job does not depend on this process: ctrl-C and SIGTERM stop following it, the job goes on, and
the same command follows it again.
"""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from cli.invocation import (
    Invocation,
    can_resume,
    print_json,
    report_error,
    stderr,
    stdout,
)
from cli.job_view import JobView
from conf.errors import AgentrlError, ExitCode
from conf.keys import flatten
from conf.sections.cluster import ClusterLaunchConfig
from conf.sections.kubernetes import KubernetesLaunchConfig
from launch.job_files import list_commands, write_job
from launch.job_follower import JobFollower, JobStatus
from launch.job_preflight import find_job_problems
from launch.plan import plan_job
from launch.plan_table import render_job
from launch.preflight import Problem, refuse_fatal
from launch.running_job import RunningJob, find_running_job
from runners.campaigns.execution import find_start_errors, report_head
from runners.campaigns.jobs import Job, JobError, cluster_config
from runners.observe.console import report_warning

_DIFFERENCES_SHOWN = 3


class _Terminated(BaseException):
    """Raised by SIGTERM: stop following the job."""


class ClusterRun:
    """One ``agentrl run`` of a job on a cluster. Each object is used once."""

    def __init__(self, job: Job, invocation: Invocation, command: Sequence[str]) -> None:
        """Plan the job; ``command`` is the ``agentrl run`` that asks for it.

        Raises ConfigError, and JobError if the job's directory belongs to another run.
        """
        launch = job.config.launch
        assert isinstance(launch, ClusterLaunchConfig)
        self._job = job
        self._launch = launch
        self._invocation = invocation
        self._command = command
        self._plan = plan_job(job.config)
        self._refuse_other_run()

    def dry_run(self) -> int:
        """Write the scripts if they can be written here, show everything, return the exit code.

        Raises AgentrlError.
        """
        if cluster_config(self._job.run_dir) not in (None, self._job.config):
            # A job that waits for its nodes has not read its scripts yet: they must not change.
            self._find_running()
        problems = self._find_problems()
        fatal = any(problem.fatal for problem in problems)
        code = ExitCode.PREFLIGHT if fatal else ExitCode.DONE
        # The scripts of a job whose shared directory should be mounted here, and is not, are not
        # written: a directory of that name on the local disk would hide the mistake.
        pods_only = isinstance(self._launch, KubernetesLaunchConfig)
        start = self._write() if pods_only or self._launch.shared_dir.is_dir() else None
        commands = [] if start is None else list_commands(self._plan, start)
        if self._invocation.json:
            print_json(
                {
                    **self._plan.to_dict(),
                    "run_dir": str(self._job.run_dir),
                    "start": None if start is None else str(start),
                    "commands": commands,
                    "problems": [problem.message for problem in problems],
                    "exit_code": int(code),
                }
            )
            return int(code)
        stderr().print(render_job(self._plan))
        for fault in self._plan.memory.faults:
            report_warning(fault)
        for problem in problems:
            (report_error if problem.fatal else report_warning)(problem.message)
        if start is not None:
            start_command, submit, train = commands
            shown = {"start": start_command, "submits": submit, "trains": _shorten(train)}
            stderr().print("commands")
            for name, line in shown.items():
                stderr().print(f"  {name:8}{line}", soft_wrap=True)
            stdout().print(str(start), soft_wrap=True)
        return int(code)

    def run(self) -> int:
        """Start the job unless it runs already, and follow it; return the exit code.

        Raises AgentrlError.
        """
        problems = self._find_problems()
        refuse_fatal(problems)
        for problem in problems:
            report_warning(problem.message)
        for fault in self._plan.memory.faults:
            report_warning(fault)
        running = self._find_running()
        steps = self._job.config.run.steps
        if running is None and (done := _steps_done(self._job.run_dir)) >= steps > 0:
            stderr().print(
                f"{done} of {steps} steps are done already; for more: "
                f"agentrl run --resume {self._job.run_dir} run.steps=N",
                soft_wrap=True,
            )
            return self._report_end(None, JobStatus("done", {}, "", 0))
        return self._follow(self._start_or_attach(running), running)

    def _find_problems(self) -> list[Problem]:
        """Return the problems of starting the job here; tasks that can be read here are."""
        found = find_start_errors([self._job])
        return [*find_job_problems(self._plan), *(Problem(True, str(error)) for error in found)]

    def _find_running(self) -> RunningJob | None:
        """Return the job if it runs; raises JobError if it runs with another configuration."""
        running = find_running_job(self._launch, self._job.run_dir)
        if running is not None and self._job.config != cluster_config(self._job.run_dir):
            raise JobError(
                f"{running.what} runs with the configuration that it was started with: wait for "
                f"its end, or stop it with `{running.stop}`; then repeat "
                f"`{shlex.join(self._command)}`"
            )
        return running

    def _refuse_other_run(self) -> None:
        """Raise JobError if the directory holds another run, from whose checkpoint this job would
        continue.
        """
        job, launch = self._job, self._launch
        stored = cluster_config(job.run_dir)
        if job.resume:
            shared = launch.shared_dir / launch.name
            if launch.shared_dir.is_dir() and job.run_dir.resolve() != shared.resolve():
                raise JobError(
                    f"{job.run_dir} is not where the job's nodes see it, {shared}: resume it as "
                    f"`agentrl run --resume {shared}`"
                )
            return
        if stored is None:
            return
        old, new = (dict(flatten(c.model_dump(mode="json"))) for c in (stored, job.config))
        differ = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
        if differ:
            shown = [
                f"{key}={old.get(key)}, not {new.get(key)}" for key in differ[:_DIFFERENCES_SHOWN]
            ]
            more = f", and {len(differ) - len(shown)} more" if len(differ) > len(shown) else ""
            raise JobError(
                f"{job.run_dir} holds a run with {'; '.join(shown)}{more}: continue it with "
                f"`agentrl run --resume {job.run_dir}`, or choose another launch.name"
            )

    def _write(self) -> Path:
        return write_job(self._plan, self._job.run_dir / "launch", command=self._command)

    def _start_or_attach(self, running: RunningJob | None) -> JobFollower:
        """Return a follower of the job, which is started unless it runs."""
        job, launch = self._job, self._launch
        if running is not None and running.attached:
            return JobFollower(launch, job.run_dir)
        script = job.run_dir / "launch" / f"{launch.kind}.sh"
        if running is None or not script.exists():
            script = self._write()
        if running is None and isinstance(launch, KubernetesLaunchConfig):
            job.write_config()  # For --resume. Other launchers' start scripts write it.
        return JobFollower.start(launch, job.run_dir, script, runs=running is not None)

    def _follow(self, follower: JobFollower, running: RunningJob | None) -> int:
        job = self._job
        report_head(job.config, job.run_dir)
        console = stderr()
        logs = job.run_dir / "logs"
        line = f"following {running.what}, which is running" if running else f"logs: {logs}"
        console.print(line, soft_wrap=True)
        status: JobStatus | None = None
        try:
            with _sigterm_raises(), JobView(job.config, job.run_dir, console) as view:
                for status in follower.follow():
                    view.show(status)
        except KeyboardInterrupt:
            return self._report_detached(ExitCode.INTERRUPTED)
        except _Terminated:
            return self._report_detached(ExitCode.TERMINATED)
        assert status is not None
        return self._report_end(follower, status)

    def _report_detached(self, code: ExitCode) -> int:
        """Report that the job goes on, and how to follow and to stop it; return ``code``."""
        run_dir = self._job.run_dir
        resume = f"agentrl run --resume {run_dir}"
        stop = "it has not started yet"
        try:
            if (running := find_running_job(self._launch, run_dir)) is not None:
                stop = running.stop
        except AgentrlError as error:
            stop = str(error)
        console = stderr()
        console.print("the job goes on without this terminal", style="bold")
        console.print(f"  follow it: {resume}", soft_wrap=True)
        console.print(f"  stop it:   {stop}", soft_wrap=True)
        if self._invocation.json:
            print_json(
                {"run_dir": str(run_dir), "exit_code": int(code), "resume": resume, "stop": stop}
            )
        return int(code)

    def _report_end(self, follower: JobFollower | None, status: JobStatus) -> int:
        """Report the job's end and its results; return the exit code."""
        from runners.observe.live import summary_table  # late: only a job that ran has one

        run_dir, launch = self._job.run_dir, self._launch
        assert status.exit_code is not None
        known = status.exit_code in set(ExitCode)
        code = status.exit_code if known else int(ExitCode.FAILURE_BUDGET)
        console = stderr()
        log = None if follower is None else str(follower.log)
        if code:
            report_error(f"{status.message} (log: {log})")
        mounted = launch.shared_dir.is_dir()
        summary = _summarize(run_dir) if mounted else None
        if summary is not None:
            console.print(summary_table(summary))
        elif not mounted:
            console.print(
                f"its files are in {launch.shared_dir / launch.name} of the claim; where that is "
                "mounted, `agentrl status` and `agentrl dump-trajectories` read them",
                soft_wrap=True,
            )
        if can_resume(code):
            console.print(f"continue with: agentrl run --resume {run_dir}", soft_wrap=True)
        if self._invocation.json:
            facts = {"launch": launch.kind, "name": launch.name, "log": log}
            end = {"exit_code": code, "message": status.message}
            print_json({"run_dir": str(run_dir), **facts, **(summary or {}), **end})
        else:
            stdout().print(str(run_dir), soft_wrap=True)
        return code


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    def leave(*_: object) -> NoReturn:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _shorten(command: str) -> str:
    words = command.split(" ")
    return f"{' '.join(words[:5])} … ({len(words)} words: TRAIN_ARGS in settings.sh)"


def _steps_done(run_dir: Path) -> int:
    """Return the number of steps of a job that has ended with exit code 0; else 0."""
    from runners.records.store import read_status_file

    status = read_status_file(run_dir) or {}
    return int(status["steps_done"]) if status.get("exit_code") == 0 else 0


def _summarize(run_dir: Path) -> dict[str, Any] | None:
    """Return the run's results; None if it has no rollout or its store cannot be read."""
    from runners.observe.live import summarize
    from runners.records.store import STORE_FILE, RunStore

    if not (run_dir / STORE_FILE).is_file():
        return None
    try:
        with RunStore.open(run_dir, read_only=True) as store:
            return summarize(store, wall_s=store.state().spent_s)
    except AgentrlError as error:
        report_warning(str(error))
        return None
