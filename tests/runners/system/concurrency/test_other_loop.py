"""Coroutines in the loop of another thread."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Iterator

import pytest

from runners.system.concurrency.other_loop import run_in


@pytest.fixture
def other() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


async def test_it_runs_there_and_its_result_or_error_comes_here(
    other: asyncio.AbstractEventLoop,
) -> None:
    async def find() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    async def fail(error: BaseException) -> None:
        raise error

    assert await run_in(other, find) is other
    for error in (KeyError("a"), SystemExit(3)):
        with pytest.raises(type(error)):
            await run_in(other, functools.partial(fail, error))
    with pytest.raises(RuntimeError, match="CancelledError"):
        await run_in(other, lambda: fail(asyncio.CancelledError()))
    assert await run_in(other, find) is other, "the loop goes on"


async def test_a_cancelled_caller_waits_until_it_has_ended_there(
    other: asyncio.AbstractEventLoop,
) -> None:
    ended: list[str] = []
    begun = threading.Event()

    async def work() -> None:
        try:
            begun.set()
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            ended.append("there")

    caller = asyncio.ensure_future(run_in(other, work, unwind_s=30))
    await asyncio.to_thread(begun.wait, 10)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert ended == ["there"]


async def test_a_loop_that_is_blocked_holds_a_cancelled_caller_no_longer_than_agreed(
    other: asyncio.AbstractEventLoop,
) -> None:
    released = threading.Event()

    async def block() -> None:
        released.wait(60)

    started = time.monotonic()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await run_in(other, block, unwind_s=0.05)
    assert time.monotonic() - started < 30
    released.set()
