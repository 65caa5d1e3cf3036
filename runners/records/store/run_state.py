"""The state of a run, and the process that drives it."""

from __future__ import annotations

import os
import socket
import sqlite3
import time
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import psutil

from runners.records.text import loads

_CLOCK_SLACK_S = 2.0
"""Start times derive from the boot time, which moves a little when the clock is set."""
REMOTE_SILENCE_S = 120.0
"""A driver on another host counts as dead when its heartbeat is older."""


class State(StrEnum):
    """State of a run, as its driver last wrote it."""

    CREATED = "created"
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    DONE = "done"


KILLED = "killed"
"""In place of RUNNING, which nobody wrote over: the driver is dead."""
TRANSITIONS: dict[State, frozenset[State]] = {
    State.CREATED: frozenset(State) - {State.CREATED},
    State.RUNNING: frozenset({State.RUNNING, State.INTERRUPTED, State.FAILED, State.DONE}),
    State.INTERRUPTED: frozenset({State.INTERRUPTED, State.RUNNING, State.FAILED}),
    State.FAILED: frozenset({State.FAILED, State.RUNNING, State.INTERRUPTED}),
    State.DONE: frozenset({State.DONE, State.RUNNING}),
}
"""Legal next states; RUNNING → RUNNING is the resume of a run whose driver was killed, DONE →
RUNNING that of a finished run that got more steps.
"""


@dataclass(frozen=True, slots=True)
class Driver:
    """The process that drives a run."""

    host: str
    pid: int
    started_at: float
    """Unix seconds; tells the process from a later one with the same pid."""

    def alive(self, heartbeat_at: float | None) -> bool:
        """Return whether the process exists; on another host, whether its heartbeat is recent."""
        if self.host != socket.gethostname():
            return heartbeat_at is not None and time.time() - heartbeat_at < REMOTE_SILENCE_S
        try:
            process = psutil.Process(self.pid)
            # a pid is reused sooner or later: the start time tells the driver from another process
            same = abs(process.create_time() - self.started_at) < _CLOCK_SLACK_S
            return same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False

    def has_open(self, file: Path) -> bool:
        """Return whether the process has a file open; True where nobody here can tell."""
        if self.host != socket.gethostname():
            return True
        try:
            wanted = file.stat()
            for entry in Path(f"/proc/{self.pid}/fd").iterdir():
                with suppress(FileNotFoundError):  # closed meanwhile
                    if os.path.samestat(entry.stat(), wanted):
                        return True
        except OSError:
            return True
        return False


def current_process() -> Driver:
    """Return this process as a driver."""
    return Driver(socket.gethostname(), os.getpid(), psutil.Process().create_time())


@dataclass(frozen=True, slots=True)
class RunState:
    """A run's state, as last written."""

    state: State
    driver: Driver | None
    """The present or last driver; None before the first start."""
    exit_code: int | None
    message: str
    info: dict[str, Any]
    created_at: float
    """Unix seconds, as all times here."""
    updated_at: float
    heartbeat_at: float | None
    file: Path | None = None
    """The store from which it was read; a driver has that of its own run open."""

    @property
    def driven(self) -> bool:
        """True if a living process drives it now."""
        return self._is_driver_alive and not self.copied

    @property
    def copied(self) -> bool:
        """True if its directory is a copy of one that is driven now: the driver is another's."""
        return (
            self._is_driver_alive
            and self.driver is not None
            and self.file is not None
            and not self.driver.has_open(self.file)
        )

    @property
    def _is_driver_alive(self) -> bool:
        return (
            self.state is State.RUNNING
            and self.driver is not None
            and self.driver.alive(self.heartbeat_at)
        )

    @property
    def seen(self) -> str:
        """The state as people are told of it: KILLED if its driver died."""
        return KILLED if self.state is State.RUNNING and not self.driven else self.state.value

    @property
    def spent_s(self) -> float:
        """Seconds that its executions took; of one that runs or was killed, up to its last
        heartbeat.
        """
        seconds = float(self.info.get("wall_s", 0.0))
        if self.state is State.RUNNING and self.heartbeat_at is not None:
            seconds += max(0.0, self.heartbeat_at - self.updated_at)
        return seconds


def state_from_row(row: sqlite3.Row, file: Path) -> RunState:
    """Return the state in a row of table ``run`` of a store."""
    driver = None
    if row["pid"] is not None:
        driver = Driver(row["host"], row["pid"], row["pid_started_at"])
    return RunState(
        state=State(row["state"]),
        driver=driver,
        exit_code=row["exit_code"],
        message=row["message"],
        info=loads(row["info"]),
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        heartbeat_at=row["heartbeat_at"],
        file=file,
    )
