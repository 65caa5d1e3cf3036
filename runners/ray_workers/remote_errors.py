"""Encode exceptions as JSON for another process of the run, and decode them there.

Invariant: a caller can tell apart what it must treat differently (a broken store, a lost node, a
cancellation, a timeout); every other exception becomes an ExecutorError with the original's text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from conf.errors import AgentrlError, ExitCode, error_text
from runners.store.store_error import StoreError


class ExecutorError(AgentrlError):
    """The processes that run rollouts elsewhere are gone or refuse; the run can be resumed."""

    exit_code = ExitCode.SERVICE_GONE

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.SERVICE_GONE) -> None:
        self.exit_code = exit_code
        super().__init__(message)


class Unreachable(ExecutorError):
    """The other process does not answer: it has ended, hangs, or there is no route to it."""


class NodeLost(AgentrlError):
    """The node on which an attempt ran is gone, or its worker is."""

    def __init__(self, message: str, node: str) -> None:
        self.node = node
        self.reported = False
        """True if an attempt has reported it: it is one failure for all attempts of the node."""
        super().__init__(message)


_DETAIL: dict[type[BaseException], str | None] = {
    StoreError: "exit_code",
    NodeLost: "node",
    ExecutorError: "exit_code",
    asyncio.CancelledError: None,
    TimeoutError: None,
}
"""The exceptions that arrive as what they are, each with the attribute that its constructor takes
after the message.
"""


def encode_error(error: BaseException) -> dict[str, Any]:
    """Return the JSON form of an exception: its type and the arguments of its constructor."""
    kind = next((each for each in _DETAIL if isinstance(error, each)), ExecutorError)
    message, detail = error_text(error), _DETAIL[kind]
    if not isinstance(error, kind | AgentrlError):
        message = f"{type(error).__name__}: {message}"
    details = [getattr(error, detail, ExitCode.SERVICE_GONE)] if detail else []
    return {"type": kind.__name__, "arguments": [message, *details]}


def decode_error(data: Mapping[str, Any]) -> BaseException:
    """Return the exception that ``encode_error`` was given, or the ExecutorError for it."""
    [kind] = (each for each in _DETAIL if each.__name__ == data["type"])
    arguments = (ExitCode(each) if isinstance(each, int) else each for each in data["arguments"])
    return kind(*arguments)
