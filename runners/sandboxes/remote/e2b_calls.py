"""Calls of E2B that are made again when that may help, each within a time of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from runners.concurrency.limits import backoff_s
from runners.sandboxes.contract import SandboxError
from runners.sandboxes.remote.e2b_errors import Trouble, trouble

T = TypeVar("T")


class Gone(SandboxError):
    """The sandbox has ended."""


class Calls:
    """Makes calls up to ``attempts`` times, with full jitter between them."""

    def __init__(self, attempts: int, secret: str) -> None:
        """``secret`` appears in no error."""
        self._attempts = attempts
        self._secret = secret

    async def make(
        self,
        what: str,
        call: Callable[[], Awaitable[T]],
        *,
        deadline_s: float,
        retried: bool = False,
    ) -> T:
        """Return what a call returns; raises SandboxError.

        The deadline is each try's. It is ours: over HTTP/1.1 the SDK does not keep its own.
        ``retried``: the SDK makes the call again itself when E2B answers that it cannot, after the
        time that E2B asks for (``Retry-After``), which no error of its tells.
        """
        failures = 0
        while True:
            try:
                async with asyncio.timeout(deadline_s):
                    return await call()
            except Exception as error:  # also bare ones, see trouble.py
                met = trouble(error)
                if met is None:
                    raise
                failures += 1
                again = met.again and not (retried and met.answered)
                if not again or failures >= self._attempts:
                    raise self._error(what, met, failures) from None  # the cause may hold the key
            await asyncio.sleep(backoff_s(failures))

    def _error(self, what: str, met: Trouble, tries: int) -> SandboxError:
        said = met.message.replace(self._secret, "***")
        text = f"E2B: cannot {what}: {said}" + (f" ({tries} tries)" if tries > 1 else "")
        return Gone(text) if met.gone else SandboxError(text, pushed_back=met.pushed_back)
