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


def encode_error(error: BaseException) -> dict[str, Any]:
    """Return the JSON form of an exception: its type, message, exit code and node."""
    data: dict[str, Any] = {"message": error_text(error)}
    match error:
        case StoreError():
            return data | {"type": "StoreError", "exit_code": int(error.exit_code)}
        case NodeLost():
            return data | {"type": "NodeLost", "node": error.node}
        case AgentrlError():
            return data | {"type": "ExecutorError", "exit_code": int(error.exit_code)}
        case asyncio.CancelledError():
            return data | {"type": "CancelledError"}
        case TimeoutError():
            return data | {"type": "TimeoutError"}
    message = f"{type(error).__name__}: {data['message']}"
    code = ExitCode.SERVICE_GONE
    return {"type": "ExecutorError", "message": message, "exit_code": int(code)}


def decode_error(data: Mapping[str, Any]) -> BaseException:
    """Return the exception that ``encode_error`` was given, or the ExecutorError for it."""
    message = data["message"]
    match data["type"]:
        case "StoreError":
            return StoreError(message, ExitCode(data["exit_code"]))
        case "NodeLost":
            return NodeLost(message, data["node"])
        case "CancelledError":
            return asyncio.CancelledError(message)
        case "TimeoutError":
            return TimeoutError(message)
    return ExecutorError(message, ExitCode(data["exit_code"]))
