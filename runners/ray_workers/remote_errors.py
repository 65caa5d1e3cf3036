"""Failures on their way between processes: what the other side must tell apart stays apart, the
rest is its text.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Literal

from conf.errors import AgentrlError, ExitCode, error_text
from runners.store.store_error import StoreError


class ExecutorError(AgentrlError):
    """What runs rollouts elsewhere is gone, or refuses; the run can be resumed."""

    exit_code = ExitCode.SERVICE_GONE

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.SERVICE_GONE) -> None:
        self.exit_code = exit_code
        super().__init__(message)


class NodeLost(AgentrlError):
    """The node on which an attempt ran is gone, or its worker is."""

    def __init__(self, message: str, node: str) -> None:
        self.node = node
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Trouble:
    """An exception, told."""

    kind: Literal["store", "lost", "cancelled", "late", "other"]
    text: str
    exit_code: ExitCode = ExitCode.SERVICE_GONE
    node: str = ""
    """Of ``lost``."""


def trouble_of(error: BaseException) -> Trouble:
    """Tell an exception."""
    text = error_text(error)
    match error:
        case StoreError():
            return Trouble("store", text, error.exit_code)
        case NodeLost():
            return Trouble("lost", text, node=error.node)
        case AgentrlError():
            return Trouble("other", text, error.exit_code)
        case asyncio.CancelledError():
            return Trouble("cancelled", text)
        case TimeoutError():
            return Trouble("late", text)
    return Trouble("other", f"{type(error).__name__}: {text}")


def raised(trouble: Trouble) -> BaseException:
    """Return the exception that was told."""
    match trouble.kind:
        case "store":
            return StoreError(trouble.text, trouble.exit_code)
        case "lost":
            return NodeLost(trouble.text, trouble.node)
        case "cancelled":
            return asyncio.CancelledError(trouble.text)
        case "late":
            return TimeoutError(trouble.text)
    return ExecutorError(trouble.text, trouble.exit_code)
