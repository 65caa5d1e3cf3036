"""What the E2B SDK raises, and what it means: the one place that knows.

Its control plane speaks REST through httpx, its sandboxes Connect through connectrpc; the SDK maps
most failures to classes of its own, lets some of the others' pass, and raises bare ``Exception``
where a stream was cut. ``AuthenticationException`` and ``ServiceBusyException`` are no
``SandboxException``, and ``TimeoutException`` stands for whatever could not be reached.
"""

from __future__ import annotations

from dataclasses import dataclass

import e2b
import httpx
from connectrpc.errors import ConnectError
from e2b.exceptions import (
    GuestUnresponsiveException,
    SandboxNotRunningException,
    SandboxUnreachableException,
    ServiceBusyException,
)

from conf.errors import error_text


@dataclass(frozen=True, slots=True)
class Trouble:
    """What an error means for who called."""

    message: str
    again: bool = False
    """Another try may go well."""
    pushed_back: bool = False
    """E2B has too much to do."""
    gone: bool = False
    """The sandbox has ended."""
    answered: bool = False
    """E2B itself said so; otherwise something on the way there."""


_GONE = (SandboxNotRunningException, e2b.SandboxNotFoundException)
_PUSHED_BACK = (e2b.RateLimitException, ServiceBusyException)
_OURS = (
    e2b.AuthenticationException,
    e2b.InvalidArgumentException,
    e2b.NotEnoughSpaceException,
    e2b.NotFoundException,
    e2b.TemplateException,
    GuestUnresponsiveException,
)
"""Mistakes, and states that no other try changes."""
_TRANSPORT = (
    httpx.TransportError,
    ConnectError,
    SandboxUnreachableException,
    e2b.TimeoutException,
    TimeoutError,
    OSError,
)


def trouble(error: Exception) -> Trouble | None:
    """Return what an error means, None if it is neither the SDK's nor a connection's."""
    text = f"{type(error).__name__}: {error_text(error)}"
    if isinstance(error, _PUSHED_BACK):
        return Trouble(text, again=True, pushed_back=True, answered=True)
    if isinstance(error, _GONE):
        return Trouble(text, gone=True)
    if isinstance(error, e2b.CommandExitException):
        said = (error.stderr or error.stdout or "nothing").strip()[-500:]
        return Trouble(f"a script ended with {error.exit_code} and said: {said}")
    if isinstance(error, _OURS):
        return Trouble(text)
    if isinstance(error, _TRANSPORT):
        return Trouble(text, again=True)
    if isinstance(error, e2b.SandboxException):
        status = error.status_code
        refused = status is not None and 400 <= status < 500
        return Trouble(text, again=not refused, answered=status is not None)
    if type(error) is Exception:  # "Command ended without an end event"
        return Trouble(text, again=True)
    return None
