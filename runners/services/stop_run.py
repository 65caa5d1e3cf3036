"""Stop a run from another process of its machine: the signals that its driver takes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from runners.records.store import Driver, RunStore, StoreError

POLL_S = 0.2
KILL_S = 60.0
"""Seconds in which a run that leaves at once ends its sandboxes and agents; then it is killed."""


def read_driver(run_dir: Path) -> Driver | None:
    """Return the living process that drives the run, None if it has none; raises StoreError."""
    with RunStore.open(run_dir, read_only=True) as store:
        state = store.state()
    return state.driver if state.driven else None


def stop_driver(
    run_dir: Path,
    driver: Driver,
    *,
    now: bool,
    show: Callable[[float], object],
    wait: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> str:
    """Signal the driver, a process of this machine, and wait until it no longer drives the run;
    return what was done. ``show`` gets the seconds that have passed.

    The driver drains at its first signal and leaves at its second. ``now`` sends both: two of
    different kinds, since the kernel makes one of two pending signals of the same kind.
    """
    for number in (signal.SIGINT, signal.SIGTERM) if now else (signal.SIGTERM,):
        _signal(driver, number)
    begun = clock()
    killed = False
    while read_driver(run_dir) == driver:
        passed = clock() - begun
        show(passed)
        if now and not killed and passed > KILL_S:
            _signal(driver, signal.SIGKILL)
            killed = True
        wait(POLL_S)
    how = "left at once" if now else "finished its rollouts in flight, or was stopped again"
    return f"process {driver.pid} " + (f"was killed after {KILL_S:.0f} s" if killed else how)


def _signal(driver: Driver, number: signal.Signals) -> None:
    try:
        os.kill(driver.pid, number)
    except ProcessLookupError:
        return  # it has just ended
    except PermissionError as error:
        raise StoreError(
            f"process {driver.pid}, which drives the run, is another user's: stop it as that user"
        ) from error
