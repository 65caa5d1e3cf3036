"""Start a job on a cluster from this machine, and follow it to its end.

The start script runs in a session of its own, so that it survives the terminal. A follower only
reads files and asks the launcher; it never changes the job.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from conf.errors import AgentrlError, ExitCode
from conf.sections.cluster import ClusterLaunchConfig
from conf.sections.slurm import SlurmLaunchConfig
from launch.running_job import LauncherError, RunningJob, find_running_job, read_ray_exit_code

POLL_S = 0.5
QUERY_EVERY_S = 10.0
"""Seconds between two questions to a scheduler, which may be shared by thousands of users."""
GRACE_S = 15.0
"""Seconds until a file that another machine has written is visible here (network file systems)."""
TAIL_BYTES = 16384
LAUNCH_LOG = "launch.log"
_PHASE_NAMES = {
    "queued": "queued",
    "submitted": "submitted to Ray",
    "preparing": "reading the tasks",
    "converting": "converting the checkpoint",
    "training": "training",
}
_SCRIPT_PREFIX = " agentrl: "
_ERROR_PREFIX = f"{_SCRIPT_PREFIX}error: "


class SubmissionError(AgentrlError):
    """The job's script cannot be started."""

    exit_code = ExitCode.SERVICE_GONE


@dataclass(frozen=True, slots=True)
class JobStatus:
    """State of a job at one moment."""

    phase: str
    status: dict[str, Any]
    """The run's ``status.json``, which its driver publishes; empty before the first rollout."""
    line: str
    """Last line of the job's log."""
    exit_code: int | None = None
    """Exit code of a job that has ended; such a status is the last one."""
    message: str = ""
    """Reason of the exit code."""


class JobFollower:
    """Follows one job to its end. Each object is used once."""

    def __init__(
        self,
        launch: ClusterLaunchConfig,
        job_dir: Path,
        process: subprocess.Popen[bytes] | None = None,
        *,
        log_from: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Follow the job in ``job_dir``.

        ``process`` is its start script, if this process has started it; ``log_from`` is the offset
        in the log at which this launch begins, in bytes.
        """
        self._launch = launch
        self._dir = job_dir
        self._process = process
        self._log_from = log_from
        self._clock = clock
        self._queried_at = clock() - QUERY_EVERY_S
        self._running: RunningJob | None = None
        self._gone_at: float | None = None

    @classmethod
    def start(
        cls, launch: ClusterLaunchConfig, job_dir: Path, script: Path, *, runs: bool = False
    ) -> JobFollower:
        """Start the job's script, which survives this process; raises SubmissionError.

        ``runs`` is true if the job runs already: then the script follows it.
        """
        log = job_dir / "logs" / LAUNCH_LOG
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            if not runs:
                (job_dir / "state" / "phase").unlink(missing_ok=True)
            with log.open("ab") as sink:
                log_from = sink.tell()
                process = subprocess.Popen(
                    ["bash", str(script)],
                    stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT,
                    start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            raise SubmissionError(f"{script} cannot be started: {error}") from error
        return cls(launch, job_dir, process, log_from=log_from)

    @property
    def log(self) -> Path:
        """Path of the job's log."""
        if isinstance(self._launch, SlurmLaunchConfig):
            job = _read_text(self._dir / "state" / "slurm_id").strip()
            log = self._dir / "logs" / f"slurm-{job}.log"
            if job and log.exists():
                return log
        return self._dir / "logs" / LAUNCH_LOG

    def read_status(self) -> JobStatus:
        """Return the job's state now, without an exit code even if it has ended."""
        tail = self._read_tail()
        return JobStatus(self._phase(tail), self._status(), _last_line(tail))

    def follow(self, wait: Callable[[float], None] = time.sleep) -> Iterator[JobStatus]:
        """Yield the job's state every ``POLL_S`` seconds until it has ended."""
        while True:
            code, message = self._read_end()
            status = self.read_status()
            if code is not None:
                reason = message or (_find_reason(self._read_tail()) if code else "")
                yield replace(status, exit_code=code, message=reason)
                return
            yield status
            wait(POLL_S)

    def _read_tail(self) -> list[str]:
        log = self.log
        return _tail(log, self._log_from if log.name == LAUNCH_LOG else 0)

    def _read_end(self) -> tuple[int | None, str]:
        """Return the job's exit code, None while it runs, and a message about its end."""
        if self._process is not None:
            code = self._process.poll()
            if code is None:
                return None, ""
            # Slurm's start script ends when the job is submitted; others end with their job. A
            # process that a signal ended has a negative code; shells report 128 + signal.
            if code or not isinstance(self._launch, SlurmLaunchConfig):
                return (code if code >= 0 else 128 - code), ""
        written = _read_text(self._dir / "state" / "exit_code").strip()
        if written.isdigit():
            return int(written), ""
        if self._still_runs():
            self._gone_at = None
            return None, ""
        now = self._clock()
        self._gone_at = self._gone_at if self._gone_at is not None else now
        if now - self._gone_at < GRACE_S:
            return None, ""
        return self._explain_loss()

    def _still_runs(self) -> bool:
        now = self._clock()
        if self._gone_at is None and now - self._queried_at < QUERY_EVERY_S:
            return True
        self._queried_at = now
        try:
            self._running = find_running_job(self._launch, self._dir)
        except LauncherError:
            return True  # An unanswered question does not mean that the job has ended.
        return self._running is not None

    def _explain_loss(self) -> tuple[int, str]:
        """Return exit code and message of a job that has ended without writing an exit code."""
        gone = int(ExitCode.SERVICE_GONE)
        if isinstance(self._launch, SlurmLaunchConfig):
            job = _read_text(self._dir / "state" / "slurm_id").strip()
            return gone, (
                f"Slurm job {job} has ended without an exit code (cancelled, out of time, or a "
                f"node lost): `sacct --jobs {job}` says which"
            )
        try:
            code = read_ray_exit_code(self._launch, self._dir)
        except LauncherError:
            code = None
        lost = "the process that watched the job has ended without an exit code"
        return (gone, lost) if code is None else (code, lost if code else "")

    def _phase(self, tail: list[str]) -> str:
        name, _, rest = _read_text(self._dir / "state" / "phase").strip().partition(" ")
        if name == "joining":
            joined, _, nodes = rest.partition(" ")
            return f"{joined} of {nodes} nodes have joined"
        state = self._running.state if self._running is not None else ""
        if name == "queued" and state:
            return f"queued: {state}"
        messages = [line.partition(_SCRIPT_PREFIX)[2] for line in tail if _SCRIPT_PREFIX in line]
        return _PHASE_NAMES.get(name, name) or (messages[-1] if messages else "starting")

    def _status(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self._dir / "status.json").read_bytes())
        except (OSError, ValueError):
            return {}
        return found


def _read_text(file: Path) -> str:
    try:
        return file.read_text("utf-8", "replace")
    except OSError:
        return ""


def _tail(log: Path, begin: int) -> list[str]:
    """Return the last lines of the log, from offset ``begin`` on."""
    try:
        with log.open("rb") as file:
            file.seek(max(begin, file.seek(0, 2) - TAIL_BYTES))
            return file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []


def _last_line(lines: list[str]) -> str:
    return next((line for line in reversed(lines) if line.strip()), "")


def _find_reason(lines: list[str]) -> str:
    """Return the last error of our scripts, and the last line of the programs that they ran."""
    errors = [line.partition(_ERROR_PREFIX)[2] for line in lines if _ERROR_PREFIX in line]
    output = _last_line([line for line in lines if _SCRIPT_PREFIX not in line])
    if not errors:
        return output or "it ended without any output"
    return f"{errors[-1]}; its last output: {output}" if output else errors[-1]
