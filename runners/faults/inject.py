"""What a fault does that can happen at any boundary: raise, hang, wait, move the clock.

A hang waits on the event loop and can be cancelled. Whatever a fault does to one boundary alone
(``cut``, ``garbage``, ``death`` …) is done by the wrapper of that boundary.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from runners.faults import clock
from runners.faults.plan import Fault
from runners.faults.tools_inside import BROKEN

Own = Callable[[Fault], Exception]
"""Makes the exception that the boundary itself would raise."""


async def strike(fault: Fault | None, own: Own) -> None:
    """Let a fault happen, as far as it is of the general kind; returns when the call may go on."""
    if fault is None:
        return
    if (error := raised(fault, own)) is not None:
        raise error
    if fault.what == "hang":
        await asyncio.Event().wait()
    elif fault.what == "delay":
        await asyncio.sleep(fault.seconds)
    elif fault.what == "clock_jump":
        clock.jump(fault.seconds)


def raised(fault: Fault, own: Own) -> BaseException | None:
    """Return the exception that a fault is; None if it is none."""
    match fault.what:
        case "error" | "status" | "disk_full":
            return own(fault)
        case "exception":
            return RuntimeError(str(fault))
        case "cancelled":
            return asyncio.CancelledError(str(fault))
        case "timeout":
            return TimeoutError(str(fault))
        case "hostile":
            return hostile(fault, own)
    return None


def hostile(fault: Fault, own: Own) -> Exception:
    """Return an exception whose text is broken or cannot be read, expected or not: by the dice."""
    error = own(fault) if fault.dice & 1 else _Unexpected()
    if fault.dice & 2:
        error.args = (BROKEN,)
    else:
        error.__class__ = type("Unreadable", (type(error),), {"__str__": _unreadable})
    return error


class _Unexpected(Exception):
    """An error that no boundary knows."""


def _unreadable(error: Exception) -> str:
    raise ValueError("this exception has no text")
