"""Await coroutines in the event loop of another thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable
from typing import TypeVar

Result = TypeVar("Result")


async def run_in(
    loop: asyncio.AbstractEventLoop, call: Callable[[], Awaitable[Result]], *, unwind_s: float = 0.0
) -> Result:
    """Return what ``call()`` returns when it is awaited in ``loop``; raises what it raises.

    Cancellation cancels it there, and waits up to ``unwind_s`` until it has ended; a loop that is
    blocked cannot end it. A cancellation of its own is a RuntimeError here.
    """
    ended: concurrent.futures.Future[tuple[Result | None, BaseException | None]]
    ended = concurrent.futures.Future()
    tasks: list[asyncio.Task[None]] = []

    async def run() -> None:
        try:
            ended.set_result((await call(), None))
        except BaseException as error:  # SystemExit would end the loop
            ended.set_result((None, error))

    def start() -> None:
        tasks.append(loop.create_task(run()))

    def cancel() -> None:
        tasks[0].cancel()

    loop.call_soon_threadsafe(start)
    waiting = asyncio.wrap_future(ended)
    try:
        result, error = await asyncio.shield(waiting)
    except asyncio.CancelledError:
        loop.call_soon_threadsafe(cancel)
        if unwind_s:
            await asyncio.wait([waiting], timeout=unwind_s)
        raise
    if isinstance(error, Exception | SystemExit):
        raise error
    if error is not None:
        raise RuntimeError(repr(error)) from error
    return result  # type: ignore[return-value]  # the result, since there is no error
