"""Signals reach a run in whatever thread it is driven."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable

import pytest

from runners.services.stop_signals import (
    STOP_SIGNALS,
    PassedSignals,
    in_main_thread,
    receive_signals,
    run_blocking,
    run_in_thread,
)


async def wait_for_signal(ready: threading.Event | None = None) -> tuple[signal.Signals, bool]:
    """Stand for a run: wait for a signal; return it, and whether it was received in the loop."""
    received: asyncio.Future[signal.Signals] = asyncio.get_running_loop().create_future()
    with receive_signals(received.set_result):
        if ready is not None:
            ready.set()
        return await received, True


def test_signals_that_come_too_early_are_kept() -> None:
    passed = PassedSignals()
    seen: list[signal.Signals] = []
    passed.send(signal.SIGINT)
    with passed.delivered(seen.append):
        assert seen == [signal.SIGINT]
        passed.send(signal.SIGTERM)
    passed.send(signal.SIGTERM)
    assert seen == [signal.SIGINT, signal.SIGTERM]


def interrupt_process(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


def interrupt_other_thread(number: signal.Signals) -> None:
    """The kernel chooses the thread that gets a signal; the handler runs in the main thread."""
    signal.pthread_kill(threading.get_ident(), number)


@pytest.mark.parametrize("number", STOP_SIGNALS)
@pytest.mark.parametrize("send", [interrupt_process, interrupt_other_thread])
async def test_a_run_beside_a_running_loop_gets_the_signals_of_the_process(
    number: signal.Signals, send: Callable[[signal.Signals], None]
) -> None:
    before = [signal.getsignal(each) for each in STOP_SIGNALS]
    ready = threading.Event()

    def work() -> tuple[signal.Signals, bool]:
        assert not in_main_thread()
        return asyncio.run(wait_for_signal(ready))

    def interrupt() -> None:
        ready.wait()
        send(number)

    threading.Thread(target=interrupt).start()
    assert run_blocking(work) == (number, True)
    assert [signal.getsignal(each) for each in STOP_SIGNALS] == before


def test_without_a_loop_a_run_stays_in_its_thread() -> None:
    assert run_blocking(in_main_thread)


def test_what_a_run_raises_is_raised() -> None:
    def work() -> None:
        raise ValueError("no such run")

    with pytest.raises(ValueError, match="no such run"):
        run_in_thread(work)


def test_a_run_in_a_thread_of_the_users_listens_to_no_signal() -> None:
    done = []

    async def listen() -> None:
        with receive_signals(lambda _: None):
            done.append(in_main_thread())

    thread = threading.Thread(target=lambda: asyncio.run(listen()))
    thread.start()
    thread.join()
    assert done == [False]
