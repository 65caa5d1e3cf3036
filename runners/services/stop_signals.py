"""Signals that stop a run: the process's own, those that are passed to a driver in a thread, and
those that another process of its machine sends.

Python delivers signals to the main thread, and lets no other one install handlers. A driver
elsewhere (in Jupyter the main thread has an event loop of its own) gets its signals from
``run_in_thread``, which waits for it in their place.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar

from runners.records.store import Driver, RunStore, StoreError

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
WAKE_S = 0.1
"""Longest time until the waiting thread sees a signal."""

Result = TypeVar("Result")
Deliver = Callable[[signal.Signals], object]


class PassedSignals:
    """Signals for a driver in another thread; those that come too early are kept for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._early: list[signal.Signals] = []
        self._deliver: Deliver | None = None

    def send(self, number: signal.Signals) -> None:
        """Pass a signal on, from any thread."""
        with self._lock:
            if self._deliver is None:
                self._early.append(number)
            else:
                self._deliver(number)

    @contextmanager
    def delivered(self, deliver: Deliver) -> Iterator[None]:
        """Call ``deliver`` for every signal while the block runs, in the thread that sends it."""
        with self._lock:
            self._deliver, early, self._early = deliver, self._early, []
            for number in early:
                deliver(number)
        try:
            yield
        finally:
            with self._lock:
                self._deliver = None


_passed: ContextVar[PassedSignals | None] = ContextVar("passed_signals", default=None)
"""Source of the signals of a driver that is not in the main thread."""


def run_blocking(work: Callable[[], Result]) -> Result:
    """Call ``work``, which drives a run in an event loop of its own; in a thread if this one has a
    loop already.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    return run_in_thread(work)


def run_in_thread(work: Callable[[], Result]) -> Result:
    """Call ``work``, which drives a run, in a thread, and wait; if this is the main thread, signals
    that come meanwhile are the run's.
    """
    signals = PassedSignals()
    done: Future[Result] = Future()

    def call() -> None:
        _passed.set(signals)
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    with handlers_restored():
        if in_main_thread():
            for number in STOP_SIGNALS:
                signal.signal(number, lambda given, _: signals.send(signal.Signals(given)))
        threading.Thread(target=call, name="run").start()
        # The kernel may give a signal to any thread, and that does not wake this one, which alone
        # runs the handler.
        while not done.done():
            wait([done], timeout=WAKE_S)
        return done.result()


def in_main_thread() -> bool:
    """Return whether this thread may install signal handlers."""
    return threading.current_thread() is threading.main_thread()


@contextmanager
def handlers_restored() -> Iterator[None]:
    """Put the process's handlers back at the end of the block."""
    if not in_main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def receive_signals(handle: Deliver) -> Iterator[None]:
    """Call ``handle`` in the running loop for every signal that is to stop this thread's run.

    After the block the process's signals are ignored, until ``handlers_restored`` ends: a run that
    is stopped while its results are drawn would look killed.
    """
    loop = asyncio.get_running_loop()
    passed = _passed.get()
    if passed is not None:
        with passed.delivered(lambda number: loop.call_soon_threadsafe(handle, number)):
            yield
    elif not in_main_thread():
        yield
    else:
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, handle, number)
        try:
            yield
        finally:
            for number in STOP_SIGNALS:
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_IGN)


POLL_S = 0.2
KILL_S = 60.0
"""Seconds in which a run that leaves at once ends its sandboxes and agents; then it is killed."""


def read_driver(run_dir: Path) -> Driver | None:
    """Return the living process that drives the run, None if it has none.

    Raises StoreError, also for a copy of a run that is driven elsewhere.
    """
    with RunStore.open(run_dir, read_only=True) as store:
        state = store.state()
    if state.copied and state.driver:
        raise StoreError(
            f"{run_dir} is a copy: process {state.driver.pid} drives the run that it was copied "
            "from, and nothing was stopped; name that one's directory"
        )
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
