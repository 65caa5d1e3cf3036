"""Call E2B's API: classify its errors, and retry the calls for which that may help.

Only ``classify_error`` knows the errors. E2B's control plane speaks REST through httpx, its
sandboxes speak Connect through connectrpc. The SDK maps most failures to exceptions of its own,
passes some of the libraries' on, and raises a bare ``Exception`` where a stream was cut.
``AuthenticationException`` and ``ServiceBusyException`` are no ``SandboxException``, and
``TimeoutException`` stands for anything that could not be reached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

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
from runners.sandboxes.contract import SandboxError
from runners.system.concurrency import backoff_s

T = TypeVar("T")

_GONE = (SandboxNotRunningException, e2b.SandboxNotFoundException)
_OVERLOADED = (e2b.RateLimitException, ServiceBusyException)
_PERMANENT = (
    e2b.AuthenticationException,
    e2b.InvalidArgumentException,
    e2b.NotEnoughSpaceException,
    e2b.NotFoundException,
    e2b.TemplateException,
    GuestUnresponsiveException,
)
"""Mistakes of ours, and states that a retry does not change."""
_TRANSPORT = (
    httpx.TransportError,
    ConnectError,
    SandboxUnreachableException,
    e2b.TimeoutException,
    TimeoutError,
    OSError,
)


@dataclass(frozen=True, slots=True)
class E2bFailure:
    """The meaning of an error for the caller."""

    message: str
    retryable: bool = False
    pushed_back: bool = False
    """E2B is overloaded."""
    gone: bool = False
    """The sandbox has ended."""
    answered: bool = False
    """E2B answered; otherwise the request or the answer may have been lost."""


class SandboxGoneError(SandboxError):
    """The sandbox has ended."""


class E2bCalls:
    """Makes calls up to ``attempts`` times, with full jitter between them."""

    def __init__(self, attempts: int, secret: str) -> None:
        """``secret`` is removed from error messages."""
        self._attempts = attempts
        self._secret = secret

    async def call(
        self,
        what: str,
        function: Callable[[], Awaitable[T]],
        *,
        deadline_s: float,
        sdk_retries: bool = False,
    ) -> T:
        """Return what ``function`` returns; raises SandboxError, SandboxGoneError.

        ``deadline_s`` is for each attempt. It is kept here, because over HTTP/1.1 the SDK does not
        keep its own. ``sdk_retries``: if E2B answers that it cannot serve the call now, the SDK has
        retried by itself, after the time in ``Retry-After``, which its exceptions do not carry; so
        such an answer is final here.
        """
        failures = 0
        while True:
            try:
                async with asyncio.timeout(deadline_s):
                    return await function()
            except Exception as error:  # the SDK raises bare ones too, see the module's text
                failure = classify_error(error)
                if failure is None:
                    raise
                failures += 1
                retry = failure.retryable and not (sdk_retries and failure.answered)
                if not retry or failures >= self._attempts:
                    # "from None": the cause may hold the API key.
                    raise self._error(what, failure, failures) from None
            await asyncio.sleep(backoff_s(failures))

    def _error(self, what: str, failure: E2bFailure, tries: int) -> SandboxError:
        message = failure.message.replace(self._secret, "***")
        text = f"E2B: cannot {what}: {message}" + (f" ({tries} tries)" if tries > 1 else "")
        if failure.gone:
            return SandboxGoneError(text)
        return SandboxError(text, pushed_back=failure.pushed_back)


def lacks_route(error: e2b.SandboxException) -> bool:
    """Return whether a server may not know the path or the method of a request."""
    return error.status_code in (404, 405)


def classify_error(error: Exception) -> E2bFailure | None:
    """Return the meaning of an error; None if neither the SDK nor a connection raised it."""
    text = f"{type(error).__name__}: {error_text(error)}"
    if isinstance(error, _OVERLOADED):
        return E2bFailure(text, retryable=True, pushed_back=True, answered=True)
    if isinstance(error, _GONE):
        return E2bFailure(text, gone=True)
    if isinstance(error, e2b.CommandExitException):
        printed = (error.stderr or error.stdout or "nothing").strip()[-500:]
        return E2bFailure(f"a script ended with {error.exit_code} and printed: {printed}")
    if isinstance(error, _PERMANENT):
        return E2bFailure(text)
    if isinstance(error, _TRANSPORT):
        return E2bFailure(text, retryable=True)
    if isinstance(error, e2b.SandboxException):
        status = error.status_code
        refused = status is not None and 400 <= status < 500
        return E2bFailure(text, retryable=not refused, answered=status is not None)
    if type(error) is Exception:  # "Command ended without an end event": the stream was cut
        return E2bFailure(text, retryable=True)
    return None
