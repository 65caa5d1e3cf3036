"""Run the worker's coroutines on one event loop, on a thread of its own, whoever calls.

slime calls its functions from several threads and loops. Pool, semaphores and SQLite's handle
belong to one of them, and rollouts go on between the calls.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


def run_in_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the worker's loop, and wait for its result; from any other thread."""
    future = asyncio.run_coroutine_threadsafe(work, _start_loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()  # the caller is interrupted: nobody waits for it any more
        raise


@cache
def _start_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    # A daemon: the process's exit does not wait for it, ``SlimeRolloutWorker`` ends its work.
    threading.Thread(target=loop.run_forever, name="agentrl", daemon=True).start()
    return loop
