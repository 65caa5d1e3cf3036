"""What a judge does: run a task's tests in a prepared sandbox, and read them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from runners.sandboxes.contract import CommandResult, Sandbox
from runners.tasks.contract import Task, Verdict

OUTPUT_LIMIT = 32 << 20
"""A log that is cut loses results."""
INSIDE = "/opt/agentrl/grading"


class Judge(Protocol):
    """One kind of grading."""

    def mounts(self, task: Task) -> Mapping[str, Path]:
        """Return the files it needs inside, read-only; raises AgentrlError."""
        ...

    async def judge(self, task: Task, sandbox: Sandbox, deadline_s: float) -> Verdict:
        """Return the verdict on the work tree as it is; raises SandboxError and OSError."""
        ...


def killed_after_s(result: CommandResult) -> float | None:
    """Return after how long a command was ended at its deadline; None if it ended by itself."""
    return result.duration_s if result.timed_out else None
