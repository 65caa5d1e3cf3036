"""Start a job on a cluster from here and see how it goes on. Its script runs in a session of its
own, so that it survives the terminal; who follows it reads files and asks the launcher.
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
from conf.sections.cluster import ClusterLaunchConfig, SlurmLaunchConfig
from launch.running import LauncherError, Running, ended, running

LOOK_S = 0.5
ASK_EVERY_S = 10.0
"""A scheduler is asked no more often."""
GRACE_S = 15.0
"""A file that another machine has written is here by then."""
TAIL_BYTES = 16384
LAUNCH_LOG = "launch.log"
_SHOWN = {
    "queued": "queued",
    "submitted": "submitted to Ray",
    "preparing": "reading the tasks",
    "converting": "converting the checkpoint",
    "training": "training",
}
_SCRIPT = " agentrl: "
_ERROR = f"{_SCRIPT}error: "


class SubmissionError(AgentrlError):
    """The job's script cannot be started."""

    exit_code = ExitCode.SERVICE_GONE


@dataclass(frozen=True, slots=True)
class Sight:
    """How a job stands."""

    phase: str
    status: dict[str, Any]
    """Of the run, as its driver has published it; empty before its first rollout."""
    line: str
    """The last line of its log."""
    exit_code: int | None = None
    """Set when it is over: the last sight."""
    message: str = ""
    """Why it has ended so."""


class Follower:
    """Follows one job to its end; used once."""

    def __init__(
        self,
        launch: ClusterLaunchConfig,
        job_dir: Path,
        process: subprocess.Popen[bytes] | None = None,
        *,
        log_from: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``process`` is its script, if it was started here; ``log_from`` where its log begins."""
        self._launch = launch
        self._dir = job_dir
        self._process = process
        self._log_from = log_from
        self._clock = clock
        self._asked_at = clock() - ASK_EVERY_S
        self._running: Running | None = None
        self._gone_at: float | None = None

    @classmethod
    def start(
        cls, launch: ClusterLaunchConfig, job_dir: Path, script: Path, *, runs: bool = False
    ) -> Follower:
        """Start the job's script, which survives this process; raises SubmissionError.

        ``runs``: the job is running, and the script will follow it.
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
        """Where the job says what it does."""
        if isinstance(self._launch, SlurmLaunchConfig):
            job = _text(self._dir / "state" / "slurm_id").strip()
            log = self._dir / "logs" / f"slurm-{job}.log"
            if job and log.exists():
                return log
        return self._dir / "logs" / LAUNCH_LOG

    def glance(self) -> Sight:
        """Return how the job stands now; without an exit code even if it is over."""
        tail = self._tail()
        return Sight(self._phase(tail), self._status(), _last(tail))

    def sights(self, wait: Callable[[float], None] = time.sleep) -> Iterator[Sight]:
        """Yield how the job stands, again and again, until it is over."""
        while True:
            code, message = self._end()
            sight = self.glance()
            if code is not None:
                reason = message or (_reason(self._tail()) if code else "")
                yield replace(sight, exit_code=code, message=reason)
                return
            yield sight
            wait(LOOK_S)

    def _tail(self) -> list[str]:
        log = self.log
        return _tail(log, self._log_from if log.name == LAUNCH_LOG else 0)

    def _end(self) -> tuple[int | None, str]:
        """Return the job's exit code, None while it goes on, and what is to be said about it."""
        if self._process is not None:
            code = self._process.poll()
            if code is None:
                return None, ""
            if code or not isinstance(self._launch, SlurmLaunchConfig):
                return (code if code >= 0 else 128 - code), ""
        written = _text(self._dir / "state" / "exit_code").strip()
        if written.isdigit():
            return int(written), ""
        if self._goes_on():
            self._gone_at = None
            return None, ""
        now = self._clock()
        self._gone_at = self._gone_at if self._gone_at is not None else now
        if now - self._gone_at < GRACE_S:
            return None, ""
        return self._lost()

    def _goes_on(self) -> bool:
        now = self._clock()
        if self._gone_at is None and now - self._asked_at < ASK_EVERY_S:
            return True
        self._asked_at = now
        try:
            self._running = running(self._launch, self._dir)
        except LauncherError:
            return True  # no news is no end
        return self._running is not None

    def _lost(self) -> tuple[int, str]:
        """Return the end of a job that has left no exit code."""
        gone = int(ExitCode.SERVICE_GONE)
        if isinstance(self._launch, SlurmLaunchConfig):
            job = _text(self._dir / "state" / "slurm_id").strip()
            return gone, (
                f"Slurm job {job} has ended without an exit code (cancelled, out of time, or a "
                f"node lost): `sacct --jobs {job}` says which"
            )
        try:
            code = ended(self._launch, self._dir)
        except LauncherError:
            code = None
        lost = "the process that looked after the job has ended without an exit code"
        return (gone, lost) if code is None else (code, lost if code else "")

    def _phase(self, tail: list[str]) -> str:
        name, _, rest = _text(self._dir / "state" / "phase").strip().partition(" ")
        if name == "joining":
            joined, _, nodes = rest.partition(" ")
            return f"{joined} of {nodes} nodes have joined"
        state = self._running.state if self._running is not None else ""
        if name == "queued" and state:
            return f"queued: {state}"
        said = [line.partition(_SCRIPT)[2] for line in tail if _SCRIPT in line]
        return _SHOWN.get(name, name) or (said[-1] if said else "starting")

    def _status(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self._dir / "status.json").read_bytes())
        except (OSError, ValueError):
            return {}
        return found


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8", "replace")
    except OSError:
        return ""


def _tail(log: Path, begin: int) -> list[str]:
    """Return the log's last lines, none of them from before ``begin``."""
    try:
        with log.open("rb") as file:
            file.seek(max(begin, file.seek(0, 2) - TAIL_BYTES))
            return file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []


def _last(lines: list[str]) -> str:
    return next((line for line in reversed(lines) if line.strip()), "")


def _reason(lines: list[str]) -> str:
    """Return the last error that a script has said, and the last words of what it ran."""
    said = [line.partition(_ERROR)[2] for line in lines if _ERROR in line]
    words = _last([line for line in lines if _SCRIPT not in line])
    if not said:
        return words or "it ended without a word"
    return f"{said[-1]}; its last words: {words}" if words else said[-1]
