"""The contract of a judge: run a task's tests in a prepared sandbox, and read their results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from runners.sandboxes.contract import CommandResult, Sandbox
from runners.tasks.contract import Task, Verdict

OUTPUT_LIMIT = 32 << 20
"""Bytes: ample, because a truncated log loses results."""
INSIDE = "/opt/agentrl/grading"
"""Folder of the judges' programs in the sandbox."""


class Judge(Protocol):
    """One kind of grading."""

    def mounts(self, task: Task) -> Mapping[str, Path]:
        """Return the read-only files it needs, by their paths inside; raises AgentrlError."""
        ...

    async def judge(self, task: Task, sandbox: Sandbox, deadline_s: float) -> Verdict:
        """Return the verdict on the present work tree; raises SandboxError and OSError."""
        ...


def killed_after_s(result: CommandResult) -> float | None:
    """Return the seconds after which its deadline killed a command; None if it ended by itself."""
    return result.duration_s if result.timed_out else None
