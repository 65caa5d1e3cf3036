"""Says what attempts wait for that make no progress: a file that names stage, await chain and the
processes in the sandbox.

It only looks; deadlines end attempts. An attempt that only waits for a slow engine appears too,
with what it waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from runners.diagnostics.attempt_progress import AttemptProgress, AttemptWatch
from runners.diagnostics.call_graph import describe_pending
from runners.diagnostics.diagnostics import FOLDER
from runners.diagnostics.sections import clock, section, write_report
from runners.diagnostics.watchdog import AwakeClock
from runners.sandboxes.local.sandbox_processes import SandboxProcess, list_sandbox_processes

_TICK_S = 2.0
_IN_FULL = 8
"""Attempts described per file; when the engine hangs, hundreds look alike."""


@asynccontextmanager
async def watching(
    attempts: AttemptWatch,
    run_dir: Path,
    stuck_s: float,
    *,
    last_turn_s: Callable[[str], float | None] = lambda session_id: None,
    tell: Callable[[str], None] = lambda line: None,
) -> AsyncIterator[None]:
    """Watch the attempts for the time of the block; 0 is no watch.

    ``last_turn_s`` returns how many seconds ago a session's last turn ended: progress too.
    """
    if not stuck_s:
        yield
        return
    watch = _StuckWatch(attempts, run_dir / FOLDER, stuck_s, last_turn_s, tell)
    task = asyncio.create_task(watch.run(), name="stuck-watch")
    try:
        yield
    finally:
        task.cancel()


def attempts_text(attempts: AttemptWatch) -> str:
    """Return one line per attempt in flight."""
    return "\n".join(f"{each.session_id} {_stages(each)}" for each in attempts.in_flight())


class _StuckWatch:
    """Looks at the attempts again and again, on the event loop."""

    def __init__(
        self,
        attempts: AttemptWatch,
        folder: Path,
        stuck_s: float,
        last_turn_s: Callable[[str], float | None],
        tell: Callable[[str], None],
    ) -> None:
        self._attempts, self._folder, self._stuck_s = attempts, folder, stuck_s
        self._last_turn_s, self._tell = last_turn_s, tell
        self._tick_s = min(_TICK_S, stuck_s / 5)
        self._awake = AwakeClock(self._tick_s)
        self._seen: dict[AttemptProgress, tuple[float, float]] = {}
        """Of each attempt: its last sign, and the time awake when that was new."""
        self._told: set[AttemptProgress] = set()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(self._tick_s)
            silent = self._silent(self._awake.tick())
            if silent:
                await self._write(silent)

    def _silent(self, now: float) -> dict[AttemptProgress, float]:
        """Return the attempts that are newly stuck, and for how many seconds each."""
        flights = self._attempts.in_flight()
        self._seen = {flight: self._seen.get(flight, (0.0, now)) for flight in flights}
        self._told.intersection_update(flights)
        found: dict[AttemptProgress, float] = {}
        for flight, (sign, since) in self._seen.items():
            if flight.last_sign != sign:
                self._seen[flight] = (flight.last_sign, now)
                self._told.discard(flight)
            elif now - since >= self._stuck_s and flight not in self._told:
                turn_s = self._last_turn_s(flight.session_id)
                if turn_s is not None and turn_s < self._stuck_s:
                    self._seen[flight] = (sign, now - max(turn_s, 0.0))
                else:
                    self._told.add(flight)
                    found[flight] = now - since
        return found

    async def _write(self, silent: dict[AttemptProgress, float]) -> None:
        worst = sorted(silent, key=lambda flight: -silent[flight])
        count = f"{len(worst)} attempt{'s' if len(worst) > 1 else ''} made no progress"
        lines = [f"{each.session_id}: for {silent[each]:.0f} s, {_stages(each)}" for each in worst]
        parts = ["\n".join([f"{count}, at {clock()}:", *lines]) + "\n"]
        for flight in worst[:_IN_FULL]:
            parts.append(await _described(flight))
        if len(worst) > _IN_FULL:
            parts.append(f"({len(worst) - _IN_FULL} more are not described)\n")
        path = await asyncio.to_thread(write_report, self._folder, "driver-stuck", "\n".join(parts))
        self._tell(f"{count} for {self._stuck_s:g} s: {path or 'disk refuses'}")


async def _described(flight: AttemptProgress) -> str:
    """Return what an attempt waits for, here and in its sandboxes."""
    waits = "(its task is not known)" if flight.task is None else describe_pending(flight.task)
    inside = await asyncio.to_thread(_processes, flight.session_id)
    return f"==== {flight.session_id} ====\n{waits}\n\n{inside}"


def _stages(flight: AttemptProgress) -> str:
    timings = ", ".join(f"{stage} {spent:.1f} s" for stage, spent in flight.timings().items())
    where = f" on {flight.where}" if flight.where else ""
    return f"in stage {flight.stage or '(none yet)'}{where} ({timings or 'just begun'})"


def _processes(session_id: str) -> str:
    return section(
        "processes in its sandboxes on this machine",
        lambda: "\n".join(map(_process, list_sandbox_processes(session_id))),
    )


def _process(process: SandboxProcess) -> str:
    where = f", waits in {process.waits_in}" if process.waits_in else ""
    stack = f"\n  kernel stack: {process.kernel_stack}" if process.kernel_stack else ""
    return (
        f"{process.pid} (child of {process.parent}) {process.state}{where}, "
        f"cpu {process.cpu_s:.1f} s, age {process.age_s:.0f} s: {process.command}{stack}"
    )
