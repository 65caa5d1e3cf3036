"""Writes a file about attempts without progress: stage, await chain, processes in the sandbox.

It observes only: deadlines end attempts. An attempt that merely waits for a slow engine is reported
too, with that as its reason.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from runners.records.store import RunStore
from runners.system.diagnostics.attempt_progress import AttemptProgress, AttemptWatch
from runners.system.diagnostics.call_graph import describe_pending
from runners.system.diagnostics.diagnostics import FOLDER
from runners.system.diagnostics.sandbox_processes import SandboxProcess, list_sandbox_processes
from runners.system.diagnostics.sections import format_section, format_time, write_diagnosis
from runners.system.diagnostics.watchdog import AwakeClock

_TICK_S = 2.0
_IN_FULL = 8
"""Attempts that a file describes; when the engine hangs, hundreds look alike."""


@asynccontextmanager
async def watch_stalls(
    attempts: AttemptWatch,
    run_dir: Path,
    stuck_s: float,
    *,
    last_turn_s: Callable[[str], float | None] = lambda session_id: None,
    report: Callable[[str], None] = lambda line: None,
) -> AsyncIterator[None]:
    """Watch the attempts while the block runs; with ``stuck_s`` 0 do nothing.

    ``last_turn_s`` returns how many seconds ago a session's last turn ended, which is progress too;
    ``report`` takes one line per file that was written.
    """
    if not stuck_s:
        yield
        return
    watch = _StallWatch(attempts, run_dir / FOLDER, stuck_s, last_turn_s, report)
    task = asyncio.create_task(watch.run(), name="stuck-watch")
    try:
        yield
    finally:
        task.cancel()


def seconds_since_turn(store: RunStore, session_id: str) -> float | None:
    """Return the seconds since a session's last turn ended; None if it has no turn."""
    ((ended_at,),) = store.query(
        "SELECT max(started_at + total_s) FROM turn WHERE session_id = ?", (session_id,)
    )
    return None if ended_at is None else time.time() - ended_at


def describe_attempts(attempts: AttemptWatch) -> str:
    """Return one line per attempt in flight."""
    return "\n".join(f"{each.session_id} {_describe_stages(each)}" for each in attempts.in_flight())


class _StallWatch:
    """Checks the attempts regularly, on the event loop."""

    def __init__(
        self,
        attempts: AttemptWatch,
        folder: Path,
        stuck_s: float,
        last_turn_s: Callable[[str], float | None],
        report: Callable[[str], None],
    ) -> None:
        self._attempts, self._folder, self._stuck_s = attempts, folder, stuck_s
        self._last_turn_s, self._report_line = last_turn_s, report
        self._tick_s = min(_TICK_S, stuck_s / 5)
        self._awake = AwakeClock(self._tick_s)
        self._seen: dict[AttemptProgress, tuple[float, float]] = {}
        """Each attempt's last sign of progress, and the awake time at which it was seen first."""
        self._reported: set[AttemptProgress] = set()

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await asyncio.sleep(self._tick_s)
            silent = self._silent(self._awake.tick())
            if silent:
                await self._write(silent)

    def _silent(self, now: float) -> dict[AttemptProgress, float]:
        """Return the attempts that became stuck since the last check, with the seconds of each."""
        attempts = self._attempts.in_flight()
        self._seen = {attempt: self._seen.get(attempt, (0.0, now)) for attempt in attempts}
        self._reported.intersection_update(attempts)
        found: dict[AttemptProgress, float] = {}
        for attempt, (sign, since) in self._seen.items():
            if attempt.last_sign != sign:
                self._seen[attempt] = (attempt.last_sign, now)
                self._reported.discard(attempt)
            elif now - since >= self._stuck_s and attempt not in self._reported:
                turn_s = self._last_turn_s(attempt.session_id)
                if turn_s is not None and turn_s < self._stuck_s:
                    self._seen[attempt] = (sign, now - max(turn_s, 0.0))
                else:
                    self._reported.add(attempt)
                    found[attempt] = now - since
        return found

    async def _write(self, silent: dict[AttemptProgress, float]) -> None:
        worst = sorted(silent, key=lambda attempt: -silent[attempt])
        count = f"{len(worst)} attempt{'s' if len(worst) > 1 else ''} made no progress"
        lines = [
            f"{each.session_id}: for {silent[each]:.0f} s, {_describe_stages(each)}"
            for each in worst
        ]
        parts = ["\n".join([f"{count}, at {format_time()}:", *lines]) + "\n"]
        for attempt in worst[:_IN_FULL]:
            parts.append(await _describe(attempt))
        if len(worst) > _IN_FULL:
            parts.append(f"({len(worst) - _IN_FULL} more are not described)\n")
        path = await asyncio.to_thread(
            write_diagnosis, self._folder, "driver-stuck", "\n".join(parts)
        )
        self._report_line(f"{count} for {self._stuck_s:g} s: {path or 'disk refuses'}")


async def _describe(attempt: AttemptProgress) -> str:
    """Return what an attempt waits for, here and in its sandboxes."""
    waits = "(its task is not known)" if attempt.task is None else describe_pending(attempt.task)
    inside = await asyncio.to_thread(_describe_processes, attempt.session_id)
    return f"==== {attempt.session_id} ====\n{waits}\n\n{inside}"


def _describe_stages(attempt: AttemptProgress) -> str:
    timings = ", ".join(f"{stage} {spent:.1f} s" for stage, spent in attempt.timings().items())
    where = f" on {attempt.where}" if attempt.where else ""
    return f"in stage {attempt.stage or '(none yet)'}{where} ({timings or 'just begun'})"


def _describe_processes(session_id: str) -> str:
    return format_section(
        "processes in its sandboxes on this machine",
        lambda: "\n".join(map(_describe_one_process, list_sandbox_processes(session_id))),
    )


def _describe_one_process(process: SandboxProcess) -> str:
    where = f", waits in {process.waits_in}" if process.waits_in else ""
    stack = f"\n  kernel stack: {process.kernel_stack}" if process.kernel_stack else ""
    return (
        f"{process.pid} (child of {process.parent}) {process.state}{where}, "
        f"cpu {process.cpu_s:.1f} s, age {process.age_s:.0f} s: {process.command}{stack}"
    )
