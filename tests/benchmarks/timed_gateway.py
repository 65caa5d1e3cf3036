"""``python -m tests.benchmarks.timed_gateway``: a gateway that notes what holds up its event loop.

Times are CPU time of the loop's thread, so neither a busy machine nor other threads change them.
What takes a millisecond or more goes to a file, a JSON line each: a ``step`` of a coroutine, with
its name, or a ``wait``: the time that the loop worked between two ticks of a timer of a
millisecond, for which anything else that was ready had to wait.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from contextvars import Context
from types import TracebackType
from typing import Any

from runners.gateway.service import NO_HOOKS, GatewayHooks, main

LEAST_MS = 1.0
TICK_S = 0.001


class TimedCoroutine(Coroutine[Any, Any, Any]):
    """A coroutine whose steps are timed."""

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], note: Callable[[str, float, str], None]
    ) -> None:
        self._coroutine, self._note = coroutine, note
        self.__qualname__ = getattr(coroutine, "__qualname__", "")

    def send(self, value: Any) -> Any:
        """Take a step."""
        began = time.thread_time()
        try:
            return self._coroutine.send(value)
        finally:
            self._note("step", began, self.__qualname__)

    def throw(self, kind: Any, value: object = None, trace: TracebackType | None = None, /) -> Any:
        """Take a step that begins with an exception."""
        return self._coroutine.throw(kind)

    def close(self) -> None:
        """End it."""
        self._coroutine.close()

    def __await__(self) -> Any:
        return self._coroutine.__await__()


def note_holds(path: str) -> None:
    """Time the steps of every later task of the running loop, and what its timers wait for."""
    file = open(path, "a", encoding="utf-8")  # noqa: SIM115, PTH123 (until the process ends)
    loop = asyncio.get_running_loop()

    def note(kind: str, began: float, name: str) -> None:
        took_ms = 1000 * (time.thread_time() - began)
        if took_ms >= LEAST_MS:
            file.write(json.dumps({"kind": kind, "ms": took_ms, "name": name}) + "\n")
            file.flush()

    def make_task(
        loop: asyncio.AbstractEventLoop, coroutine: Any, context: Context | None = None
    ) -> asyncio.Task[Any]:
        return asyncio.Task(TimedCoroutine(coroutine, note), loop=loop, context=context)

    def tick(since: float) -> None:
        note("wait", since, "")
        loop.call_later(TICK_S, tick, time.thread_time())

    loop.set_task_factory(make_task)
    tick(time.thread_time())


def pop_hooks(settings: dict[str, Any]) -> GatewayHooks:
    """Take the name of the file out of the settings."""
    note_holds(settings.pop("holds"))
    return NO_HOOKS


if __name__ == "__main__":
    raise SystemExit(main(pop_hooks))
