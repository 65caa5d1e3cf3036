"""Inject faults into the calls of any object, through a proxy in front of it.

Invariant: the proxy uses public attributes of the real object and nothing else. A table of method →
``Call`` says which calls are boundaries; every other attribute is the real object's own.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, cast

from conf.fault_table import FaultKind
from runners.services.faults.plan import Fault, Injection
from runners.services.faults.tools_inside import BROKEN

Part = TypeVar("Part")
Arguments = Mapping[str, Any]
"""Arguments of a call by name, defaults included."""
Proceed = Callable[[], Awaitable[Any]]
"""Makes the real call."""
Effect = Callable[[Fault, Arguments, Proceed], Awaitable[Any]]
"""Does what a fault does, and returns the result of the call in the real object's place."""
MakeError = Callable[[Fault], Exception]
"""Makes the exception that the boundary itself would raise."""


@dataclass(frozen=True, slots=True)
class Call:
    """A method that is a boundary."""

    draw: Callable[[Arguments], Fault | None]
    """Counts the hit and returns its fault."""
    effects: Mapping[FaultKind, Effect] = field(default_factory=dict)
    """Kinds that are special here; ``inject`` does the others."""
    deferred: frozenset[FaultKind] = frozenset()
    """Kinds that are only prepared here: who carries them out records them."""
    guard: Callable[[], None] = lambda: None
    """Raises if the part is lost; called before the hit is counted."""
    adapt: Callable[[Any], Any] = lambda result: result
    """Changes the result of the real call, with or without a fault."""
    shape: Literal["await", "fail after", "enter", "write"] = "await"
    """``await``: a coroutine. ``fail after``: the same, done before its fault happens, so that a
    plan leaves nothing behind. ``enter``: returns an async context manager. ``write``: a plain
    function, which blocks the event loop.
    """


class FaultProxy:
    """Stands in front of a real object; see ``wrap``."""

    def __init__(
        self, real: object, injection: Injection, error: MakeError, calls: Mapping[str, Call]
    ) -> None:
        self._real = real
        self._injection = injection
        self._error = error
        self._calls = calls

    def __getattr__(self, name: str) -> Any:  # called only for what the proxy does not have
        value = getattr(self._real, name)
        if (call := self._calls.get(name)) is None:
            return value
        signature = inspect.signature(value)
        intercept = {
            "await": self._await,
            "fail after": self._fail_after,
            "enter": self._enter,
            "write": self._write,
        }[call.shape]

        def intercepted(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return intercept(call, bound.arguments, lambda: value(*args, **kwargs))

        return intercepted

    async def _await(self, call: Call, arguments: Arguments, proceed: Proceed) -> Any:
        async def proceed_and_adapt() -> Any:
            return call.adapt(await proceed())

        fault = await self._draw(call, arguments)
        if fault is not None and (effect := call.effects.get(fault.what)) is not None:
            return await effect(fault, arguments, proceed_and_adapt)
        await inject(fault, self._error)
        result = await proceed_and_adapt()
        if fault is not None and fault.what in ("cut", "garbage"):
            raise self._error(fault)  # the call was made, and its reply is lost or unreadable
        return result

    async def _fail_after(self, call: Call, arguments: Arguments, proceed: Proceed) -> Any:
        result = await proceed()
        await inject(await self._draw(call, arguments), self._error)
        return result

    @asynccontextmanager
    async def _enter(
        self, call: Call, arguments: Arguments, proceed: Callable[[], Any]
    ) -> AsyncIterator[Any]:
        await inject(await self._draw(call, arguments), self._error)
        async with proceed() as value:
            yield value

    def _write(self, call: Call, arguments: Arguments, proceed: Callable[[], Any]) -> Any:
        if (fault := call.draw(arguments)) is not None:
            self._injection.record_now(fault)
            raise_fault(fault, self._error)
            time.sleep(fault.seconds)  # stalls the whole driver, as a slow disk does
        return proceed()

    async def _draw(self, call: Call, arguments: Arguments) -> Fault | None:
        call.guard()
        fault = call.draw(arguments)
        if fault is not None and fault.what not in call.deferred:
            await self._injection.record(fault)
        return fault


def wrap(part: Part, injection: Injection, error: MakeError, calls: Mapping[str, Call]) -> Part:
    """Return ``part`` behind a proxy that injects faults into ``calls``, by method.

    ``error`` makes the part's own kind of exception. Without a plan ``part`` is returned itself.
    """
    return cast(Part, FaultProxy(part, injection, error, calls)) if injection.plan else part


def change_reply(change: Callable[[Any], Any]) -> Effect:
    """Return the effect: the real call is made, and its reply is changed."""

    async def effect(fault: Fault, call: Arguments, proceed: Proceed) -> Any:
        return change(await proceed())

    return effect


# --- what happens alike at every boundary ------------------------------------------------------


async def inject(fault: Fault | None, error: MakeError) -> None:
    """Raise, hang, wait or move the clock; return when the real call may go on.

    A hang can be cancelled. Kinds that are special to a boundary do nothing here.
    """
    if fault is None:
        return
    raise_fault(fault, error)
    if fault.what == "hang":
        await asyncio.Event().wait()
    elif fault.what == "delay":
        await asyncio.sleep(fault.seconds)
    elif fault.what == "clock_jump":
        jump_clock(fault.seconds)


def raise_fault(fault: Fault, error: MakeError) -> None:
    """Raise the exception that a fault is; return if it is none."""
    match fault.what:
        case "error" | "status" | "disk_full":
            raise error(fault)
        case "exception":
            raise RuntimeError(str(fault))
        case "cancelled":
            raise asyncio.CancelledError(str(fault))
        case "timeout":
            raise TimeoutError(str(fault))
        case "hostile":
            raise make_hostile(fault, error)


def make_hostile(fault: Fault, error: MakeError) -> Exception:
    """Return an exception whose text is broken or cannot be read.

    Random bits choose: bit 0 the boundary's own error or an unknown one, bit 1 a text or none.
    """
    hostile = error(fault) if fault.random_bits & 1 else _UnknownError()
    if fault.random_bits & 2:
        hostile.args = (BROKEN,)
    else:
        hostile.__class__ = type("Unreadable", (type(hostile),), {"__str__": _raise_in_str})
    return hostile


class _UnknownError(Exception):
    """An error that no boundary knows."""


def _raise_in_str(error: Exception) -> str:
    raise ValueError("this exception has no text")


_real_time = time.time
_ahead_s = 0.0


def jump_clock(seconds: float) -> None:
    """Move ``time.time``, forwards or back, until ``restore_clock``.

    As when an administrator or NTP sets a machine's clock, ``time.monotonic``, which deadlines and
    the event loop use, does not move.
    """
    global _ahead_s
    _ahead_s += seconds
    vars(time)["time"] = lambda: _real_time() + _ahead_s


def restore_clock() -> None:
    """Set the clock right."""
    global _ahead_s
    _ahead_s = 0.0
    vars(time)["time"] = _real_time
