"""Call plug-ins so that a slow, hanging or failing one harms its own rollout only."""

from __future__ import annotations

import asyncio
import functools
import math
import reprlib
import subprocess
import threading
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from conf.errors import error_text
from runners.records.text import make_printable, shorten
from runners.system.concurrency.daemon_thread import run_in_daemon
from runners.system.concurrency.other_loop import run_in
from runners.system.plugins.contract_check import is_async

Result = TypeVar("Result")
PRINTED_CHARS = 500
"""Kept of what a program printed that a plug-in ran."""
OWN_CODE = tuple(f"{Path(__file__).parents[3] / folder}/" for folder in ("cli", "conf", "runners"))
"""Folders whose lines are not the plug-in's."""
SHORT = reprlib.Repr()
"""Shows values of any size and depth."""


class PluginFailedError(Exception):
    """A plug-in raised, or returned what its contract does not allow; the text says which, where
    and what.
    """


async def call_plugin(
    name: str,
    plugin: Callable[..., Result | Awaitable[Result]],
    *args: Any,
    deadline_s: float,
    deadline_key: str = "",
) -> Result:
    """Call a plug-in, async or not, within a deadline; raises PluginFailedError.

    One that is not async runs in a thread of its own, so it may block; after its deadline it is
    left to itself. Async ones share a loop in a thread of their own: one that blocks there delays
    the others, and nothing else. ``name`` and ``deadline_key`` are for the message. A call of
    ``sys.exit`` is a failure like any other: it must not end the campaign.
    """
    try:
        async with asyncio.timeout(deadline_s) as limit:
            if is_async(plugin):
                function: Any = plugin
                result: Result = await run_beside(function, *args)
            else:
                result = await run_in_daemon(plugin, *args)
            return result
    except (Exception, SystemExit) as error:
        if isinstance(error, TimeoutError) and limit.expired():
            key = f" ({deadline_key})" if deadline_key else ""
            raise PluginFailedError(f"{name} took longer than {deadline_s:g} s{key}") from error
        raise describe_failure(name, error) from error


def check_number(name: str, found: object) -> float:
    """Return a plug-in's number as a float; raises PluginFailedError unless it is finite."""
    try:
        number = math.nan if isinstance(found, str) else float(found)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        shown = make_printable(shorten(SHORT.repr(found), 80))
        raise PluginFailedError(f"{name} returned {shown}, which is no finite number")
    return number


def describe_failure(name: str, error: BaseException) -> PluginFailedError:
    """Return the failure of a plug-in, with the last line of its code that was reached."""
    text = shorten(error_text(error), PRINTED_CHARS)
    if isinstance(error, subprocess.CalledProcessError) and error.stderr:
        printed = (
            error.stderr
            if isinstance(error.stderr, str)
            else error.stderr.decode("utf-8", "replace")
        )
        text = f"{text} It printed: {printed.strip()[-PRINTED_CHARS:]}"
    raised = f"{name} raised {type(error).__name__}: {text}{find_place(error)}"
    return PluginFailedError(make_printable(raised))


def find_place(error: BaseException) -> str:
    """Return ` (FILE:LINE)` of the last line outside of agentrl that an error came through; of a
    syntax error, whose own text names the line, "".
    """
    if isinstance(error, SyntaxError):
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if not frame.filename.startswith(("<frozen ", *OWN_CODE)):
            return f" ({frame.filename}:{frame.lineno})"
    return ""


async def run_beside(
    function: Callable[..., Awaitable[Result]], *args: Any, unwind_s: float = 0.0
) -> Result:
    """Await an async function in the loop of plug-ins, see ``run_in``; raises what it raises."""
    return await run_in(plugin_loop(), lambda: function(*args), unwind_s=unwind_s)


@functools.cache
def plugin_loop() -> asyncio.AbstractEventLoop:
    """Return a loop that runs in a daemon thread until the process ends."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="plug-ins", daemon=True).start()
    return loop
